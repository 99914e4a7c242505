"""Checkpoints: what an attempt stores of its progress is handed to the next one, whatever happens."""

from __future__ import annotations

import orjson
import pytest

from relevo_engine.core.job import JobState
from relevo_engine.core.machine import JobMachine
from relevo_engine.core.snapshot import CHECKPOINTS
from relevo_engine.queries import find_job
from relevo_schemas import commands as cmd
from relevo_schemas import events as ev
from relevo_schemas.codec import encode
from relevo_schemas.records import Event
from tests.unit.core.harness import Partition, check_consistent, only, refusals, rules

LEASE = 10_000
PAGE = b'{"page":7}'


def store(p: Partition, detail: bytes = PAGE, *, key: str = "k", attempt: int = 1) -> list[Event]:
    return p.send(cmd.CheckpointJob(key, 0, attempt, detail))


def handed_over(p: Partition) -> list[tuple[int, bytes]]:
    return [(each.attempt, each.checkpoint) for _, _, each in p.activations]


def running(**changes: int) -> Partition:
    p = Partition(rules(**changes))
    p.create("k", lease_ms=LEASE)
    p.start("k")
    return p


def test_the_attempt_after_a_failure_is_told_how_far_the_last_one_came() -> None:
    """Without it an export of 1,000 pages that fails on the last begins with the first."""
    p = running()
    store(p, b'{"page":1}')
    (event,) = store(p)
    assert isinstance(event, ev.JobCheckpointed)
    assert (event.key, event.attempt, event.detail, event.source) == ("k", 1, PAGE, p.offset - 1)
    p.fail("k", retry_in_ms=0)
    assert handed_over(p) == [(1, b""), (2, PAGE)]


def test_the_attempt_after_a_dead_worker_is_told_too_and_so_is_each_later_one() -> None:
    p = running()
    store(p)
    p.step(LEASE)
    p.start("k", attempt=2)
    p.step(LEASE)
    assert handed_over(p) == [(1, b""), (2, PAGE), (3, PAGE)]


def test_what_is_stored_survives_a_failover_and_a_retry_by_request() -> None:
    p = running()
    store(p)
    p.failover()
    p.fail("k", retriable=False)
    p.failover()
    p.send(cmd.RetryJob("k", 3))
    assert handed_over(p)[-1] == (2, PAGE)


def test_nothing_stored_is_forgotten() -> None:
    p = running()
    store(p)
    store(p, b"")
    p.fail("k", retry_in_ms=0)
    assert handed_over(p)[-1] == (2, b"")


@pytest.mark.parametrize("end", ["complete", "cancel", "throw", "expire"])
def test_a_job_that_ended_leaves_nothing_in_memory(end: str) -> None:
    """64 KiB of each finished job would fill a leader's memory within the hour."""
    p = Partition(rules())
    p.create("k", expires_at=p.now + LEASE)
    p.start("k")
    store(p)
    assert p.state.checkpoints
    match end:
        case "complete":
            p.complete("k")
        case "cancel":
            p.send(cmd.CancelJob("k", ""))
        case "throw":
            p.send(cmd.ThrowError("k", 0, 1, "E", ""))
        case _:
            p.step(LEASE)
    assert p.where("k") not in (JobState.ACTIVE, None)
    assert p.state.checkpoints == {}


def test_who_may_not_store_is_refused_and_changes_nothing() -> None:
    p = running(checkpoint_bytes_max=20)
    assert refusals(store(p, b"x" * 21)) == [("TOO_LARGE", "21 bytes")]
    assert refusals(store(p, attempt=2)) == [("INVALID", "2")]
    assert refusals(store(p, key="none")) == [("NOT_FOUND", "none")]
    store(p)
    p.step(LEASE)
    assert refusals(store(p, b"late")) == [("STALE_ATTEMPT", "attempt 1")]
    p.fail("k", attempt=2, retry_in_ms=LEASE)
    assert refusals(store(p, b"late", attempt=2)) == [("NOT_ACTIVE", "SCHEDULED")]
    assert p.state.checkpoints == {"k": PAGE}
    p.complete("k", attempt=2)
    assert refusals(store(p, b"late", attempt=2)) == [("ALREADY_COMPLETED", "COMPLETED")]


def test_it_is_a_sign_of_life() -> None:
    """A handler that reports its progress is alive, whatever became of the renewals."""
    p = running()
    p.now += LEASE - 1
    store(p)
    assert p.step(LEASE - 1) == []
    assert only(p.step(1), ev.JobTimedOut)


def test_it_takes_nothing_from_a_longer_extension() -> None:
    p = running()
    p.extend("k", lease_ms=5 * LEASE)
    store(p)
    assert p.step(5 * LEASE - 1) == []
    assert only(p.step(1), ev.JobTimedOut)


def test_it_starts_no_attempt() -> None:
    """Who runs it isn't known from it, so a takeover could not be told from a repeat."""
    p = Partition(rules())
    p.create("k", lease_ms=LEASE)
    store(p)
    assert "k" in p.state.unclaimed
    assert p.step(2 * LEASE) == []
    check_consistent(p.machine)


def test_the_longest_job_and_checkpoint_fit_into_one_activation() -> None:
    p = Partition(rules())
    headers = {f"h{n:02}": "v" * 253 for n in range(64)}
    p.create("k" * 512, variables=b"x" * 900_000, correlation_id="c" * 512, headers=headers)
    p.start("k" * 512)
    store(p, b"y" * 65_536, key="k" * 512)
    p.fail("k" * 512, retry_in_ms=0)
    assert len(p.activations) == 2
    assert len(encode(p.activations[1][2])) > 980_000
    assert p.bugs == []


def test_it_is_part_of_the_state_and_of_its_copies() -> None:
    """Else a leader from a snapshot hands the job out as if nothing had been done."""
    p = running()
    empty = p.machine.state_hash()
    store(p)
    with_page = p.machine.state_hash()
    assert len({empty, with_page}) == 2
    assert p.replayed().state_hash() == with_page
    copied = list(p.machine.copy().records())
    machine = JobMachine(p.rules, p.channels)
    machine.restore(copied)
    assert (machine.state_hash(), machine.state.checkpoints) == (with_page, {"k": PAGE})
    assert [record for name, record in copied if name == CHECKPOINTS] == [{"keys": ["k"], "details": [PAGE]}]


def test_a_copy_under_way_is_not_changed_by_what_is_stored_meanwhile() -> None:
    p = running()
    store(p)
    copy, hashed = p.machine.copy(), p.machine.state_hash()
    store(p, b"later")
    machine = JobMachine(p.rules, p.channels)
    machine.restore(list(copy.records()))
    assert (machine.state_hash(), machine.state.checkpoints) == (hashed, {"k": PAGE})


def test_jobs_without_one_cost_nothing() -> None:
    """A million of them are the usual case."""
    p = Partition(rules())
    for n in range(300):
        p.create(f"k{n}")
    assert p.state.checkpoints == {}
    assert CHECKPOINTS not in {name for name, _ in p.machine.copy().records()}


def test_people_can_read_it() -> None:
    p = running()
    assert "checkpoint" not in (find_job(p.owner, "k") or {})
    store(p)
    found = orjson.dumps((find_job(p.owner, "k") or {})["checkpoint"])
    assert orjson.loads(found) == {"page": 7}
    store(p, b"\xff{")
    assert (find_job(p.owner, "k") or {})["checkpoint_text"] == "\ufffd{"
