"""A copy of a state, taken record by record while events go on changing it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any, Final

from relevo_engine.core.digest import StateDigest
from relevo_engine.core.job import Job, JobState
from relevo_engine.core.state import State
from relevo_schemas.records import Event

FORMAT: Final = 1
"""Version of what the records mean; see ``SnapshotHeader.avsc``."""
BATCH: Final = 256
"""Jobs per record. Part of the format: the digest is over records, so all must cut in the same places."""

HEADER: Final = "SnapshotHeader"
JOBS: Final = "SnapshotJobs"
ATTEMPTS: Final = "SnapshotAttempts"
FINISHED: Final = "SnapshotFinished"
CHECKPOINTS: Final = "SnapshotCheckpoints"
"""Written only where there are any, so that the copy of a state without is what it was before they came."""
END: Final = "SnapshotEnd"

StateRecord = tuple[str, dict[str, Any]]
"""Name of the schema, and the fields in its order."""

NUMBER_OF: Final = {state: number for number, state in enumerate(JobState)}
"""The states as records name them."""

Row = tuple[Any, ...]
_row: Final = attrgetter(
    "key", "type", "body", "state", "priority", "retries", "created_at", "since", "due_at", "expires_at",
    "entry", "created_seq", "failures", "attempt", "lease_expiries", "slot", "worker", "cause", "error",
)  # fmt: skip
_PROGRESS_AT: Final = 12
_NO_PROGRESS: Final = (0, 0, 0, -1, "", "", "")
_JOB_COLUMNS: Final = (
    "keys", "types", "bodies", "states", "priorities", "retries", "created_at", "since", "due_at",
    "expires_at", "ready_seqs", "created_seqs",
)  # fmt: skip
_PROGRESS_COLUMNS: Final = (
    "changed", "failures", "attempts", "lease_expiries", "slots", "workers", "causes", "errors",
)  # fmt: skip


class StateCopy:
    """A state as it was when this was made, while `relevo_engine.core.appliers.apply` goes on changing it.

    What is small is copied at once: some 20 ms at a million jobs. Of the jobs only the keys are; each is read
    when its turn comes, and `keep` has copied those that were about to change before.

    Attributes:
        seq: Number of the last event in the copy.
        epoch: Its epoch.
        position: The state's position.
        count: Open jobs.
    """

    def __init__(self, state: State) -> None:
        self.seq, self.epoch, self.position = state.last_seq, state.epoch, state.position
        self.count = len(state.jobs)
        self._jobs = state.jobs
        self._keys = list(state.jobs)
        self._attempts = [(key, -1) for key in state.unclaimed]
        self._attempts += state.started.items()
        self._checkpoints = list(state.checkpoints.items())
        self._finished = state.finished.copy()
        self._finished_order = list(state.finished_order)
        self._types = {name: number for number, name in enumerate(state.lanes)}
        self._header = self._make_header(state)
        # Jobs stand in the order of their creation and time never goes back: a job that was created before
        # the last one that was read has been read too, and one created after the copy began isn't in it.
        self._read_to = 0
        self._began_at = state.last_at
        self._kept: dict[str, Row] = {}

    def _make_header(self, state: State) -> dict[str, Any]:
        lanes = state.lanes.values()
        return {
            "format": FORMAT,
            "partitions": state.rules.partitions,
            "seq": state.last_seq,
            "at": state.last_at,
            "source": state.last_source,
            "epoch": state.epoch,
            "position": state.position,
            "count": self.count,
            "attempts": len(self._attempts),
            "finished": len(self._finished_order),
            "types": list(self._types),
            "type_counts": [lane.counts[each] for lane in lanes for each in JobState],
            "waiting": [self._types[name] for name in state.waiting],
        }

    def keep(self, event: Event) -> None:
        """Copy the job that ``event`` is about to change, unless that is done, or has no need."""
        job: Job | None = self._jobs.get(getattr(event, "key", ""))
        if job is not None and self._read_to <= job.created_at <= self._began_at:
            self._kept.setdefault(job.key, _row(job))

    @property
    def kept(self) -> int:
        """Jobs that were copied ahead of their turn and still wait for it."""
        return len(self._kept)

    def records(self) -> Iterator[StateRecord]:
        """All records, each made when it is asked for; to be gone through once."""
        digest = StateDigest()
        for name, record in self._before_the_end():
            digest.take(name, record)
            yield name, record
        yield END, {"state_hash": digest.result()}

    def _before_the_end(self) -> Iterator[StateRecord]:
        yield HEADER, self._header
        keys, jobs, kept = iter(self._keys), self._jobs, self._kept
        none: Row = ()
        while batch := list(islice(keys, BATCH)):
            rows = [kept.pop(key, none) or _row(jobs[key]) for key in batch]
            self._read_to = rows[-1][6]
            yield JOBS, self._job_columns(rows)
        for at in range(0, len(self._attempts), BATCH):
            attempts = self._attempts[at : at + BATCH]
            yield ATTEMPTS, {"keys": [key for key, _ in attempts], "leases": [ms for _, ms in attempts]}
        for at in range(0, len(self._checkpoints), BATCH):
            some = self._checkpoints[at : at + BATCH]
            yield CHECKPOINTS, {"keys": [key for key, _ in some], "details": [detail for _, detail in some]}
        for at in range(0, len(self._finished_order), BATCH):
            yield FINISHED, self._finished_columns(self._finished_order[at : at + BATCH])

    def _job_columns(self, rows: Sequence[Row]) -> dict[str, Any]:
        columns: list[list[Any]] = [list(column) for column in zip(*rows, strict=True)]
        types = self._types
        columns[1] = [types[name] for name in columns[1]]
        columns[3] = [NUMBER_OF[state] for state in columns[3]]
        columns[10] = [entry[1] if entry is not None else 0 for entry in columns[10]]
        progress = [
            (place, *row[_PROGRESS_AT:])
            for place, row in enumerate(rows)
            if row[_PROGRESS_AT:] != _NO_PROGRESS
        ]
        changed = zip(*progress, strict=True) if progress else ((),) * len(_PROGRESS_COLUMNS)
        return {
            **dict(zip(_JOB_COLUMNS, columns, strict=False)),
            **dict(zip(_PROGRESS_COLUMNS, map(list, changed), strict=True)),
        }

    def _finished_columns(self, keys: list[str]) -> dict[str, Any]:
        found = [self._finished[key] for key in keys]
        return {
            "keys": keys,
            "states": [NUMBER_OF[state] for state, _, _, _ in found],
            "ended_at": [at for _, at, _, _ in found],
            "types": [self._types[name] for _, _, name, _ in found],
            "attempts": [attempt for _, _, _, attempt in found],
        }


def state_hash(state: State) -> str:
    """A digest of all that the events determine, as hexadecimal text.

    Equal for equal states, however they were come by. Costs time in proportion to the number of jobs.

    What follows from the rest (queues, timers) and the leader's own memory (leases) don't enter.
    """
    for name, record in StateCopy(state).records():
        if name == END:
            found: str = record["state_hash"]
            return found
    raise AssertionError("a copy ends with its hash")
