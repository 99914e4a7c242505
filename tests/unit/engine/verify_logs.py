"""Logs to be verified: made by the real core, or written event by event; and ways to damage them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from relevo_engine.verify import LogRecord, LogVerifier, Remembered, VerifyReport
from relevo_partitions.term.barrier import make_barrier
from relevo_schemas import commands as cmd
from relevo_schemas import events as ev
from relevo_schemas.codec import decode, encode, job_spec
from relevo_schemas.delivery import Barrier
from relevo_schemas.records import Command, Event
from tests.unit.core.harness import START, Channels, Partition, keys_of, rules, spec

PARTITIONS = 2
TOPIC = "relevo.log"
STEP = 3
"""Distance of offsets in a made log: those between are transaction markers."""
WINDOW_MS = 15_000
REMEMBERED = Remembered(WINDOW_MS, 4)


class Written:
    """A log of one partition, written event by event; numbers and times go on by themselves."""

    def __init__(self, partition: int = 0, partitions: int = 1, *, first_seq: int = 1) -> None:
        self.partition = partition
        self.partitions = partitions
        self.seq = first_seq - 1
        self.epoch = 0
        self.at = START
        self.records: list[LogRecord] = []

    def add(self, kind: type[Event], key: str = "", **fields: Any) -> int:
        """Append an event; gives its offset."""
        self.seq = fields.pop("seq", self.seq + 1)
        if kind is ev.LeaderElected and "epoch" not in fields:
            self.epoch += 1
        self.epoch = fields.pop("epoch", self.epoch)
        self.at = fields.pop("at", self.at + 1)
        head = (self.seq, self.epoch, self.at, fields.pop("source", -1))
        record_key = fields.pop("record_key", key.encode())
        if kind is ev.JobCreated:
            event: Event = ev.JobCreated(*head, job_spec(key=key, type="email", **fields))
        elif kind is ev.LeaderElected:
            event = ev.LeaderElected(*head, fields.get("node", "n1"), "i1")
        else:
            event = kind(*head, key, **{**DEFAULTS.get(kind, {}), **fields})  # type: ignore[call-arg]
        return self.put(encode(event), record_key)

    def put(self, value: bytes | None, key: bytes | None = b"") -> int:
        """Append any value."""
        offset = len(self.records) * STEP
        self.records.append(LogRecord(self.partition, offset, key, value))
        return offset


DEFAULTS: dict[type[Event], dict[str, Any]] = {
    ev.JobActivated: {"attempt": 1, "slot": 0},
    ev.JobStarted: {"attempt": 1, "worker": "w1", "lease_ms": 1_000},
    ev.JobCheckpointed: {"attempt": 1, "detail": b"{}"},
    ev.JobCompleted: {"attempt": 1, "result": b""},
    ev.JobFailed: {"attempt": 1, "error": "boom", "retries": 1, "retry_at": START + 10_000},
    ev.JobErrored: {"attempt": 1, "code": "NO", "message": "no"},
    ev.JobTimedOut: {"attempt": 1, "cause": "LEASE", "expiries": 1},
    ev.JobIncident: {"attempt": 1, "cause": "RETRIES_EXHAUSTED", "message": "boom"},
    ev.JobRetried: {"retries": 1},
    ev.JobUpdated: {"priority": 1, "retries": 1},
    ev.JobCancelled: {"reason": ""},
    ev.CommandRejected: {"command": "CreateJob", "reason": "INVALID", "expected": "", "found": ""},
}


def verify(
    *logs: Sequence[LogRecord],
    partitions: int = 1,
    start: int = 0,
    remembered: Remembered | None = None,
    expected: Sequence[str] | None = None,
    folder: Path | None = None,
    cached_max: int = 1_000,
) -> VerifyReport:
    """Feed the logs, one after the other, and give the report."""
    with LogVerifier(
        TOPIC, partitions, remembered=remembered, folder=folder, cached_max=cached_max
    ) as verifier:
        for number in range(partitions):
            verifier.begin(number, start)
        for records in logs:
            verifier.take(records)
        if expected is not None:
            verifier.expect(expected)
        return verifier.report()


def renumbered(records: Sequence[LogRecord]) -> list[LogRecord]:
    """The records with offsets as if they had been written so."""
    return [each._replace(offset=index * STEP) for index, each in enumerate(records)]


def is_event(record: LogRecord) -> bool:
    """Whether it is no barrier."""
    return not isinstance(decode(record.value), Barrier)


def events_of(records: Sequence[LogRecord]) -> list[int]:
    """Indexes of the events among the records."""
    return [index for index, each in enumerate(records) if is_event(each)]


def made(random: Random, steps: int, partition: int = 0) -> list[LogRecord]:
    """A log that the real core wrote in a random history, with failovers and barriers."""
    history = Partition(
        rules(
            partition=partition, partitions=PARTITIONS, window=3, lease_expiries_max=2, aging_ms=500,
            redispatch_after_ms=9_000, finished_window_ms=WINDOW_MS, finished_count_max=4, lease_ms_min=100,
        ),
        Channels({"email": PARTITIONS}),
    )  # fmt: skip
    keys = keys_of(partition, PARTITIONS, 8)
    barriers: list[int] = []
    for _ in range(steps):
        _act(random, history, _key(random, history, keys))
        if random.random() < 0.1:
            barriers.append(len(history.log))
    assert not history.bugs
    values = [(write.key, write.value) for write in history.log]
    for index in reversed(barriers):
        barrier = make_barrier(TOPIC, partition, "n1", "i1", str(index))
        values.insert(index, (barrier.key, barrier.value))
    return renumbered([LogRecord(partition, 0, key, value) for key, value in values])


def _key(random: Random, history: Partition, keys: Sequence[str]) -> str:
    """Mostly an open job: a history of refusals teaches little."""
    is_open = list(history.state.jobs)
    return random.choice(is_open if is_open and random.random() < 0.7 else keys)


def _act(random: Random, history: Partition, key: str) -> None:
    job = history.state.jobs.get(key)
    attempt = max(1, job.attempt if job is not None else 1)
    match random.randrange(16):
        case 0 | 1 | 2 | 3:
            run_at = random.choice([0, 0, 0, history.now + 700])
            expires_at = random.choice([0, 0, 0, history.now + 3_000])
            retries = random.randrange(3)
            history.send(
                cmd.CreateJob(
                    spec(
                        key,
                        run_at=run_at,
                        expires_at=expires_at,
                        retries=retries,
                        lease_ms=2_000,
                        backoff_ms=200,
                    )
                )
            )
        case 4:
            history.start(key, attempt)
        case 5 | 6:
            history.complete(key, attempt)
        case 7 | 8:
            history.fail(key, attempt, retriable=random.random() < 0.8)
        case 9:
            history.send(cmd.ThrowError(key, 0, attempt, "NO", "no"))
        case 10:
            commands: list[Command | bytes] = [cmd.CancelJob(key, "enough"), cmd.RetryJob(key, 1), b"garbage"]
            history.send(random.choice(commands))
        case 11:
            history.send(cmd.UpdateJob(key, random.randrange(5), None))
        case 12:
            history.send(cmd.RetryJob(key, 1))
        case 13 | 14:
            history.step(random.choice([1, 300, 4_000, 12_000]))
        case _:
            history.now += random.choice([0, -60_000, 700])
            history.failover()
