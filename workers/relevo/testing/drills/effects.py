"""Workers are killed at random all the time, while each job's effect happens in a database that counts."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from relevo.testing.arrivals import LogFacts
from relevo.testing.drills.ending import Accounts
from relevo.testing.drills.scene import Scene
from relevo.testing.drills.settings import DrillSettings
from relevo.testing.effects import effects_at
from relevo.testing.ledger import Ledger, now_ms
from relevo.testing.report import Run
from relevo.testing.waiting import NotInTime

_SLOWER: Final = 5.0
_SLOWER_S: Final = 300.0
"""All of it may take so many times the time of creating, and so long besides."""
_CHANCE: Final = (0.5, 1.5)
_NEARLY_ALL: Final = 0.95


@contextmanager
def database(settings: DrillSettings, say: Callable[[str], None], held: Callable[[], bool]) -> Iterator[str]:
    """Room for one drill's effects where the settings say; its name there.

    Args:
        settings: With what.
        say: Told where the effects stand that are left there for somebody to look at.
        held: Whether everything held: then nothing is left.

    Raises:
        ConfigurationError: No such place is known.
        StoreUnavailable: Nobody answers there.
    """
    name = f"relevo_drill_{os.getpid()}_{int(now_ms()) % 1_000_000_000}"
    effects = effects_at(settings.effects, name)
    effects.prepare()
    try:
        yield name
    except BaseException:
        say(f"the effects are left in {name}, as it was broken off")
        raise
    if held():
        effects.remove()
    else:
        say(f"the effects are left in {name}, for whoever wants to see what went wrong")


def kill_workers(scene: Scene, run: Run) -> None:
    """``kill -9`` of a worker every few seconds, whatever it does just then, until nearly all jobs are done.

    Raises:
        NotInTime: They don't in time.
    """
    settings, ledger = scene.settings, scene.crew.ledger
    chance = random.Random(settings.seed)
    run.target = "any worker"
    deadline = time.monotonic() + settings.jobs / settings.rate * _SLOWER + _SLOWER_S
    while not nearly_done(ledger, scene.log, settings.jobs):
        if time.monotonic() > deadline:
            ended = sum(scene.log.ended(key) for key in ledger.accepted)
            of = f"of the {len(ledger.accepted)} jobs that were accepted ({settings.jobs} there were to be)"
            raise NotInTime(f"{ended} {of} had ended in time")
        scene.watch_for(settings.every_s * chance.uniform(*_CHANCE))
        ledger.refresh()
        workers = enumerate(scene.crew.workers)
        # One that is still starting has nothing to lose, and would never get to work on a slow machine.
        at_work = [number for number, each in workers if scene.crew.name_of(each) in ledger.at_work]
        if not at_work:
            continue
        number = chance.choice(at_work)
        hit = scene.crew.kill_worker(number)
        scene.crew.start_worker(number)
        scene.mark(f"kill -9 worker {number + 1} ({hit.worker}), started again")
    run.counts["kills"] = len(scene.crew.hits)


def nearly_done(ledger: Ledger, log: LogFacts, jobs: int) -> bool:
    """Whether every job was sent, and nearly all that were accepted have ended: others' jobs don't count.

    Args:
        ledger: What the creator noted.
        log: What has ended.
        jobs: How many there are to be.
    """
    if len(ledger.accepted) + len(ledger.refused) < jobs:
        return False
    return sum(log.ended(key) for key in ledger.accepted) >= len(ledger.accepted) * _NEARLY_ALL


def count_up(scene: Scene, run: Run, accounts: Accounts) -> None:
    """Lay the effects that happened beside the jobs that were accepted.

    Args:
        scene: Where; nothing runs any more.
        run: Is told.
        accounts: What ledger and log say.
    """
    effects = effects_at(scene.settings.effects, scene.crew.orders.effects_name)
    ledger = scene.crew.ledger
    run.counts |= {"redelivered": ledger.redelivered, "suppressed": ledger.suppressed}
    otherwise = accounts.accepted.keys() & scene.log.ended_otherwise.keys()
    run.counts["ended_otherwise"] = len(otherwise)
    run.counts["begun_again"] = len(accounts.repeated)
    sent, jobs = len(accounts.accepted) + len(ledger.refused), scene.settings.jobs
    run.expect("every job was sent", sent == jobs, f"{sent} of {jobs} were")
    caught = Counter(each.run.key for each in accounts.repeated if each.in_flight)
    known = accounts.accepted.keys() | ledger.refused.keys()
    # Jobs that an earlier drill has left open are run as well, and are none of this one's.
    counts = effects.counts().items()
    happened = {key: count for key, count in counts if key in known or not scene.log.ended(key)}
    judge(run, accounts, happened, caught, known)
    if effects.exactly_once:
        again = run.counts["repeated"]
        run.expect("every effect happened exactly once", not again, f"{again} were repeated")


def judge(
    run: Run, accounts: Accounts, happened: Mapping[str, int], caught: Mapping[str, int], known: set[str]
) -> None:
    """Count what is missing and what is too much, and say what must not be.

    Args:
        run: Is told.
        accounts: Jobs that were accepted.
        happened: How often each effect did.
        caught: How often a job was begun again because a kill had caught it in flight, by key: so many of
            its effects may be too many.
        known: Keys of all jobs that were sent.
    """
    missing = sorted(key for key in accounts.accepted if not happened.get(key))
    again = {key: count - 1 for key, count in happened.items() if count > 1}
    strange = sorted(key for key in happened if key not in known)
    run.counts |= {
        "effects": sum(happened.values()),
        "missing": len(missing),
        "repeated": sum(again.values()),
        "repeated_in_flight": sum(min(count, caught.get(key, 0)) for key, count in again.items()),
    }
    # Here an effect is one that happened, where other drills know of one that was begun.
    run.effects_repeated, run.effects_repeated_in_flight = (
        sum(again.values()),
        run.counts["repeated_in_flight"],
    )
    run.expect("every accepted job had its effect", not missing, _such_as(missing))
    astray = sorted(key for key, count in again.items() if count > caught.get(key, 0))
    run.expect("no effect happened twice but those in flight at a kill", not astray, _such_as(astray))
    run.expect("no effect is of a job that nobody sent", not strange, _such_as(strange))


def _such_as(keys: list[str]) -> str:
    return f"{len(keys)} jobs, such as {', '.join(keys[:3])}" if keys else ""
