"""All drills by name: what each does, what it needs, and the times it is held against."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from relevo.testing.drills import brokers, effects, leaders, workers, zookeepers
from relevo.testing.drills.ending import Accounts
from relevo.testing.drills.scene import Scene
from relevo.testing.drills.settings import BROKER_SESSION_S, GROUP_SESSION_S, DrillSettings
from relevo.testing.faults import Kind
from relevo.testing.report import Run, Target

if TYPE_CHECKING:
    from relevo.testing.cluster import DrillCluster

SOAK: Final = "soak"
ALL: Final = "all"

LONG_S: Final = 0.2
"""Reported: if its worker dies, its lease runs out."""


@dataclass(frozen=True)
class Drill:
    """One drill.

    Attributes:
        name: As in `relevo drill NAME`.
        play: One repeat of it: hurt, measure, note what had to hold, put everything back.
        needs: Faults that the cluster must be able to have.
        brokers_min: Brokers without which it proves nothing.
        nodes_min: Nodes likewise.
        summary: What it does, in one line.
        work_s: How long each effect takes, in seconds.
        leases: Whether a share of its jobs takes long, so that leases are under way at its faults.
        calls: Whether somebody makes calls meanwhile that wait for their answer.
        calls_hold: Whether none of these may fail.
        count_up: Asked in the end about the effects of a drill whose effects happen in a database; None: they
            happen nowhere. Such a drill has one repeat.
    """

    name: str
    play: Callable[[Scene, Run], None]
    needs: tuple[Kind, ...]
    summary: str
    brokers_min: int = 1
    nodes_min: int = 1
    work_s: float = DrillSettings.work_s
    leases: bool = True
    calls: bool = False
    calls_hold: bool = False
    count_up: Callable[[Scene, Run, Accounts], None] | None = None

    def settings(self, given: DrillSettings) -> DrillSettings:
        """What this drill makes of the session's settings."""
        return replace(
            given,
            work_s=self.work_s,
            long_every=given.long_every if self.leases else 0,
            calls_per_s=given.calls_per_s if self.calls else 0.0,
        )

    def why_never(self, settings: DrillSettings) -> str | None:
        """Why it can't be run on a cluster that is started with these settings; None where it can."""
        if self.count_up is not None and not settings.effects:
            return "needs a database for its effects: --effects postgresql://… or redis://…"
        if settings.given:
            return None
        if settings.brokers < self.brokers_min:
            return f"needs {self.brokers_min} brokers, and {settings.brokers} is started: --brokers 3"
        return self._too_few(settings.nodes)

    def why_not(self, cluster: DrillCluster) -> str | None:
        """Why it can't be run on this cluster, which runs; None where it can."""
        refusals = [reason for kind in self.needs if (reason := cluster.refusal(kind)) is not None]
        return refusals[0] if refusals else self._too_few(len(cluster.nodes))

    def _too_few(self, nodes: int) -> str | None:
        if nodes >= self.nodes_min:
            return None
        return f"needs {self.nodes_min} nodes, and there is {nodes}: nobody could take over"


