"""What each command leads to: a function per kind, from the state as it is to the events that follow."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Final, TypeAlias

from relevo_engine.core import checks
from relevo_engine.core.channels import ChannelState
from relevo_engine.core.checks import Fault
from relevo_engine.core.job import Job, JobState
from relevo_engine.core.refusals import Reason
from relevo_engine.core.timeouts import TAKEN_OVER, fell_silent
from relevo_engine.core.turn import Turn
from relevo_schemas import commands as cmd
from relevo_schemas import events as ev
from relevo_schemas.codec import canonical
from relevo_schemas.job import JobSpec
from relevo_schemas.partitioning import partition_of
from relevo_schemas.records import Command, Event

_DOUBLINGS_MAX: Final = 40
"""Enough to pass any longest pause."""


def decide(turn: Turn, command: Command) -> list[Event]:
    """The events that ``command`` leads to; refusals are among them."""
    return _DECIDERS[type(command)](turn, command)


# --- Finding the job ---


def _absent(turn: Turn, key: str) -> Fault:
    """Why there is no open job with ``key``."""
    finished = turn.state.finished.get(key)
    if finished is not None:
        state = finished[0]
        reason = Reason.ALREADY_COMPLETED if state is JobState.COMPLETED else Reason.ALREADY_FINISHED
        return Fault(reason, "an open job", state.value)
    return (
        checks.check_key(turn.rules, key)
        or _elsewhere(turn, key)
        or Fault(Reason.NOT_FOUND, "a job with this key", "none")
    )


def _elsewhere(turn: Turn, key: str) -> Fault | None:
    rules = turn.rules
    if rules.partitions == 1:
        return None
    owner = partition_of(key, rules.partitions)
    if owner == rules.partition:
        return None
    return Fault(
        Reason.WRONG_PARTITION, f"partition {owner} of {rules.partitions}", f"partition {rules.partition}"
    )


_OfAttempt: TypeAlias = cmd.LeaseRef | cmd.CompleteJob | cmd.FailJob | cmd.ThrowError | cmd.CheckpointJob


def _of_other_job(job: Job, told: _OfAttempt) -> Fault | None:
    """Why ``told`` is about another job than ``job``, which has its key; None where it is not, or may not be.

    An attempt of a job that has ended may be late for longer than the engine remembers that job. Attempts of
    the next one with its key count from 1 again.
    """
    if told.created_seq == job.created_seq or not told.created_seq or not job.created_seq:
        return None
    expected = f"the job that event {told.created_seq} created"
    return Fault(Reason.NOT_FOUND, expected, f"the one that event {job.created_seq} created")


def _not_under_way(job: Job, told: _OfAttempt) -> Fault | None:
    """Why the attempt that is told of is not the one that runs now, None where it is."""
    attempt = told.attempt
    if told.created_seq != job.created_seq:
        fault = _of_other_job(job, told)
        if fault is not None:
            return fault
    if attempt == job.attempt and job.state is JobState.ACTIVE:
        return None
    fault = checks.check_attempt(attempt, job.attempt)
    if fault is not None:
        return fault
    if attempt < job.attempt:
        return Fault(Reason.STALE_ATTEMPT, f"attempt {job.attempt}", f"attempt {attempt}")
    return Fault(Reason.NOT_ACTIVE, JobState.ACTIVE.value, job.state.value)


# --- Clients ---


def _create(turn: Turn, command: cmd.CreateJob) -> list[Event]:
    spec = command.job
    fault = _creation_fault(turn, spec)
    if fault is not None:
        return [turn.refuse(command, spec.key, fault)]
    # Copied from here on into every record of the job.
    return [ev.JobCreated(*turn.head(), canonical(spec))]


def _creation_fault(turn: Turn, spec: JobSpec) -> Fault | None:
    key, rules, state = spec.key, turn.rules, turn.state
    if key in state.jobs or key in state.finished:
        return Fault(Reason.ALREADY_EXISTS, "a new key", str(state.state_of(key)))
    fault = checks.check_key(rules, key) or _elsewhere(turn, key) or checks.check_spec(rules, spec)
    if fault is None and spec.type not in state.lanes:
        fault = checks.check_type(spec.type)
    if fault is not None:
        return fault
    channels = turn.channels
    if channels.channel(spec.type).state is ChannelState.MISSING and not channels.may_create(spec.type):
        return Fault(Reason.UNKNOWN_TYPE, "a declared type", spec.type)
    return None


def _cancel(turn: Turn, command: cmd.CancelJob) -> list[Event]:
    if command.key not in turn.state.jobs:
        return [turn.refuse(command, command.key, _absent(turn, command.key))]
    return [ev.JobCancelled(*turn.head(), command.key, checks.cut(command.reason, turn.rules.text_bytes_max))]


def _retry(turn: Turn, command: cmd.RetryJob) -> list[Event]:
    job = turn.state.jobs.get(command.key)
    if job is None:
        return [turn.refuse(command, command.key, _absent(turn, command.key))]
    fault = checks.check_retries(turn.rules, command.retries)
    if fault is None and not _is_retryable(job):
        found = job.state.value if job.state is not JobState.SCHEDULED else "SCHEDULED for its first attempt"
        fault = Fault(Reason.NOT_RETRYABLE, "INCIDENT, or SCHEDULED after a failure", found)
    if fault is not None:
        return [turn.refuse(command, command.key, fault)]
    return [ev.JobRetried(*turn.head(), command.key, command.retries)]


def _is_retryable(job: Job) -> bool:
    return job.state is JobState.INCIDENT or (job.state is JobState.SCHEDULED and job.attempt > 0)


def _update(turn: Turn, command: cmd.UpdateJob) -> list[Event]:
    job = turn.state.jobs.get(command.key)
    if job is None:
        return [turn.refuse(command, command.key, _absent(turn, command.key))]
    priority = command.priority if command.priority is not None else job.priority
    retries = command.retries if command.retries is not None else job.retries
    fault = checks.check_priority(turn.rules, priority) or checks.check_retries(turn.rules, retries)
    if command.priority is None and command.retries is None:
        fault = checks.invalid("priority or retries", "neither")
    if fault is not None:
        return [turn.refuse(command, command.key, fault)]
    return [ev.JobUpdated(*turn.head(), command.key, priority, retries)]


# --- Workers ---


def _complete(turn: Turn, command: cmd.CompleteJob) -> list[Event]:
    key, attempt = command.key, command.attempt
    job = turn.state.jobs.get(key)
    if job is None:
        return [turn.refuse(command, key, _absent(turn, key))]
    fault = checks.check_attempt(attempt, job.attempt) or checks.check_result(turn.rules, command.result)
    if command.created_seq != job.created_seq:
        fault = _of_other_job(job, command) or fault
    if fault is not None:
        return [turn.refuse(command, key, fault)]
    return [ev.JobCompleted(*turn.head(), key, attempt, command.result)]


def _fail(turn: Turn, command: cmd.FailJob) -> list[Event]:
    key, attempt, pause = command.key, command.attempt, command.retry_in_ms
    job = turn.state.jobs.get(key)
    if job is None:
        return [turn.refuse(command, key, _absent(turn, key))]
    fault = _not_under_way(job, command)
    if fault is None and not -1 <= pause <= turn.rules.pause_ms_max:
        fault = checks.invalid(f"retry_in_ms from -1 to {turn.rules.pause_ms_max}", pause)
    if fault is not None:
        return [turn.refuse(command, key, fault)]
    error = checks.cut(command.error, turn.rules.text_bytes_max)
    if command.retriable and job.retries > 0:
        retry_at = turn.at + (pause if pause >= 0 else backoff_ms(job))
        return [ev.JobFailed(*turn.head(), key, attempt, error, job.retries - 1, retry_at)]
    cause = "RETRIES_EXHAUSTED" if command.retriable else "NOT_RETRIABLE"
    return [
        ev.JobFailed(*turn.head(), key, attempt, error, job.retries, -1),
        ev.JobIncident(*turn.head(1), key, attempt, cause, error),
    ]


def backoff_ms(job: Job) -> int:
    """The pause after one more failure of ``job``: doubled for each, bounded, give or take 10 %.

    What is given or taken follows from key and attempt: jobs that failed together come back spread over that
    fifth of the pause, evenly and to the millisecond, and nothing here is left to chance.
    """
    spec = job.spec()
    pause = min(spec.backoff_ms << min(job.failures, _DOUBLINGS_MAX), spec.backoff_max_ms)
    chance = int.from_bytes(blake2b(f"{job.key} {job.attempt}".encode(), digest_size=8).digest())
    return pause - pause // 10 + chance % (pause // 5 + 1)


def _throw(turn: Turn, command: cmd.ThrowError) -> list[Event]:
    key, rules = command.key, turn.rules
    job = turn.state.jobs.get(key)
    fault = _absent(turn, key) if job is None else _not_under_way(job, command)
    fault = fault or checks.check_name(rules, "code", command.code)
    if fault is not None:
        return [turn.refuse(command, key, fault)]
    message = checks.cut(command.message, rules.text_bytes_max)
    return [ev.JobErrored(*turn.head(), key, command.attempt, command.code, message)]


def _checkpoint(turn: Turn, command: cmd.CheckpointJob) -> list[Event]:
    key, attempt, detail = command.key, command.attempt, command.detail
    job = turn.state.jobs.get(key)
    fault = _absent(turn, key) if job is None else _not_under_way(job, command)
    fault = fault or checks.check_checkpoint(turn.rules, detail)
    if fault is not None:
        return [turn.refuse(command, key, fault)]
    return [ev.JobCheckpointed(*turn.head(), key, attempt, detail)]


def _batch_fault(turn: Turn, command: cmd.StartJobs | cmd.ExtendJobs) -> Fault | None:
    if not 1 <= len(command.jobs) <= turn.rules.batch_jobs_max:
        return checks.invalid(f"jobs: 1 to {turn.rules.batch_jobs_max}", f"{len(command.jobs)} jobs")
    return checks.check_name(turn.rules, "worker", command.worker)


def _start(turn: Turn, command: cmd.StartJobs) -> list[Event]:
    fault = _batch_fault(turn, command)
    if fault is not None:
        return [turn.refuse(command, "", fault)]
    turn.readers.heard(command.worker)
    events: list[Event] = []
    taken_over: set[str] = set()
    for ref in command.jobs:
        if ref.key in taken_over:
            fault = Fault(Reason.NOT_ACTIVE, JobState.ACTIVE.value, JobState.READY.value)
            events.append(turn.refuse(command, ref.key, fault, len(events)))
            continue
        nth = len(events)
        _start_one(turn, command, ref, events)
        if isinstance(events[nth], ev.JobTimedOut):
            taken_over.add(ref.key)
    return events


def _extend(turn: Turn, command: cmd.ExtendJobs) -> list[Event]:
    """Leases are no matter of the log: what is accepted moves only the leader's own memory.

    A sign of life of an attempt that nobody has started starts it: its StartJobs went astray, or is behind.
    """
    fault = _batch_fault(turn, command)
    if fault is not None:
        return [turn.refuse(command, "", fault)]
    turn.readers.heard(command.worker)
    events: list[Event] = []
    for ref in command.jobs:
        if ref.key not in turn.state.started:
            _start_one(turn, command, ref, events)
            continue
        job = turn.state.jobs[ref.key]
        lease_ms = ref.lease_ms or job.spec().lease_ms
        fault = _not_under_way(job, ref) or checks.check_lease(turn.rules, lease_ms)
        if fault is None:
            turn.leases.arm(ref.key, turn.at + lease_ms)
        else:
            events.append(turn.refuse(command, ref.key, fault, len(events)))
    return events


def _report_slots(turn: Turn, command: cmd.ReportSlots) -> list[Event]:
    """No matter of the log either: it only moves the leader's own memory."""
    fault = checks.check_name(turn.rules, "worker", command.worker)
    if fault is None and command.type not in turn.state.lanes:
        fault = Fault(Reason.UNKNOWN_TYPE, "a type that has jobs here", checks.brief(command.type))
    if fault is not None:
        return [turn.refuse(command, "", fault)]
    count = turn.channels.channel(command.type).slots
    if len(command.slots) > count > 0:
        return [turn.refuse(command, "", checks.invalid(f"slots: at most {count}", len(command.slots)))]
    slots = [slot for slot in command.slots if 0 <= slot < count]
    turn.readers.report(command.type, command.worker, slots)
    return []


