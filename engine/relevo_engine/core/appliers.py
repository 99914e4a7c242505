"""What each event does to the state. The only code that writes to it, live and in replay alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from relevo_engine.core.errors import InvariantBroken, OutOfOrder
from relevo_engine.core.job import Job, JobState
from relevo_engine.core.queues import ReadyQueue, rank_of
from relevo_engine.core.state import Lane, State
from relevo_engine.core.timers import DUE, EXPIRY
from relevo_schemas import events as ev
from relevo_schemas.records import Event

FORGET_PER_EVENT: Final = 16
"""Finished keys that one event forgets at most: a pause of a day must not be followed by one of a second."""

NEVER: Final = 1 << 63
"""Later than any time of an event."""

_SCHEDULED: Final = JobState.SCHEDULED
_READY: Final = JobState.READY
_ACTIVE: Final = JobState.ACTIVE
_INCIDENT: Final = JobState.INCIDENT


def apply(state: State, event: Event) -> None:
    """Make ``event`` part of ``state``.

    Raises:
        OutOfOrder: The event doesn't follow the last one. The state is as it was.
        InvariantBroken: The event can't happen to the job as it is. The state must not be used any more.
    """
    applier = _APPLIERS.get(type(event))
    if applier is None:
        raise InvariantBroken(f"{type(event).__name__} is not an event")
    # Each field is read once: events are of many classes, which makes it one of the dearer things here.
    seq, epoch, at, source = event.seq, event.epoch, event.at, event.source
    if (
        seq != state.last_seq + 1
        or epoch != state.epoch
        or epoch < 1
        or at < state.last_at
        or (source < state.position and source != -1)
        or applier is _elected
    ):
        _check_order(state, event)
    if state.keep is not None:
        state.keep(event)
    applier(state, event)
    state.last_seq = seq
    state.last_at = at
    state.last_source = source
    if source >= state.position:
        state.position = source + 1
    if at >= state.forget_at:
        _forget(state, at)


def _check_order(state: State, event: Event) -> None:
    """Raise where ``event`` doesn't follow; a new term and further events of one command do."""
    if event.seq != state.last_seq + 1:
        raise OutOfOrder(f"seq {state.last_seq + 1}", f"seq {event.seq}")
    if isinstance(event, ev.LeaderElected):
        if event.epoch <= state.epoch:
            raise OutOfOrder(f"a term with an epoch above {state.epoch}", f"epoch {event.epoch}")
    elif not state.epoch:
        raise OutOfOrder("LeaderElected as the first event", type(event).__name__)
    elif event.epoch != state.epoch:
        raise OutOfOrder(f"epoch {state.epoch}", f"epoch {event.epoch}")
    if event.at < state.last_at:
        raise OutOfOrder(f"a time of at least {state.last_at}", f"{event.at}")
    source = event.source
    if source < -1 or (source != -1 and source < state.position and source != state.last_source):
        raise OutOfOrder(f"a source of at least {state.position}, or -1", f"source {source}")


# --- Helpers ---


def _open(state: State, event: Any) -> Job:
    job = state.jobs.get(event.key)
    if job is None:
        raise _unfit(state, event)
    return job


def _in(state: State, event: Any, *legal: JobState) -> Job:
    job = state.jobs.get(event.key)
    if job is None or job.state not in legal:
        raise _unfit(state, event)
    return job


def _unfit(state: State, event: Any) -> InvariantBroken:
    """The error of an event that can't happen to its job as it is."""
    job = state.jobs.get(event.key)
    found = f"is {job.state.value}" if job is not None else "is not an open job"
    return InvariantBroken(f"{type(event).__name__} for {event.key!r}, which {found}")


