"""What both faces of the engine share: everything that needs no waiting."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from relevo import names
from relevo.client.answers import Decision
from relevo.client.client import update_command
from relevo.client.core import WaitFor
from relevo.client.receipts import encode_command
from relevo.client.requests import NewJob, check_key, check_reason, check_retries
from relevo.client.results import JobHandle, JobResult, finish_of
from relevo.dedup.store import DedupStore
from relevo.errors import Closed, InvalidRequest, ResultTimeout
from relevo.events.events import JobEvent
from relevo.stats import WorkerStats, total
from relevo.testing.inmemory.faults import FREEZABLE
from relevo.testing.inmemory.process import WorkerProcess
from relevo.testing.inmemory.views import JobView, job_view, lives
from relevo.testing.inmemory.world import Crew, World
from relevo.worker.app import JobWorker, WorkerApp
from relevo_schemas import commands
from relevo_schemas.events import JobCreated
from relevo_schemas.job import JobSpec
from relevo_schemas.records import Command

LAPSE_S = 1.0
SHOWN_MAX = 10


class Face:
    """An engine in memory, as far as its calls return at once."""

    _opened: World | None = None
    _closed = False

    @property
    def _world(self) -> World:
        if self._opened is None:
            state = "was closed" if self._closed else "is not open"
            raise Closed(
                f"this engine {state}: use it inside 'async with relevo.testing.Engine() as engine:', "
                f"or 'with' in a test that is no coroutine"
            )
        return self._opened

    # Workers

    def run(self, app: WorkerApp | JobWorker, *, dedup: DedupStore | None = None) -> None:
        """Start a worker process for an app: its handlers, settings and dedup store, without its Kafka.

        A `relevo.MemoryDedupStore` is made anew for each process and forgets with it, as in production;
        any other store is used as it is, and is not closed.

        Args:
            app: A `relevo.WorkerApp` or `relevo.JobWorker` that was not started.
            dedup: A store to use in place of the app's.

        Raises:
            ConfigurationError: It has no handlers, or one of its types is run already.
        """
        self._world.run(app, dedup)

    @property
    def stats(self) -> WorkerStats:
        """Counters of the worker processes that there are now."""
        return total([worker.stats for process in self._world.processes for worker in process.workers])

    # Looking

    @property
    def now(self) -> datetime:
        """The virtual time."""
        return datetime.fromtimestamp(self._world.clock.now_ms / 1_000, UTC)

    @property
    def events(self) -> list[JobEvent]:
        """All events of the log so far, decoded, in the order in which they were written."""
        return self._world.log.events()

    def job(self, job: JobHandle | str) -> JobView:
        """A job as it is now.

        Raises:
            InvalidRequest: There is no such job, or it has ended and was forgotten since.
        """
        key = _key(job)
        known = self._world.leaders.view(key)
        if known is None:
            raise InvalidRequest(_not_there(key, self._world.log.history(key), self._keys_there()))
        return job_view(known, self._life(key))

    def _life(self, job: JobHandle | str) -> list[JobEvent]:
        """The events of one job: of the latest one with the key, or of the one that a handle speaks of."""
        of_key = lives(self._world.log.history(_key(job)))
        if isinstance(job, JobHandle):
            later = [each for each in of_key[1:] if _made_by(each) > job.offset]
            of_key = of_key[: len(of_key) - len(later)]
        return of_key[-1] if of_key else []

    def _keys_there(self) -> list[str]:
        """Keys of jobs that the engine knows; the first ones, to be shown."""
        keys, view = self._world.log.keys(), self._world.leaders.view
        return list(islice((key for key in keys if view(key) is not None), SHOWN_MAX))

    # Commands

    def _create(self, job: NewJob, wait: WaitFor) -> JobHandle:
        names.check_type(job.type)
        self._check_type(job.type)
        return self._send(commands.CreateJob(self._spec(job)), wait)

    def _check_type(self, job_type: str) -> None:
        known = self._world.types
        if job_type in known:
            return
        close = difflib.get_close_matches(job_type, known, 1)
        meant = f"; did you mean {close[0]!r}?" if close else ""
        there = ", ".join(map(repr, sorted(known))) or "none: call engine.run(app) first"
        raise InvalidRequest(
            f"no app of this engine has a handler for job type {job_type!r}{meant} (known: {there}). Where "
            f"its worker is somebody else's, name it: Engine(types=[{job_type!r}])"
        )

    def _spec(self, job: NewJob) -> JobSpec:
        spec = job.spec()
        if job.delay is None:
            return spec
        run_at = self._world.clock.now_ms + round(job.delay * 1_000)
        return replace(job, key=spec.key, delay=None, run_at=run_at).spec()

    def _send(self, command: Command, wait: WaitFor) -> JobHandle:
        if wait not in ("accepted", "decided"):
            raise InvalidRequest(
                f"wait={wait!r}: it is 'accepted' (Kafka has it) or 'decided' (the engine has answered)"
            )
        encode_command(command)
        world = self._world
        key: str = command.job.key if isinstance(command, commands.CreateJob) else command.key  # type: ignore[attr-defined]
        at = world.clock.now_ms
        partition, offset = world.send(key, command)
        handle = JobHandle(key, partition, offset, at)
        if wait == "accepted":
            return handle
        decision = Decision(key, type(command).__name__)
        decision.sent_as(offset)
        for each in world.log.events():
            if each.partition == partition:
                decision.heard(each.offset, each.event)
        found = decision.future.result(0)
        return replace(handle, created=found.created, state=found.state, log_offset=found.at)

    def _cancel(self, job: JobHandle | str, reason: str, wait: WaitFor) -> JobHandle:
        return self._send(commands.CancelJob(_key(job), check_reason(reason)), wait)

    def _retry(self, job: JobHandle | str, retries: int, wait: WaitFor) -> JobHandle:
        return self._send(commands.RetryJob(_key(job), check_retries(retries)), wait)

    def _update(
        self, job: JobHandle | str, priority: int | None, retries: int | None, wait: WaitFor
    ) -> JobHandle:
        return self._send(update_command(_key(job), priority, retries), wait)

    def _result(self, job: JobHandle | str) -> JobResult:
        view = self.job(job)
        for each in self._life(job):
            result = finish_of(each.event)
            if result is not None:
                return result
        raise ResultTimeout(
            f"job {view.key!r} has not ended, it is {view.state}"
            + (f" ({view.error})" if view.error else "")
            + ": let time pass with engine.advance(seconds)"
        )

    # Faults

    def crash_worker(self, after: str) -> None:
        """Let the next worker process that gets to a step die there; a new one takes its place at once.

        The steps are ``read``, ``claim``, ``start`` (the handler is about to begin, and the engine knows),
        ``effect`` (a handler has ended), ``done`` (marked as done in the dedup store), ``complete`` (Kafka
        has acknowledged the completion) and ``commit`` (of its offset). Nothing that comes after it happens;
        claims and leases stay and run out. Coroutine handlers that run then are cancelled; a thread can't be
        killed, so a plain handler that runs then goes on unheard. For a death inside a handler raise
        `WorkerDied` there.

        Raises:
            InvalidRequest: There is no such step.
        """
        self._world.faults.plan(after, "die")

    def freeze_worker(self, after: str) -> None:
        """Let the next worker process that gets to ``start`` or ``effect`` freeze there, until `thaw_worker`.

        It then gives no sign of life: no lease or claim is renewed, nothing is sent.

        Raises:
            InvalidRequest: There is no such step.
        """
        self._world.faults.plan(after, "freeze", FREEZABLE)

    def thaw_worker(self) -> None:
        """Let frozen worker processes go on where they were."""
        for process in self._world.processes:
            if process.frozen:
                process.thaw()

    def rebalance(self) -> None:
        """Give every partition to a new worker process, as after a lost connection to Kafka.

        It reads again whatever isn't committed; the former ones finish the handlers that run in them.
        """
        for crew in self._world.crews:
            self._world.hand_over(crew)

    def failover(self) -> None:
        """Replace the leader of every partition: the new ones rebuild their state from the log by replay."""
        self._world.leaders.failover()

    def lose_completion(self) -> None:
        """Let the next completion get lost: Kafka acknowledges it, and no engine will ever see it."""
        self._world.faults.completions_to_lose += 1

    def lose_store(self, seconds: float) -> None:
        """Let the dedup stores give no answer (`UNKNOWN`) for so many seconds of virtual time."""
        if not seconds > 0:
            raise InvalidRequest(f"seconds must be more than 0, not {seconds!r}")
        self._world.faults.store_silent_until = self._world.clock.monotonic() + seconds

    @property
    def pending_faults(self) -> list[str]:
        """Steps of `crash_worker` and `freeze_worker` that no worker has got to yet."""
        return [fault.step for fault in self._world.faults.planned]

    def _deliver_again(self, job: JobHandle | str) -> None:
        key = _key(job)
        found = self._world.activations(key)
        if not found:
            raise InvalidRequest(
                f"job {key!r} was not handed to a worker yet ({self.job(key).state}): settle or advance first"
            )
        last = max(found, key=_age_of)
        self._world.kafka.append(last.topic(), last.partition(), last.key(), last.value())

    def _freeze_holder(self, job: JobHandle | str) -> tuple[Crew, WorkerProcess, float]:
        """Freeze the process that runs a job; how long its lease and claim still take, in seconds."""
        key = _key(job)
        found = self._world.holder_of(key)
        if found is None:
            raise InvalidRequest(
                f"no worker runs job {key!r} now ({self.job(key).state}), so it has no lease: stop one in "
                f"time with engine.freeze_worker(after='start') before the job is created, or leave the "
                f"handler running with settle(leave_running=True)"
            )
        crew, process = found
        if process.running[key].reported != process.running[key].attempt:
            process.report_started()
            self._world.leaders.step()
        process.frozen = True
        return crew, process, self._lapse_s(crew, key)

    def _lapse_s(self, crew: Crew, key: str) -> float:
        """When lease and claim of a job have ended for certain, in seconds from now."""
        view = self.job(key)
        lease_s = ((view.lease_until or 0) - self._world.clock.now_ms) / 1_000
        claims = [
            worker._claim_s(item.lease_ms)
            for process in crew.processes
            for worker in process.workers
            if (item := worker.gate.running.get(key)) is not None
        ]
        return max(lease_s, *claims) + LAPSE_S


def _key(job: JobHandle | str) -> str:
    return job.key if isinstance(job, JobHandle) else check_key(job)


def _made_by(life: Sequence[JobEvent]) -> int:
    """Offset of the command that created a job."""
    created = life[0].event
    return created.source if isinstance(created, JobCreated) else -1


def _not_there(key: str, history: Sequence[JobEvent], there: Sequence[str]) -> str:
    """Why the engine knows of no such job."""
    ends = (finish for each in reversed(history) if (finish := finish_of(each.event)) is not None)
    ended = next(ends, None)
    if ended is not None:
        return (
            f"job {key!r} ended as {ended.state}, and the engine has forgotten it, as every job a while "
            f"after its end: look before that time passes, or in engine.events"
        )
    others = f"there are {', '.join(map(repr, there))}" if there else "none was created that is remembered"
    return f"there is no job {key!r}: {others}"


def _age_of(message: Any) -> tuple[int, ...]:
    from relevo_schemas.codec import decode
    from relevo_schemas.delivery import Activation

    record = decode(message.value())
    if not isinstance(record, Activation):
        return (0, 0, 0)
    return (record.created_seq, record.attempt, message.offset())


__all__ = ["Face"]
