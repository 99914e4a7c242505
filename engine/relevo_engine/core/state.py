"""`State`: everything a partition knows, made of events alone."""

from __future__ import annotations

import struct
from collections import OrderedDict, deque
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

from relevo_engine.core.job import Finished, Job, JobState
from relevo_engine.core.queues import ReadyQueue
from relevo_engine.core.rules import SharedRules
from relevo_engine.core.timers import Timers

HASH_BYTES: Final = 16
_NUMBERS: Final = struct.Struct("<10qi")


class Lane:
    """The jobs of one type.

    Attributes:
        name: The type.
        queue: Its ready jobs.
        counts: For an open state, how many jobs are in it; for a finished one, how many ever ended so.
    """

    __slots__ = ("counts", "name", "queue")

    def __init__(self, name: str, queue: ReadyQueue) -> None:
        self.name = name
        self.queue = queue
        self.counts: dict[JobState, int] = dict.fromkeys(JobState, 0)


class State:
    """A partition's state. Written by `relevo_engine.core.appliers` only.

    Attributes:
        rules: What applying depends on.
        jobs: Open jobs by key, in the order of their creation.
        lanes: What is known per type.
        waiting: The lanes that have ready jobs, by type.
        timers: When scheduled jobs become due and open jobs expire.
        unclaimed: Activations that nobody has started, oldest first: key to the time of the activation.
        started: Leases of jobs that a worker has started, in milliseconds by key, oldest first.
        finished: What is remembered of finished jobs, by key.
        finished_order: Their keys, oldest first.
        last_seq: Number of the last event, 0 before the first.
        last_at: Its time.
        last_source: Its source.
        epoch: Number of the current term, 0 before the first.
        position: Offset of the first command that no event speaks of.
    """

    __slots__ = (
        "epoch",
        "finished",
        "finished_order",
        "jobs",
        "lanes",
        "last_at",
        "last_seq",
        "last_source",
        "position",
        "rules",
        "started",
        "timers",
        "unclaimed",
        "waiting",
    )

    def __init__(self, rules: SharedRules) -> None:
        self.rules = rules
        self.jobs: dict[str, Job] = {}
        self.lanes: dict[str, Lane] = {}
        self.waiting: dict[str, Lane] = {}
        self.timers = Timers(self.jobs)
        self.unclaimed: OrderedDict[str, int] = OrderedDict()
        self.started: dict[str, int] = {}
        self.finished: dict[str, Finished] = {}
        self.finished_order: deque[str] = deque()
        self.last_seq = 0
        self.last_at = 0
        self.last_source = -1
        self.epoch = 0
        self.position = 0

    def state_of(self, key: str) -> JobState | None:
        """Where the job with ``key`` stands, None where there is none or it is forgotten."""
        job = self.jobs.get(key)
        if job is not None:
            return job.state
        finished = self.finished.get(key)
        return finished[0] if finished is not None else None

    def state_hash(self) -> str:
        """A digest of all that the events determine, as hexadecimal text.

        Equal for equal states, however they were come by. Costs time in proportion to the number of jobs.

        What follows from the rest (queues, timers) and the leader's own memory (leases) don't enter.
        """
        digest = blake2b(digest_size=HASH_BYTES)
        digest.update(
            struct.pack("<5q", self.last_seq, self.last_at, self.last_source, self.epoch, self.position)
        )
        for key in sorted(self.jobs):
            _hash_job(digest, self.jobs[key], self.started.get(key, 0))
        for key in self.finished_order:
            state, at, job_type, attempt = self.finished[key]
            _update(digest, (key, state, job_type), struct.pack("<qi", at, attempt))
        for name in sorted(self.lanes):
            counts = self.lanes[name].counts
            _update(digest, (name,), struct.pack(f"<{len(counts)}q", *(counts[state] for state in JobState)))
        return digest.hexdigest()


def _hash_job(digest: blake2b, job: Job, lease_ms: int) -> None:
    entry = job.entry
    numbers = _NUMBERS.pack(
        job.priority, job.retries, job.failures, job.attempt, job.lease_expiries, job.created_at, job.since,
        job.due_at, entry[1] if entry is not None else 0, lease_ms, job.slot,
    )  # fmt: skip
    digest.update(len(job.body).to_bytes(4, "little"))
    digest.update(job.body)
    _update(digest, (job.state, job.worker, job.cause, job.error), numbers)


def _update(digest: blake2b, texts: Iterable[str], numbers: bytes) -> None:
    for text in texts:
        data = text.encode()
        digest.update(len(data).to_bytes(4, "little"))
        digest.update(data)
    digest.update(numbers)