def _leave(state: State, job: Job, lane: Lane) -> None:
    """Take ``job`` out of whatever its state put it into."""
    before = job.state
    lane.counts[before] -= 1
    if before is _READY:
        job.entry = None
        lane.queue.drop()
        if not lane.counts[_READY]:
            del state.waiting[lane.name]
    elif before is _ACTIVE:
        if state.unclaimed.pop(job.key, None) is None:
            del state.started[job.key]
            job.worker = ""
    elif before is _SCHEDULED:
        job.due_at = 0
        state.timers.disarm()
    else:
        job.cause = ""


def _move(state: State, job: Job, to: JobState, at: int) -> Lane:
    lane = state.lanes[job.type]
    _leave(state, job, lane)
    job.state = to
    job.since = at
    lane.counts[to] += 1
    return lane


def _enqueue(state: State, job: Job, lane: Lane, seq: int) -> None:
    """Give a job that is READY its place."""
    entry = (rank_of(job.since, job.priority, state.rules.aging_ms), seq, job.key)
    job.entry = entry
    lane.queue.push(entry)
    if lane.counts[_READY] == 1:
        state.waiting[lane.name] = lane


def _make_ready(state: State, job: Job, event: Event) -> None:
    _enqueue(state, job, _move(state, job, _READY, event.at), event.seq)


def _finish(state: State, event: Any, outcome: JobState, attempt: int) -> None:
    key = event.key
    job = state.jobs.pop(key, None)
    if job is None:
        raise _unfit(state, event)
    lane = state.lanes[job.type]
    _leave(state, job, lane)
    lane.counts[outcome] += 1
    if job.expires_at:
        state.timers.disarm()
    state.finished[key] = (outcome, event.at, lane.name, attempt)
    order = state.finished_order
    order.append(key)
    if len(order) == 1 or len(order) > state.rules.finished_count_max:
        state.forget_at = 0
    if state.checkpoints:
        state.checkpoints.pop(key, None)


def _forget(state: State, at: int) -> None:
    """Forget finished keys that are too old or too many, and say when there is something to forget again."""
    order, finished, rules = state.finished_order, state.finished, state.rules
    for _ in range(FORGET_PER_EVENT):
        if not order:
            state.forget_at = NEVER
            return
        if len(order) <= rules.finished_count_max:
            forget_at = finished[order[0]][1] + rules.finished_window_ms + 1
            if at < forget_at:
                state.forget_at = forget_at
                return
        del finished[order.popleft()]
    state.forget_at = 0


# --- One function per event ---


def _created(state: State, event: ev.JobCreated) -> None:
    spec = event.job
    key = spec.key
    if key in state.jobs or key in state.finished:
        raise InvariantBroken(f"JobCreated for {key!r}, which is there already")
    lane = state.lanes.get(spec.type)
    if lane is None:
        lane = state.lanes[spec.type] = Lane(spec.type, ReadyQueue(state.jobs))
    to = _SCHEDULED if spec.run_at > event.at else _READY
    job = Job(
        key, lane.name, spec.body, spec.priority, spec.retries, spec.expires_at, to, event.at, event.seq
    )
    state.jobs[key] = job
    lane.counts[to] += 1
    if to is _READY:
        _enqueue(state, job, lane, event.seq)
    else:
        job.due_at = spec.run_at
        state.timers.arm(spec.run_at, DUE, key)
    if spec.expires_at:
        state.timers.arm(spec.expires_at, EXPIRY, key)


def _due(state: State, event: ev.JobDue) -> None:
    _make_ready(state, _in(state, event, _SCHEDULED), event)


def _activated(state: State, event: ev.JobActivated) -> None:
    job = state.jobs.get(event.key)
    if job is None or job.state is not _READY:
        raise _unfit(state, event)
    if event.attempt != job.attempt + 1:
        raise InvariantBroken(
            f"JobActivated for {job.key!r} with attempt {event.attempt} after {job.attempt}"
        )
    _move(state, job, _ACTIVE, event.at)
    job.attempt = event.attempt
    job.slot = event.slot
    state.unclaimed[job.key] = event.at


