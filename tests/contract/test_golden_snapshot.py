"""The bytes of a snapshot, pinned: what was written once must stay readable.

``python -m tests.contract.test_golden_snapshot`` writes the files that are missing. A new format gets another
file beside these.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import fastavro
import pytest

from relevo_engine.core.digest import StateDigest
from relevo_engine.core.snapshot import ATTEMPTS, CHECKPOINTS, END, FINISHED, HEADER, JOBS
from relevo_engine.snapshot_format import read_records, schema
from relevo_schemas import commands as cmd
from relevo_schemas.files import load_current
from tests.unit.core.harness import START, Partition, rules

FOLDER = Path(__file__).parent
NAMES = (HEADER, JOBS, ATTEMPTS, CHECKPOINTS, FINISHED, END)
FIRST, WITH_CHECKPOINTS = "golden_snapshot_1.avro", "golden_snapshot_2.avro"
"""The first was written before there were checkpoints, both before a job's creation was remembered."""
WITH_CREATIONS = "golden_snapshot_3.avro"
FILES = (FIRST, WITH_CHECKPOINTS, WITH_CREATIONS)


def history(file: str) -> Partition:
    """Something of everything that a snapshot tells."""
    p = before_checkpoints()
    if file != FIRST:
        p.send(cmd.CheckpointJob("k5", 0, 1, b'{"page":7}'))
        p.send(cmd.CheckpointJob("k3", 0, 1, b'"half"'))
    return p


def before_checkpoints() -> Partition:
    p = Partition(rules(window=5))
    for n in range(12):
        p.create(f"k{n}", priority=n % 3, expires_at=START + 10**6, variables=b'{"n":%d}' % n)
    p.create("later", run_at=START + 10**6)
    p.start("k2", worker="w2")
    p.start("k5", worker="w5")
    p.fail("k8", retry_in_ms=60_000, error="not now")
    p.fail("k11", retriable=False, error="never")
    p.complete("k1")
    p.send(cmd.CancelJob("k4", "no"))
    p.send(cmd.ThrowError("k2", 0, 1, "NO_SUCH_USER", "gone"))
    return p


def golden_records(file: str) -> dict[str, list[dict[str, Any]]]:
    """As plain fastavro gives them, by schema."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in NAMES}
    content = io.BytesIO((FOLDER / file).read_bytes())
    item: Any
    for item in fastavro.reader(content, return_record_name=True):
        name, record = item
        found[name.removeprefix("relevo.")].append(record)
    return found


def forget_creations(written: dict[str, list[dict[str, Any]]]) -> None:
    """Make of a snapshot's records what they were before they told of creations."""
    digest = StateDigest()
    for name in (HEADER, JOBS, ATTEMPTS, CHECKPOINTS, FINISHED):
        for record in written[name]:
            if name == JOBS:
                assert all(record.pop("created_seqs"))
            digest.take(name, record)
    written[END] = [{"state_hash": digest.result()}]


@pytest.mark.parametrize("file", FILES)
def test_a_snapshot_that_was_written_once_is_read(file: str) -> None:
    p = history(file)
    machine = p.fresh()
    machine.restore([(FOLDER / file).read_bytes()])
    assert (machine.last_seq, machine.epoch, machine.position) == (len(p.log), 1, p.offset)
    if file != WITH_CREATIONS:
        for job in p.state.jobs.values():
            job.created_seq = 0
    assert machine.state_hash() == p.owner.state_hash()


@pytest.mark.parametrize("file", FILES)
def test_a_snapshot_says_what_it_always_said(file: str) -> None:
    """Its bytes may differ with the version of Zstandard, what they say may not."""
    records = golden_records(file)
    frozen = history(file).owner.freeze()
    pieces = []
    while (piece := frozen.next(1)) is not None:
        pieces.append(piece)
    written: dict[str, list[Any]] = {name: [] for name in NAMES}
    for name, record in read_records(pieces):
        written[name].append(record)
    if file != WITH_CREATIONS:
        forget_creations(written)
    assert written == records
    told = {name for name, found in records.items() if found}
    assert told == {*NAMES} - ({CHECKPOINTS} if file == FIRST else set())


@pytest.mark.parametrize("name", NAMES)
def test_the_schema_file_says_what_each_field_means(name: str) -> None:
    described = load_current(name)
    (used,) = [each for each in schema() if each["name"] == f"relevo.{name}"]
    assert described["doc"]
    assert all(field["doc"] for field in described["fields"])
    assert [(f["name"], f["type"]) for f in used["fields"]] == [
        (f["name"], f["type"]) for f in described["fields"]
    ]


def write_missing() -> None:
    """Write the files that aren't there."""
    for file in FILES:
        if (FOLDER / file).exists():
            continue
        frozen = history(file).owner.freeze()
        with (FOLDER / file).open("wb") as out:
            while (piece := frozen.next(1)) is not None:
                out.write(piece)


if __name__ == "__main__":
    write_missing()
