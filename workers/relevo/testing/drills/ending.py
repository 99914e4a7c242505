"""The end of a drill: let every accepted job come to its end, ask the verifier, and settle the accounts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from relevo.testing.arrivals import LogFacts
from relevo.testing.drills.scene import Scene
from relevo.testing.ledger import EffectRun, Moment, Repeat, repeats
from relevo.testing.report import Run, spans
from relevo.testing.waiting import NotInTime, wait_for

DRAIN_S: Final = 180.0
"""The longest wait for the last job, in seconds."""


@dataclass
class Accounts:
    """What the ledger and the job log say at the end of a drill.

    Attributes:
        accepted: When Kafka acknowledged each job, by key.
        lost: Keys that came to no end.
        unhandled: Keys that came to one without a handler's having ended, or to another end than completion.
        repeated: Effects that were begun again.
        verify_ok: The verifier's word.
        violation: Its first complaint.
    """

    accepted: Mapping[str, float]
    lost: frozenset[str]
    repeated: Sequence[Repeat]
    verify_ok: bool
    violation: str = ""
    unhandled: frozenset[str] = frozenset()


def close_books(scene: Scene, moments: Sequence[Moment], *, handled: bool = True) -> Accounts:
    """Stop creating, wait for the last job, and ask everybody.

    Args:
        scene: Where; its load creates nothing afterwards.
        moments: When engine processes were killed or frozen; the crew knows of its own.
        handled: Whether each job is to have run to its end by the ledger, too. Not where an effect and its
            done mark are one transaction: a worker that is killed behind it has noted nothing.
    """
    ledger = scene.crew.ledger
    drain(scene)
    lost = frozenset(key for key in ledger.accepted if not scene.log.ended(key))
    ledger.refresh()
    verdict = verify(scene, ledger.accepted)
    known = ledger.accepted.keys() | ledger.refused.keys()
    return Accounts(
        accepted=dict(ledger.accepted),
        lost=lost,
        repeated=[
            *repeats(ledger.runs, [*moments, *scene.crew.hits], scene.log.completed),
            *strangers(ledger.runs, known, scene.log),
        ],
        verify_ok=bool(verdict.ok),
        violation=str(verdict.violations[0]) if verdict.violations else "",
        unhandled=unhandled(ledger.accepted, ledger.runs, scene.log) if handled else frozenset(),
    )


def unhandled(
    accepted: Collection[str], runs: Mapping[str, Sequence[EffectRun]], log: LogFacts
) -> frozenset[str]:
    """Jobs whose end is the engine's word alone: it says completed, and no handler has come to its end."""
    ran = {key for key, of_job in runs.items() if any(run.ended is not None for run in of_job)}
    return frozenset(
        key for key in accepted if key in log.ended_otherwise or (key in log.completed and key not in ran)
    )


def drain(scene: Scene) -> bool:
    """Stop creating, and wait for the last job; whether it came, and where it didn't, it is told."""
    ledger = scene.crew.ledger
    scene.crew.stop_creating()

    def drained() -> bool:
        scene.check_watchers()
        return all(scene.log.ended(key) for key in ledger.accepted)

    try:
        wait_for(drained, "every accepted job has come to its end", timeout_s=DRAIN_S)
    except NotInTime as error:
        scene.say(str(error))
        return False
    return True


def verify(scene: Scene, accepted: Mapping[str, float]) -> Any:
    """The verifier's report on the whole log and the accepted keys."""
    from relevo_engine.verify import Remembered, verify_log

    settings = scene.settings
    return verify_log(
        scene.cluster.kafka,
        scene.cluster.name,
        kafka_options={name: str(value) for name, value in settings.kafka_options.items()},
        expected_keys=iter(accepted),
        # Nodes that a drill starts are set as they are by themselves.
        remembered=(
            Remembered(settings.finished_window_s * 1000, settings.finished_count_max)
            if settings.given
            else None
        ),
    )


def strangers(runs: Mapping[str, Sequence[EffectRun]], known: Collection[str], log: LogFacts) -> list[Repeat]:
    """Effects of jobs that this load never sent, an earlier drill's: repeats where they had ended before.

    A job that was left open may well be run now: it ends in this drill's part of the log. Of one that had
    ended before, the log refuses the end.
    """
    return [
        Repeat(of_job[0], in_flight=False)
        for key, of_job in runs.items()
        if of_job and key not in known and key in log.ended_before and not log.ended(key)
    ]


def settle(runs: Sequence[Run], accounts: Accounts, *, shared_store: bool) -> None:
    """Give each repeat its part: what was accepted, and repeated, from its beginning to the next one's.

    Args:
        runs: The repeats of one drill, in order.
        accounts: All of it.
        shared_store: Whether all workers had one dedup store. Where each has its own, one that dies or sleeps
            can't know what the others do, and a repeat of its doing is counted and breaks no promise.
    """
    for run, begin, end in spans(runs):
        mine = {key for key, at in accounts.accepted.items() if begin <= at < end}
        repeated = [each for each in accounts.repeated if begin <= each.run.begun < end]
        run.jobs = len(mine)
        run.lost = len(mine & accounts.lost)
        run.effects_repeated = len(repeated)
        run.effects_repeated_in_flight = sum(each.in_flight for each in repeated)
        run.verify_ok = accounts.verify_ok
        idle = sorted(mine & accounts.unhandled)
        told = f"{len(idle)} were not, such as {', '.join(idle[:3])}" if idle else ""
        run.expect("every job was completed, and had been handled before", not idle, told)
        astray = [each.run.key for each in repeated if not each.in_flight]
        told = f"{len(astray)} were, such as {', '.join(astray[:3])}" if astray else ""
        if shared_store:
            run.expect("no effect was repeated but those that a fault caught in the act", not astray, told)
        elif astray:
            run.notes.append(f"effects repeated that no fault caught in the act: {told}")
        if not accounts.verify_ok:
            run.expect("the verifier has nothing to say against the log", False, accounts.violation)
