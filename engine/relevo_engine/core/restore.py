"""A state made from the records of a copy; see `relevo_engine.core.snapshot`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

from relevo_engine.core.digest import StateDigest
from relevo_engine.core.errors import CopyUnfit
from relevo_engine.core.job import OPEN_STATES, Job, JobState, ReadyEntry
from relevo_engine.core.queues import ReadyQueue, rank_of
from relevo_engine.core.snapshot import ATTEMPTS, CHECKPOINTS, END, FINISHED, FORMAT, HEADER, JOBS
from relevo_engine.core.state import Lane, State
from relevo_engine.core.timers import DUE, EXPIRY, TimerEntry

Fields = Mapping[str, Any]

_STATES: Final = tuple(JobState)
_SCHEDULED, _READY = range(2)
_JOB_COLUMNS_BEFORE: Final = 19
"""Of versions that didn't remember which event had created a job."""


class CopyReader:
    """Goes through the records of a copy, and checks that they are whole and fit each other.

    Attributes:
        header: The first record; empty before it was read.
        state_hash: Of the copy, once it was read to its end.
    """

    def __init__(self) -> None:
        self.header: Fields = {}
        self.state_hash = ""
        self._digest = StateDigest()
        self._read = {JOBS: 0, ATTEMPTS: 0, FINISHED: 0}

    def take(self, name: str, record: Fields) -> None:
        """The next record.

        Raises:
            CopyUnfit: It can't follow the ones before.
        """
        if self.state_hash:
            _unfit("nothing after the end", name)
        if bool(self.header) == (name == HEADER):
            _unfit("the header first, and once", name)
        if name == END:
            self._end(record)
            return
        self._digest.take(name, record)
        if name == HEADER:
            self._begin(record)
        elif name in self._read:
            self._read[name] += len(record["keys"])
        elif name != CHECKPOINTS:
            _unfit("a record of a copy", name)

    def finish(self) -> None:
        """No record follows.

        Raises:
            CopyUnfit: The copy was cut short.
        """
        if not self.state_hash:
            last = "before its first record" if not self.header else f"after {self._read[JOBS]} jobs"
            _unfit("a whole copy", f"it ends {last}")

    def _begin(self, record: Fields) -> None:
        if record["format"] != FORMAT:
            _unfit(f"format {FORMAT}", f"format {record['format']}; a newer version can read it")
        self.header = record

    def _end(self, record: Fields) -> None:
        header = self.header
        for name, field in ((JOBS, "count"), (ATTEMPTS, "attempts"), (FINISHED, "finished")):
            if self._read[name] != header[field]:
                _unfit(f"{header[field]} entries in {name}", str(self._read[name]))
        found = self._digest.result()
        if found != record["state_hash"]:
            _unfit(f"state hash {record['state_hash']}", found)
        self.state_hash = found