def _start_one(
    turn: Turn, command: cmd.StartJobs | cmd.ExtendJobs, ref: cmd.LeaseRef, events: list[Event]
) -> None:
    """Decide about one item of a batch; what follows goes to ``events``."""
    job = turn.state.jobs.get(ref.key)
    if job is None:
        events.append(turn.refuse(command, ref.key, _absent(turn, ref.key), len(events)))
        return
    lease_ms = ref.lease_ms or job.spec().lease_ms
    fault = _not_under_way(job, ref) or checks.check_lease(turn.rules, lease_ms)
    if fault is not None:
        events.append(turn.refuse(command, ref.key, fault, len(events)))
        return
    if ref.key in turn.state.started and job.worker != command.worker:
        # Whoever started this attempt has died, or lost the partition. Were it just started once more, a job
        # that kills its workers would go from one to the next and never be counted.
        events += fell_silent(turn, ref.key, TAKEN_OVER, len(events))
        return
    head = turn.head(len(events))
    events.append(ev.JobStarted(*head, ref.key, ref.attempt, command.worker, lease_ms))


_DECIDERS: Final[dict[type[Command], Callable[[Turn, Any], list[Event]]]] = {
    cmd.CreateJob: _create,
    cmd.StartJobs: _start,
    cmd.ExtendJobs: _extend,
    cmd.CompleteJob: _complete,
    cmd.FailJob: _fail,
    cmd.ThrowError: _throw,
    cmd.CheckpointJob: _checkpoint,
    cmd.ReportSlots: _report_slots,
    cmd.CancelJob: _cancel,
    cmd.RetryJob: _retry,
    cmd.UpdateJob: _update,
}
