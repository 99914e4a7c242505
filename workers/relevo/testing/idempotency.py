"""Runs a handler through every way to get a job twice, and says which ones repeat its effect."""

from __future__ import annotations

import asyncio
import inspect
import textwrap
from collections.abc import Callable, Mapping, Sized
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from relevo.client.requests import LEASE_S, NewJob, new_key
from relevo.dedup.store import DedupStore
from relevo.errors import ConfigurationError, InvalidRequest
from relevo.testing.engine import PATIENCE_S, Engine, loop_runs
from relevo.testing.inmemory.scenarios import MEMORY_FORGETS, NEVER, REMEDIES, SCENARIOS, Scenario, finish
from relevo.testing.inmemory.stores import KeptDedupStore
from relevo.worker.app import JobWorker, WorkerApp
from relevo.worker.execution import Handler
from relevo.worker.worker import JobType

Target: TypeAlias = Handler | WorkerApp | JobWorker
AJob: TypeAlias = NewJob | Mapping[str, Any]
JobMaker: TypeAlias = AJob | Callable[[int], AJob]
Counted: TypeAlias = Any
"""A number, a collection, an awaitable of one, a function that gives one, or a context manager around one."""

_WIDTH: Final = 100


def assert_idempotent(
    handler: Target,
    job: JobMaker,
    effects: Counted,
    *,
    by_correlation_id: bool = False,
    dedup: DedupStore | None = None,
    patience: float = PATIENCE_S,
) -> None:
    """Run a handler through every duplicate there is; its effect must happen exactly once each time.

    Each scenario has an `Engine` of its own: a job that is handed over again, a worker that dies at each of
    its seven steps, a lease that runs out, a failover, a lost completion, a silent dedup store. In a
    coroutine use `assert_idempotent_async`.

    Args:
        handler: A handler, coroutine function or plain, which gets a dedup store that outlives its workers
            (as Redis or a database would be); or an app, with its own store.
        job: A `relevo.NewJob` or a mapping with its arguments, created under another key in each scenario; or
            a function that makes one from the scenario's number, used as it is. It is run at once: ``delay``,
            ``run_at`` and ``expires_at`` are left out.
        effects: What has happened so far: a collection, or a function that returns one or a count (or an
            awaitable of either). Or a context manager, or a function that gives one, which clears things and
            gives one of those: entered around each scenario.
        by_correlation_id: Two jobs with one ``correlation_id`` are one piece of business, so its effect must
            happen once.
        dedup: A store to use in place of the app's.
        patience: How long a handler may take, in seconds of real time.

    Raises:
        AssertionError: A scenario repeats the effect, loses it, or doesn't complete the job: all of them in
            a table, and what to do.
        InvalidRequest: An argument can't be right.
        ConfigurationError: An event loop runs in this thread, or a scenario's fault could not be made happen.
    """
    __tracebackhide__ = True
    if loop_runs():
        raise ConfigurationError(
            "an event loop runs in this thread: await assert_idempotent_async(...) instead"
        )
    trial = _Trial(handler, job, effects, by_correlation_id, dedup, patience)
    with asyncio.Runner() as runner:
        report = runner.run(trial.run())
    if report is not None:
        raise AssertionError(report)


async def assert_idempotent_async(
    handler: Target,
    job: JobMaker,
    effects: Counted,
    *,
    by_correlation_id: bool = False,
    dedup: DedupStore | None = None,
    patience: float = PATIENCE_S,
) -> None:
    """`assert_idempotent` in a coroutine: handlers run in its event loop."""
    __tracebackhide__ = True
    report = await _Trial(handler, job, effects, by_correlation_id, dedup, patience).run()
    if report is not None:
        raise AssertionError(report)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """How a scenario went."""

    scenario: Scenario
    effects: int
    least: int
    most: int
    state: str
    error: str

    @property
    def bad_effects(self) -> bool:
        return not self.least <= self.effects <= self.most

    @property
    def bad_end(self) -> bool:
        return self.state != "COMPLETED" and self.least > 0

    @property
    def bad(self) -> bool:
        return self.bad_effects or self.bad_end

    @property
    def allowed(self) -> str:
        return str(self.most) if self.least == self.most else f"{self.least} to {self.most}"


