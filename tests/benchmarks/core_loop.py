"""The state machine and the codec alone, without I/O, beside what they are held against, in one process.

``python core_loop.py JOBS`` prints one line of JSON with microseconds of processor time, the least of some
repeats: a regression shows in the ratios, whatever machine it is measured on. ``JOBS step|replay|codec`` does
one of them once and prints nothing, to be counted in instructions from outside.

It imports nothing of this repository but the packages themselves, so that it measures another revision too.
"""

from __future__ import annotations

import gc
import io
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import fastavro

from relevo_engine.core.channels import FixedChannels
from relevo_engine.core.rules import Rules
from relevo_engine.machine import PartitionMachine
from relevo_partitions.statemachine import Incoming, Term
from relevo_schemas.codec import decode, encode, job_spec, record_classes
from relevo_schemas.commands import CompleteJob, CreateJob
from relevo_schemas.files import load_current

BATCH: Final = 500
REPEATS: Final = 5
NOW: Final = 1_800_000_000_000
_VARIABLES: Final = b'{"to":"ana@example.com","subject":"hola","template":"order-confirmed"}'.ljust(200)
_HEAD: Final = 10
"""Bytes before the Avro body of a record: a mark and its schema's fingerprint."""


def calibration(rounds: int = 200_000) -> float:
    """Microseconds that this interpreter takes for a thousand rounds of a fixed loop of plain Python."""
    began = time.process_time()
    table: dict[int, int] = {}
    for n in range(rounds):
        key = (n * 2_654_435_761) & 1023
        table[key] = table.get(key, 0) + (n ^ key)
    return (time.process_time() - began) / rounds * 1e9


def _created_seq(nth: int) -> int:
    """Number of the event that creates the ``nth`` job: each batch is created, handed out, completed."""
    first = nth - nth % BATCH
    return 2 + 3 * first + nth % BATCH


class Work:
    """The commands of so many jobs, the log they lead to, and what is measured with both."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        keys = [f"job-{n:08d}" for n in range(jobs)]
        specs = [job_spec(key=key, type="noop", variables=_VARIABLES) for key in keys]
        creates = [(spec.key.encode(), encode(CreateJob(spec))) for spec in specs]
        completes = [
            (key.encode(), encode(CompleteJob(key, _created_seq(n), 1, b"null")))
            for n, key in enumerate(keys)
        ]
        self._batches: list[list[Incoming]] = []
        offset = 0
        for first in range(0, jobs, BATCH):
            for commands in (creates, completes):
                batch = [
                    Incoming(offset + n, *each) for n, each in enumerate(commands[first : first + BATCH])
                ]
                self._batches.append(batch)
                offset += len(batch)
        written = self.step()
        log = [write for write in written if write[0].endswith(".log")]
        self.log = [Incoming(n, write[2], write[3]) for n, write in enumerate(log)]
        self._values: list[bytes] = [write[3] for write in log]
        self.records = [decode(value) for value in self._values]
        self._schemas = {}
        for cls in record_classes():
            record = next((r for r in self.records if type(r) is cls), None)
            if record is not None:
                self._schemas[encode(record)[:_HEAD]] = load_current(cls.__name__)

    @staticmethod
    def _machine() -> PartitionMachine:
        return PartitionMachine(Rules(partition=0, partitions=1), FixedChannels({"noop": 1}))

    def step(self) -> list[Any]:
        """Create and complete all jobs as a leader does, in batches: decide, apply, encode."""
        machine, now = self._machine(), NOW
        written = list(machine.lead(Term("n", "i"), now))
        for batch in self._batches:
            now += 5
            written += machine.step(batch, now)
        return written

    def replay(self) -> None:
        """Apply the log as a standby does."""
        machine = self._machine()
        for first in range(0, len(self.log), BATCH):
            machine.replay(self.log[first : first + BATCH])

    def codec(self) -> None:
        """Read every record of the log, and write it again."""
        for each in self.log:
            decode(each.value)
        for record in self.records:
            encode(record)

    def read(self) -> None:
        """Read every record of the log."""
        for each in self.log:
            decode(each.value)

    def fastavro_read(self) -> None:
        """The same bytes by fastavro alone."""
        reader, schemas = fastavro.schemaless_reader, self._schemas
        for value in self._values:
            stream = io.BytesIO(value)
            stream.seek(_HEAD)
            reader(stream, schemas[value[:_HEAD]], None)


def least(call: Callable[[], object], of: int = REPEATS) -> float:
    """Seconds of processor time of the quickest of some repeats."""
    found = []
    for _ in range(of):
        gc.collect()
        began = time.process_time()
        call()
        found.append(time.process_time() - began)
    return min(found)


def measure(jobs: int) -> dict[str, float]:
    """Everything."""
    work = Work(jobs)
    events = len(work.log)
    plain = min(calibration() for _ in range(REPEATS))
    step_us = least(work.step) / jobs * 1e6
    replay_us = least(work.replay) / events * 1e6
    fastavro_us = least(work.fastavro_read) / events * 1e6
    read_us = least(work.read) / events * 1e6
    codec_us = least(work.codec) / events * 1e6
    return {
        "calibration_us": round(plain, 2),
        "step_us_per_job": round(step_us, 3),
        "step_jobs_per_s": round(1e6 / step_us),
        "step_commands_per_s": round(2e6 / step_us),
        "step_to_calibration": round(step_us / plain, 4),
        "replay_us_per_event": round(replay_us, 3),
        "fastavro_us_per_event": round(fastavro_us, 3),
        "replay_ratio": round(fastavro_us / replay_us, 3),
        "codec_read_ratio": round(fastavro_us / read_us, 3),
        "codec_us_per_event": round(codec_us, 3),
        "codec_to_calibration": round(codec_us / plain, 4),
        "codec_events_per_s": round(1e6 / codec_us),
    }


def main(arguments: Sequence[str]) -> None:
    """Measure, or do one thing once."""
    jobs = int(arguments[0])
    if len(arguments) == 1:
        sys.stdout.write(json.dumps(measure(jobs)) + "\n")
    elif arguments[1] != "nothing":
        {"step": Work.step, "replay": Work.replay, "codec": Work.codec}[arguments[1]](Work(jobs))
    else:
        Work(jobs)


if __name__ == "__main__":
    main(sys.argv[1:])