class Restoration:
    """Fills an empty state from the records of a copy; what is derived is made anew."""

    def __init__(self, state: State) -> None:
        if state.last_seq or state.jobs:
            raise CopyUnfit("only an empty state can be filled from a copy")
        self._state = state
        self._lanes: list[Lane] = []
        self._ready: dict[str, list[ReadyEntry]] = {}
        self._timers: list[TimerEntry] = []
        self._fillers: dict[str, Callable[[Fields], None]] = {
            HEADER: self._header, JOBS: self._jobs, ATTEMPTS: self._attempts, FINISHED: self._finished,
            CHECKPOINTS: self._checkpoints,
        }  # fmt: skip
        self._waiting: list[str] = []

    def take(self, name: str, record: Fields) -> None:
        """The next record, which a `CopyReader` has let pass.

        Raises:
            CopyUnfit: It doesn't fit the ones before.
        """
        filler = self._fillers.get(name)
        if filler is not None:
            try:
                filler(record)
            except (IndexError, KeyError, ValueError) as error:
                raise CopyUnfit(f"{name} contradicts itself: {error!r}") from error

    def finish(self) -> None:
        """Make what is derived, after the last record.

        Raises:
            CopyUnfit: The parts contradict each other.
        """
        state = self._state
        under_way = sum(lane.counts[JobState.ACTIVE] for lane in self._lanes)
        if len(state.unclaimed) + len(state.started) != under_way:
            _unfit(f"{under_way} attempts under way", str(len(state.unclaimed) + len(state.started)))
        ready = {name for name, entries in self._ready.items() if entries}
        if ready != set(self._waiting) or len(self._waiting) != len(ready):
            _unfit(f"waiting types {sorted(ready)}", str(sorted(self._waiting)))
        for name, entries in self._ready.items():
            state.lanes[name].queue.fill(entries)
        state.waiting.update((name, state.lanes[name]) for name in self._waiting)
        state.timers.fill(self._timers)

    def _header(self, record: Fields) -> None:
        state = self._state
        if record["partitions"] != state.rules.partitions:
            _unfit(f"a cluster of {state.rules.partitions} partitions", str(record["partitions"]))
        state.last_seq, state.last_at, state.last_source = record["seq"], record["at"], record["source"]
        state.epoch, state.position = record["epoch"], record["position"]
        counts = iter(record["type_counts"])
        for name in record["types"]:
            lane = Lane(name, ReadyQueue(state.jobs))
            for each in JobState:
                lane.counts[each] = next(counts)
            state.lanes[name] = lane
            self._lanes.append(lane)
            self._ready[name] = []
        self._waiting = [record["types"][place] for place in record["waiting"]]

    def _jobs(self, record: Fields) -> None:
        """A million of them decide how long a cold start takes, so what can be done by column is."""
        keys, priorities, since = record["keys"], record["priorities"], record["since"]
        names = [lane.name for lane in self._lanes]
        made = list(
            map(
                Job,
                keys,
                [names[place] for place in record["types"]],
                record["bodies"],
                priorities,
                record["retries"],
                record["expires_at"],
                [OPEN_STATES[number] for number in record["states"]],
                record["created_at"],
                _created_seqs(record),
            )
        )
        if since != record["created_at"]:
            for job, at in zip(made, since, strict=True):
                job.since = at
        jobs = self._state.jobs
        before = len(jobs)
        jobs.update(zip(keys, made, strict=True))
        if len(jobs) != before + len(made):
            _unfit("each job once", "a key twice")
        self._places(made, record)
        self._progress(made, record)

    def _places(self, made: list[Job], record: Fields) -> None:
        """Who waits in a queue, and who for a time."""
        ready, aging_ms = self._ready, self._state.rules.aging_ms
        for job, number, due_at, seq in zip(
            made, record["states"], record["due_at"], record["ready_seqs"], strict=True
        ):
            if number == _READY:
                job.entry = entry = (rank_of(job.since, job.priority, aging_ms), seq, job.key)
                ready[job.type].append(entry)
            elif number == _SCHEDULED:
                job.due_at = due_at
                self._timers.append((due_at, DUE, job.key))
        expires_at = record["expires_at"]
        if any(expires_at):
            self._timers += [(at, EXPIRY, job.key) for job, at in zip(made, expires_at, strict=True) if at]

    @staticmethod
    def _progress(made: list[Job], record: Fields) -> None:
        for place, failures, attempt, expiries, slot, worker, cause, error in zip(
            record["changed"], record["failures"], record["attempts"], record["lease_expiries"],
            record["slots"], record["workers"], record["causes"], record["errors"], strict=True,
        ):  # fmt: skip
            job = made[place]
            job.failures, job.attempt, job.lease_expiries, job.slot = failures, attempt, expiries, slot
            job.worker, job.cause, job.error = worker, cause, error

    def _attempts(self, record: Fields) -> None:
        state = self._state
        for key, lease_ms in zip(record["keys"], record["leases"], strict=True):
            job = state.jobs[key]
            if job.state is not JobState.ACTIVE:
                _unfit(f"an attempt of {key!r} under way", f"the job is {job.state.value}")
            if lease_ms < 0:
                state.unclaimed[key] = job.since
            else:
                state.started[key] = lease_ms

    def _checkpoints(self, record: Fields) -> None:
        state = self._state
        for key, detail in zip(record["keys"], record["details"], strict=True):
            if key not in state.jobs or key in state.checkpoints:
                _unfit("one checkpoint of an open job", repr(key))
            state.checkpoints[key] = detail

    def _finished(self, record: Fields) -> None:
        state = self._state
        for key, number, at, lane_at, attempt in zip(
            record["keys"], record["states"], record["ended_at"], record["types"], record["attempts"],
            strict=True,
        ):  # fmt: skip
            if number < len(OPEN_STATES):
                _unfit(f"{key!r} finished", _STATES[number].value)
            state.finished[key] = (_STATES[number], at, self._lanes[lane_at].name, attempt)
            state.finished_order.append(key)


def _created_seqs(record: Fields) -> list[int]:
    """Numbers of the events that created the jobs; 0 where the version that wrote it didn't know them.

    Such a version is told by the count: where the name alone is damaged, nothing else would notice.
    """
    if len(record) == _JOB_COLUMNS_BEFORE:
        return [0] * len(record["keys"])
    found: list[int] = record["created_seqs"]
    return found


def _unfit(expected: str, found: str) -> NoReturn:
    raise CopyUnfit(f"expected {expected}, found {found}")
