"""A job's encoding as others may have made it, and as it enters the log."""

from __future__ import annotations

import pytest

from relevo_schemas import commands as cmd
from relevo_schemas.codec import MARKER, canonical, decode, decode_job, fingerprint, job_spec
from relevo_schemas.files import load_current


def padded(number: int, by: int) -> bytes:
    """Avro's shortest encoding of a small number, and so many bytes more that say nothing."""
    return bytes([number << 1 | 0x80]) + b"\x80" * (by - 1) + b"\x00"


LONG_WAY = {
    "a padded number": b"\x02k\x02t" + padded(5, 900_000) + b"\x06\x00\x00\x02\x00\x00\x00\x00\x04{}",
    "a padded length": padded(1, 4) + b"k\x02t\x0a\x06\x00\x00\x02\x00\x00\x00\x00\x04{}",
    "padded variables": b"\x02k\x02t\x0a\x06\x00\x00\x02\x00\x00\x00\x00" + padded(2, 1) + b"{}",
    "null as the last but one choice": b"\x02k\x02t\x0a\x06\x00\x00\x02\x00\x00\x03\x00\x04{}",
    "a padded choice": b"\x02k\x02t\x0a\x06\x00\x00\x02\x00\x00" + padded(0, 2) + b"\x00\x04{}",
}


@pytest.mark.parametrize("body", LONG_WAY.values(), ids=LONG_WAY)
def test_a_job_encoded_the_long_way_round_is_made_short(body: bytes) -> None:
    """Our library reads it; others who read the log refuse a number of more than ten bytes."""
    command = decode(MARKER + fingerprint(load_current("CreateJob")) + body)
    assert isinstance(command, cmd.CreateJob)
    assert command.job.body == body
    short = canonical(command.job)
    plain_job = job_spec(
        key="k", type="t", priority=5, retries=3, backoff_ms=0, backoff_max_ms=0, lease_ms=1, variables=b"{}"
    )
    assert short == plain_job
    assert canonical(short) is short


def test_a_choice_counted_from_the_end_is_counted_from_the_beginning() -> None:
    """As long as the right one, and the one thing in a job that its length doesn't tell."""
    begin = b"\x02k\x02t\x00\x06\x00\x00\x02\x00\x00"
    for choice in (b"\x01", b"\x02"):
        job = canonical(decode_job(begin + choice + b"\x06abc" + b"\x00\x04{}"))
        assert job.correlation_id == "abc"
        assert job.body == begin + b"\x02" + b"\x06abc" + b"\x00\x04{}"


def test_headers_in_blocks_or_named_twice_are_one_block_with_each_once() -> None:
    begin = b"\x02k\x02t\x00\x06\x00\x00\x02\x00\x00\x00"
    block = b"\x02" + b"\x02a" + b"\x021"
    for blocks, headers in ((block + block, {"a": "1"}), (b"\x01\x08" + block[1:], {"a": "1"})):
        job = canonical(decode_job(begin + blocks + b"\x00" + b"\x04{}"))
        assert job.headers == headers
        assert job.body == begin + block + b"\x00" + b"\x04{}"