class _Trial:
    """One handler's way through all scenarios."""

    def __init__(
        self,
        handler: Target,
        job: JobMaker,
        effects: Counted,
        by_correlation_id: bool,
        dedup: DedupStore | None,
        patience: float,
    ) -> None:
        self._make_job = job
        self._effects = effects
        self._patience = patience
        self._business = by_correlation_id
        if isinstance(handler, WorkerApp | JobWorker):
            self._app = handler
            self._dedup = dedup
        else:
            first = self._job(0)
            self._app = WorkerApp()
            self._app.job(first.type)(handler)
            self._dedup = dedup if dedup is not None else KeptDedupStore()
        self._spec = self._type_of(self._job(0).type)

    def _type_of(self, job_type: str) -> JobType:
        types = self._app._workers.types
        found = next((spec for spec in types if spec.type == job_type), None)
        if found is None:
            known = ", ".join(repr(spec.type) for spec in types) or "none"
            raise InvalidRequest(f"the app has no handler for the job's type {job_type!r} (it has: {known})")
        return found

    def _job(self, number: int) -> NewJob:
        """The job for a scenario, with a key that no other has, to be run at once.

        A fault strikes within a scenario, which would be over before a job that waits is handed out.
        """
        made = self._make_job(number) if callable(self._make_job) else self._make_job
        if not isinstance(made, NewJob | Mapping):
            raise InvalidRequest(
                f"job must be a relevo.NewJob, a mapping with its arguments, or a function that makes one; "
                f"not {type(made).__name__}"
            )
        try:
            job = made if isinstance(made, NewJob) else NewJob(**made)
        except TypeError as error:
            raise InvalidRequest(f"job: {str(error).replace('NewJob.__init__() ', '')}") from None
        if job.key is None:
            job = replace(job, key=new_key())
        elif not callable(self._make_job):
            job = replace(job, key=f"{job.key}-{number}-{new_key()}")
        job.spec()
        return replace(job, delay=None, run_at=None, expires_at=None)

    async def run(self) -> str | None:
        """The report, where something is wrong."""
        outcomes = []
        once = self._spec.delivery == "at-most-once"
        for number, scenario in enumerate(SCENARIOS):
            if (scenario.business and not self._business) or (once and not scenario.at_most_once):
                continue
            outcomes.append(await self._play(number, scenario))
        bad = [each for each in outcomes if each.bad]
        return self._report(outcomes, bad) if bad else None

    async def _play(self, number: int, scenario: Scenario) -> _Outcome:
        job = self._job(number)
        lease_s = max(job.lease or LEASE_S, self._spec.lease or 0.0)
        with _context(self._effects) as effects:
            before = await _count(effects)
            async with Engine(patience=self._patience) as engine:
                engine.run(self._app, dedup=self._dedup)
                made = await scenario.play(engine, job)
                await finish(engine, made, lease_s)
                view = engine.job(made)
                pending = [*engine.pending_faults, *["completion"] * engine._world.faults.completions_to_lose]
            seen = await _count(effects) - before
        least = 0 if self._spec.delivery == "at-most-once" else 1
        outcome = _Outcome(scenario, seen, least, 1, view.state, view.error or "")
        if pending and not outcome.bad:
            raise ConfigurationError(
                f"the scenario {scenario.name!r} was not played, so it says nothing: the job ended as "
                f"{view.state}, and no worker has got to the step {pending[0]!r}"
            )
        return outcome

    # Telling

    def _report(self, outcomes: list[_Outcome], bad: list[_Outcome]) -> str:
        name = getattr(self._spec.handler, "__name__", self._spec.type)
        width = max(len(each.scenario.name) for each in outcomes)
        lines = [
            f"{name} is not idempotent: {len(bad)} of {len(outcomes)} scenarios go wrong",
            "",
            f"    {'scenario':{width}}  effects  allowed  job",
        ]
        for each in outcomes:
            mark = "->" if each in bad else "  "
            row = f"{each.scenario.name:{width}}  {each.effects:7}  {each.allowed:>7}  {each.state.lower()}"
            lines.append(f" {mark} {row}")
        return "\n".join([*lines, "", "What to do:", *self._advice(bad)])

    def _advice(self, bad: list[_Outcome]) -> list[str]:
        by_text: dict[str, list[str]] = {}
        for each in bad:
            by_text.setdefault(self._advice_for(each), []).append(each.scenario.name)
        lines = []
        for text, names in by_text.items():
            lines += [f"  - {name}" for name in names]
            lines.append(textwrap.fill(text, _WIDTH, initial_indent="    ", subsequent_indent="    "))
        return lines

    def _advice_for(self, outcome: _Outcome) -> str:
        if not outcome.bad_effects:
            error = f": {outcome.error[:200]}" if outcome.error else ""
            return (
                f"The job ended as {outcome.state}{error}. A handler that meets its own effect must succeed."
            )
        if outcome.effects < outcome.least:
            return NEVER
        if outcome.scenario.remedy == "store" and self._forgets:
            return MEMORY_FORGETS
        return REMEDIES[outcome.scenario.remedy]

    @property
    def _forgets(self) -> bool:
        from relevo.dedup.memory import MemoryDedupStore

        store = self._dedup if self._dedup is not None else self._app._workers._args[3]
        return store is None or type(store) is MemoryDedupStore


def _context(effects: Counted) -> AbstractContextManager[Counted]:
    """What is entered around a scenario, to give what is counted."""
    if hasattr(effects, "__enter__"):
        context: AbstractContextManager[Counted] = effects
        return context
    if callable(effects):
        made = effects()
        if hasattr(made, "__enter__") and not isinstance(made, Sized):
            context = made
            return context
        if inspect.iscoroutine(made):
            made.close()
    return nullcontext(effects)


async def _count(effects: Counted) -> int:
    """How many effects there have been."""
    found = effects() if callable(effects) else effects
    if inspect.isawaitable(found):
        found = await found
    if isinstance(found, Sized):
        return len(found)
    if not isinstance(found, int) or isinstance(found, bool):
        raise InvalidRequest(
            f"effects must be a collection, a count, or a function that returns one; it gave {found!r}"
        )
    return found