def _running(state: State, event: Any) -> Job:
    """The job of an event that belongs to the attempt under way."""
    job = _in(state, event, _ACTIVE)
    if event.attempt != job.attempt:
        raise InvariantBroken(
            f"{type(event).__name__} for {job.key!r} with attempt {event.attempt} during {job.attempt}"
        )
    return job


def _started(state: State, event: ev.JobStarted) -> None:
    job = _running(state, event)
    state.unclaimed.pop(job.key, None)
    state.started[job.key] = event.lease_ms
    job.worker = event.worker


def _checkpointed(state: State, event: ev.JobCheckpointed) -> None:
    _running(state, event)
    state.checkpoints.pop(event.key, None)  # the last stored stands last
    if event.detail:
        state.checkpoints[event.key] = event.detail


def _completed(state: State, event: ev.JobCompleted) -> None:
    _finish(state, event, JobState.COMPLETED, event.attempt)


def _errored(state: State, event: ev.JobErrored) -> None:
    _running(state, event)
    _finish(state, event, JobState.ERRORED, event.attempt)


def _failed(state: State, event: ev.JobFailed) -> None:
    job = _running(state, event)
    job.failures += 1
    job.retries = event.retries
    job.error = event.error
    job.slot = -1
    if event.retry_at < 0:
        _move(state, job, _INCIDENT, event.at)
    elif event.retry_at <= event.at:
        _make_ready(state, job, event)
    else:
        _move(state, job, _SCHEDULED, event.at)
        job.due_at = event.retry_at
        state.timers.arm(event.retry_at, DUE, job.key)


def _timed_out(state: State, event: ev.JobTimedOut) -> None:
    job = _running(state, event)
    job.lease_expiries = event.expiries
    if event.cause != "LEASE":
        job.slot = -1  # nothing speaks against the slot that it had
    _make_ready(state, job, event)


def _incident(state: State, event: ev.JobIncident) -> None:
    job = _in(state, event, _READY, _INCIDENT)
    if job.state is _READY:
        _move(state, job, _INCIDENT, event.at)
    job.slot = -1
    job.cause = event.cause
    job.error = event.message


def _retried(state: State, event: ev.JobRetried) -> None:
    job = _in(state, event, _INCIDENT, _SCHEDULED)
    job.retries = event.retries
    job.failures = 0
    job.lease_expiries = 0
    _make_ready(state, job, event)


def _updated(state: State, event: ev.JobUpdated) -> None:
    job = _open(state, event)
    job.retries = event.retries
    if job.priority == event.priority:
        return
    job.priority = event.priority
    if job.entry is not None:
        seq = job.entry[1]
        lane = state.lanes[job.type]
        job.entry = None
        lane.queue.drop()
        _enqueue(state, job, lane, seq)


def _cancelled(state: State, event: ev.JobCancelled) -> None:
    _finish(state, event, JobState.CANCELLED, _open(state, event).attempt)


def _expired(state: State, event: ev.JobExpired) -> None:
    _finish(state, event, JobState.EXPIRED, _open(state, event).attempt)


def _elected(state: State, event: ev.LeaderElected) -> None:
    state.epoch = event.epoch


def _rejected(state: State, event: ev.CommandRejected) -> None:
    """Moves the position, nothing else."""


_APPLIERS: Final[dict[type[Event], Callable[[State, Any], None]]] = {
    ev.JobCreated: _created,
    ev.JobDue: _due,
    ev.JobActivated: _activated,
    ev.JobStarted: _started,
    ev.JobCheckpointed: _checkpointed,
    ev.JobCompleted: _completed,
    ev.JobFailed: _failed,
    ev.JobErrored: _errored,
    ev.JobTimedOut: _timed_out,
    ev.JobIncident: _incident,
    ev.JobRetried: _retried,
    ev.JobUpdated: _updated,
    ev.JobCancelled: _cancelled,
    ev.JobExpired: _expired,
    ev.LeaderElected: _elected,
    ev.CommandRejected: _rejected,
}
