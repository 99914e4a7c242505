"""Jobs that run while something is hurt: their leases, and what became of them.

Most of a drill's jobs are over before anybody would report them as started. A share takes longer
(`relevo.testing.drills.settings.DrillSettings.long_every`), so that leases are under way whenever a leader is
lost: the next one must neither lose such a job nor have it run again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from relevo.testing.arrivals import LogFacts
from relevo.testing.faults import FaultMark, Kind
from relevo.testing.ledger import EffectRun, Moment, Repeat
from relevo.testing.report import Run, spans

HURT: Final = frozenset(
    {
        Kind.KILL,
        Kind.FREEZE,
        Kind.STOP,
        Kind.CUT_ZOOKEEPER,
        Kind.CUT_KAFKA,
        Kind.ZOOKEEPER_STOP,
        Kind.ZOOKEEPER_KILL,
        Kind.BROKER_KILL,
        Kind.BROKER_RESTART,
    }
)
"""Faults that hurt; the others put something back."""


def under_way(log: LogFacts, fault_at: float) -> set[str]:
    """Jobs with a lease that had begun before a fault, and that came to their end after it, or to none.

    Args:
        log: What the job log told.
        fault_at: In milliseconds since the Unix epoch.
    """
    return {
        key
        for key, lease in list(log.leases.items())  # a copy: the watcher goes on
        if lease.at <= fault_at
        and (log.completed[key] >= fault_at if key in log.completed else key not in log.ended_otherwise)
    }


def across_leaders(log: LogFacts) -> set[str]:
    """Jobs whose lease began under one leader, and that came to their end under a later one."""
    return {key for key, lease in list(log.leases.items()) if log.ended_in.get(key, 0) > lease.epoch}


def undisturbed(
    keys: Iterable[str], runs: Mapping[str, Sequence[EffectRun]], hits: Iterable[Moment]
) -> set[str]:
    """Those of the jobs none of whose workers was hurt while it had the job."""
    told = list(hits)
    return {
        key
        for key in keys
        if not any(
            hit.worker == each.worker
            and each.under_way <= hit.over
            and (each.ended is None or each.ended >= hit.at)
            for each in runs.get(key, ())
            for hit in told
        )
    }


def judge_leases(
    runs: Sequence[Run],
    log: LogFacts,
    faults: Collection[FaultMark],
    repeated: Sequence[Repeat],
    ledger_runs: Mapping[str, Sequence[EffectRun]],
    hits: Collection[Moment],
) -> None:
    """Tell each repeat how many started jobs its faults met, and that none of them was run again for it.

    A repeat that met none says that it proved nothing about them. Whether any was lost, the accounts say.

    Args:
        runs: The repeats of one drill, in order.
        log: All that the job log told.
        faults: What was done to the cluster.
        repeated: Effects that were begun again.
        ledger_runs: Runs of handlers by key.
        hits: When workers were killed or frozen.
    """
    # Of a cluster that was given, the log tells of others' jobs, too, which others' faults may have met.
    mine_alone = ledger_runs.keys()
    crossed = across_leaders(log) & mine_alone
    sound = undisturbed(crossed, ledger_runs, hits)
    again = {each.run.key for each in repeated}
    ran_out = log.timed_out_in.keys() & log.leases.keys()
    for run, begin, end in spans(runs):
        marks = [each for each in faults if each.kind in HURT and begin <= each.at_wall < end]
        if not marks:
            continue
        met = set[str]().union(*(under_way(log, each.at_wall) for each in marks)) & mine_alone
        # An end without a completion has no time here: such a job fails the repeat by itself.
        mine = {key for key in crossed if begin <= log.completed.get(key, begin - 1) < end}
        moved = bool(run.samples)
        nothing = not (mine if moved else met)
        run.counts |= {
            "leases_at_a_fault": len(met),
            "leases_across_leaders": len(mine),
            "repeats_that_met_no_lease": int(nothing),
        }
        if nothing:
            whose = "a change of its leader" if moved else "the fault"
            run.notes.append(f"no started job was under way at {whose}: this says nothing about such jobs")
        told = sorted(mine & sound & (again | ran_out))
        run.expect(
            "no job that ran on under a new leader was run again, or lost its lease",
            not told,
            f"{len(told)} were, such as {', '.join(told[:3])}" if told else "",
        )