_KILL = (Kind.KILL, Kind.START)
_ZOOKEEPER = (Kind.ZOOKEEPER_STOP, Kind.ZOOKEEPER_START)
DRILLS: Final = {
    drill.name: drill
    for drill in (
        Drill("leader-kill", leaders.leader_kill, _KILL, "kill -9 of a leader", nodes_min=2),
        Drill(
            "leader-freeze",
            leaders.leader_freeze,
            (Kind.FREEZE, Kind.THAW),
            "SIGSTOP of a leader, later SIGCONT",
            nodes_min=2,
        ),
        Drill(
            "zookeeper-cut",
            zookeepers.zookeeper_cut,
            (Kind.CUT_ZOOKEEPER,),
            "a leader cut off from ZooKeeper only",
            nodes_min=2,
        ),
        Drill(
            "zookeeper-down", zookeepers.zookeeper_down, _ZOOKEEPER, "no ZooKeeper for a while", calls=True
        ),
        Drill(
            "zookeeper-down-kill",
            zookeepers.zookeeper_down_kill,
            (*_ZOOKEEPER, *_KILL),
            "the same, a leader killed meanwhile",
            nodes_min=2,
        ),
        Drill(
            "zookeeper-restart",
            zookeepers.zookeeper_restart,
            _ZOOKEEPER,
            "the ensemble's leader killed, or the only server restarted",
            calls=True,
        ),
        Drill(
            "broker-kill",
            brokers.broker_kill,
            (Kind.BROKER_KILL, Kind.BROKER_START),
            "kill -9 of one of three brokers",
            brokers_min=3,
        ),
        Drill("broker-restart", brokers.broker_restart, (Kind.BROKER_RESTART,), "a broker restarted"),
        Drill("worker-kill", workers.worker_kill, (), "kill -9 of a worker", work_s=LONG_S, leases=False),
        Drill(
            "effects",
            effects.kill_workers,
            (),
            "kill -9 of random workers all the time, effects counted in a database",
            leases=False,
            count_up=effects.count_up,
        ),
        Drill(
            "worker-freeze",
            workers.worker_freeze,
            (),
            "SIGSTOP of a worker, later SIGCONT",
            work_s=LONG_S,
            leases=False,
        ),
        Drill(
            "rolling-restart",
            leaders.rolling_restart,
            (Kind.STOP, Kind.START),
            "SIGTERM of each node in turn, and a start",
            nodes_min=2,
            calls=True,
            calls_hold=True,
        ),
    )
}
NAMES: Final = (*(name for name in DRILLS if name != "zookeeper-down-kill"), SOAK, ALL)
"""What can be asked for."""


def chosen(names: Iterable[str]) -> list[str]:
    """The drills that these names stand for, each once, in the order in which they are named first."""
    return list(dict.fromkeys(each for name in names for each in _behind(name)))


def _behind(name: str) -> list[str]:
    if name == ALL:
        return [each.name for each in DRILLS.values() if each.count_up is None]
    return [name, "zookeeper-down-kill"] if name == "zookeeper-down" else [name]


def targets_of(settings: DrillSettings) -> list[Target]:
    """The times that the drills are held against, in milliseconds; none that rests on what isn't known."""
    session = settings.session_timeout_s * 1000
    p50, p99 = (150.0, 500.0) if settings.brokers == 1 else (300.0, 800.0)
    redone = min(settings.lease_s + 1.0, GROUP_SESSION_S) * 1000
    by_brokers = [
        Target("leader-kill", "first_activation_ms", "p50", p50),
        Target("leader-kill", "first_activation_ms", "p99", p99),
        Target("zookeeper-cut", "gap_ms", "p50", p50),
        Target("zookeeper-cut", "gap_ms", "p99", p99),
    ]
    by_session = [Target("leader-freeze", "first_activation_ms", "max", session + 300)]
    return [
        *(by_brokers if settings.brokers else []),
        *(by_session if settings.session_timeout_s else []),
        Target("zookeeper-down", "max_gap_ms", "max", 200),
        Target("zookeeper-down-kill", "replaced_after_return_ms", "max", 1_000),
        Target("zookeeper-restart", "max_gap_ms", "max", 200),
        Target("broker-kill", "broker_gap_ms", "max", (BROKER_SESSION_S + 2.5) * 1000),
        *(
            Target(drill, measure, "max", limit)
            for drill in ("worker-kill", "worker-freeze")
            for measure, limit in (
                ("started_redone_ms", redone),
                # No lease of theirs has begun: only the group can miss the worker.
                ("unreported_redone_ms", GROUP_SESSION_S * 1000),
                ("partitions_taken_up_ms", GROUP_SESSION_S * 1000),
            )
        ),
        Target("rolling-restart", "max_gap_ms", "max", 200),
    ]
