"""What goes wrong, and when: chosen by the seed, at a time or in the middle of a chosen step."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from tests.simulation.world.kafka_client import COMMANDS, LOG
from tests.simulation.world.network import Fate
from tests.simulation.world.oracle import ACTIVATIONS
from tests.simulation.world.plans import CALM_AT_S
from tests.simulation.world.pulse import PULSE

if TYPE_CHECKING:
    from tests.simulation.world.world import World

TERM_CALLS: Final = (
    "init", "produce", "end", "abort", "bump", "bounds", "zk-connect", "zk-watch", "zk-get", "zk-children",
    "zk-create", "zk-delete", "zk-sync", "zk-ping", "zk-ensure", "zk-close",
)  # fmt: skip
TERM_POINTS: Final = ("fenced", "verified", "barrier", "replayed", "leading")
SNAPSHOT_CALLS: Final = (
    "snapshots", "snapshot-content", "snapshot-manifest", "snapshot-read", "snapshot-retire", "trim", "peek",
)  # fmt: skip
SNAPSHOT_POINTS: Final = (
    "snapshot-frozen", "snapshot-piece", "snapshot-written", "snapshot-verified", "snapshot-retired",
    "snapshot-trimmed",
)  # fmt: skip
SNAPSHOT_STEPS: Final = (*SNAPSHOT_CALLS, *SNAPSHOT_POINTS)
ENGINE_CALLS: Final = (*TERM_CALLS, *SNAPSHOT_CALLS)
ENGINE_STEPS: Final = (*ENGINE_CALLS, *TERM_POINTS, *SNAPSHOT_POINTS)
"""Calls of a node, and points between its steps, that a fault can strike in."""
SNAPSHOT_SHARE: Final = 0.25
"""How many of the steps that faults wait for are a snapshot's: it has many, and terms are in more danger."""
PATIENCE_S: Final = 3.0
"""A fault that has waited so long for its step strikes wherever things stand."""
SNAPSHOT_PATIENCE_S: Final = 12.0
"""The same for the steps of a snapshot, of which a world takes few; it ends when the world gets calm."""
WORKER_STEPS: Final = ("claim", "done", "send", "heartbeat", "commit-offset", "renew", "unclaim")


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong."""

    kind: str
    at_s: float
    step: str
    """A step that it waits for, from `at_s` on; empty: it doesn't."""
    seconds: float
    wait: int
    """How many such steps are let pass before."""
    pick: float
    """Chooses whom it hits, from 0 to 1."""


KINDS: Final = (
    "crash", "crash", "crash", "freeze", "freeze", "cut kafka", "cut zookeeper", "cut zookeeper", "slow link",
    "slow fetch", "slow fetch", "stuck reader",
    "clock jump", "lost reply", "lost request", "broken call", "unclear commit", "unclear commit",
    "unclear commit", "topic not writable", "all nodes down", "stale zookeeper", "slow markers",
    "zookeeper down", "kafka down", "sigterm", "sigterm", "false death", "pulse cut", "snapshot damaged",
    "worker crash", "worker crash", "worker freeze", "worker cut", "worker sigterm", "store down",
)  # fmt: skip


def faults_of(rng: random.Random) -> list[Fault]:
    """Three to six faults, some of them close together: the later strikes in the recovery of the earlier."""
    found: list[Fault] = []
    at = 2.0 + rng.random() * 3
    for _ in range(rng.randint(3, 6)):
        kind = rng.choice(KINDS)
        found.append(
            Fault(
                kind,
                at,
                _step_for(kind, rng) if rng.random() < 0.6 else "",
                rng.choice((0.3, 1.0, 2.5, 6.0)) * (0.5 + rng.random()),
                int(rng.random() * 4),
                rng.random(),
            )
        )
        at += rng.random() * (0.6 if rng.random() < 0.4 else 5.0)
        at = min(at, CALM_AT_S - 2)
    return found


def _step_for(kind: str, rng: random.Random) -> str:
    if kind.startswith("worker"):
        return rng.choice(WORKER_STEPS)
    if rng.random() < SNAPSHOT_SHARE:
        return rng.choice(SNAPSHOT_STEPS)
    return rng.choice(TERM_CALLS + TERM_POINTS)


class Fates:
    """Carries the faults out."""

    def __init__(self, world: World, faults: list[Fault]) -> None:
        self._world = world
        self._armed: list[list[object]] = []
        self.counts: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()
        """Steps that processes came to."""
        self.struck: Counter[str] = Counter()
        """Steps that a fault struck in."""
        for fault in faults:
            if fault.step:
                world.scheduler.at(fault.at_s, partial(self._arm, fault))
            else:
                world.scheduler.at(fault.at_s, partial(self._strike, fault, ""))

    def _arm(self, fault: Fault) -> None:
        armed: list[object] = [fault, 0 if fault.step in SNAPSHOT_STEPS else fault.wait]
        self._armed.append(armed)
        patience_s = PATIENCE_S
        if fault.step in SNAPSHOT_STEPS:
            patience_s = max(PATIENCE_S, min(SNAPSHOT_PATIENCE_S, CALM_AT_S - fault.at_s))
        self._world.scheduler.after(patience_s, partial(self._give_up_waiting, fault, armed))

    def _give_up_waiting(self, fault: Fault, armed: list[object]) -> None:
        if any(armed is each for each in self._armed):
            self._armed = [each for each in self._armed if each is not armed]
            self._strike(fault, "")

    def step(self, who: str, what: str) -> None:
        """A process is at a step; a fault may have waited for it. Called outside of fibers."""
        self.seen[what] += 1
        for armed in self._armed:
            fault = armed[0]
            assert isinstance(fault, Fault)
            if fault.step == what and _fits(fault, who):
                left = armed[1]
                assert isinstance(left, int)
                armed[1] = left - 1
                if left <= 0:
                    self._armed = [each for each in self._armed if each is not armed]
                    self._strike(fault, who)
                return

    def calm(self) -> None:
        """No fault waits any longer."""
        self._armed.clear()

    def _strike(self, fault: Fault, who: str) -> None:
        world = self._world
        if world.calm:
            return
        worker = fault.kind.startswith("worker") or fault.kind == "store down"
        pool = world.workers if worker else world.nodes
        names = sorted(name for name, each in pool.items() if each.process.alive)
        if not names:
            return
        if not who:
            leaders = [name for name in names if not worker and world.nodes[name].leading]
            choice = leaders if leaders and fault.pick < 0.7 else names
            who = choice[int(fault.pick * 7919) % len(choice)]
        else:
            self.struck[fault.step] += 1
        self.counts[fault.kind] += 1
        world.scheduler.note("fault", f"{fault.kind} of {who} for {fault.seconds:.2f} s (at {fault.step!r})")
        _ACTIONS[fault.kind](world, who, fault)


def _fits(fault: Fault, who: str) -> bool:
    return who.startswith("w") == fault.kind.startswith("worker") and who != "client"


# --- What each does ---


def _crash(world: World, who: str, fault: Fault) -> None:
    world.crash(who, fault.seconds)


def _freeze(world: World, who: str, fault: Fault) -> None:
    world.freeze(who, fault.seconds)


def _cut(server: str) -> Callable[[World, str, Fault], None]:
    def cut(world: World, who: str, fault: Fault) -> None:
        world.network.cut(who, server)
        world.scheduler.after(fault.seconds * 1.5, partial(world.network.heal, who, server))

    return cut


def _worker_cut(world: World, who: str, fault: Fault) -> None:
    _cut("kafka" if fault.pick < 0.5 else "store")(world, who, fault)


def _down(server: str) -> Callable[[World, str, Fault], None]:
    def down(world: World, who: str, fault: Fault) -> None:
        everybody = [*world.nodes, *world.workers, "client"]
        for name in sorted(everybody):
            _cut(server)(world, name, fault)

    return down


def _slow(world: World, who: str, fault: Fault) -> None:
    server = "kafka" if fault.pick < 0.5 else "zookeeper"
    link = world.network.link(who, server)
    link.slow_s = 0.3 + fault.pick

    def mend() -> None:
        link.slow_s = 0.0

    world.scheduler.after(fault.seconds * 2, mend)


def _slow_fetch(world: World, who: str, fault: Fault) -> None:
    """Whoever stands by falls behind; often all do."""
    names = [who] if fault.pick < 0.3 else sorted(world.nodes)
    for name in names:
        world.network.link(name, "kafka").slow_fetch_s = 0.2 + fault.pick * 2

    def mend() -> None:
        for name in names:
            world.network.link(name, "kafka").slow_fetch_s = 0.0

    world.scheduler.after(fault.seconds * 3, mend)


def _stuck_reader(world: World, who: str, fault: Fault) -> None:
    """The readers that there are never get anything again: nobody mends them, and no error tells."""
    for topic in ((LOG,), (COMMANDS,), (LOG, COMMANDS))[int(fault.pick * 3)]:
        world.network.link(who, "kafka").readers_stuck_at[topic] = world.scheduler.now


def _jump(world: World, who: str, fault: Fault) -> None:
    by = 3600.0 if fault.pick < 0.5 else -3600.0
    world.wall_offsets[who] = world.wall_offsets.get(who, 0.0) + by
    world.nodes[who].process.wall_offset = world.wall_offsets[who]


def _doom(**fate: bool) -> Callable[[World, str, Fault], None]:
    def doom(world: World, who: str, fault: Fault) -> None:
        what = fault.step if fault.step in ENGINE_CALLS else ENGINE_CALLS[int(fault.pick * len(ENGINE_CALLS))]
        for _ in range(1 + int(fault.pick * 10) % 2):
            world.network.doom(who, what, Fate(**fate))

    return doom


def _unclear(world: World, who: str, fault: Fault) -> None:
    ways = ("applied", "lost", "late", "late")
    count = 1 + int(fault.pick * 100) % 2
    world.nodes[who].unclear += [ways[int(fault.pick * (1000 + each)) % 4] for each in range(count)]


def _blocked(world: World, who: str, fault: Fault) -> None:
    names = sorted(
        name for name in world.kafka.topics if name in (LOG, COMMANDS) or name.startswith(ACTIVATIONS)
    )
    topic = names[int(fault.pick * len(names))]
    for place in world.kafka.topics[topic]:
        place.blocked = True

    def mend() -> None:
        for place in world.kafka.topics[topic]:
            place.blocked = False

    world.scheduler.after(fault.seconds, mend)


def _all_down(world: World, who: str, fault: Fault) -> None:
    for name in sorted(world.nodes):
        world.crash(name, fault.seconds * (0.5 + fault.pick))


def _stale(world: World, who: str, fault: Fault) -> None:
    world.zookeeper.lag_s = 1.0 + fault.pick * 2

    def mend() -> None:
        world.zookeeper.lag_s = 0.02

    world.scheduler.after(fault.seconds * 3, mend)


def _markers(world: World, who: str, fault: Fault) -> None:
    world.kafka.marker_s = 0.1 + fault.pick

    def mend() -> None:
        world.kafka.marker_s = 0.002

    world.scheduler.after(fault.seconds * 2, mend)


def _damage(world: World, who: str, fault: Fault) -> None:
    for shelf in world.shelves.of:
        shelf.damage()


def _false_death(world: World, who: str, fault: Fault) -> None:
    world.mourn(who)


def _sigterm(world: World, who: str, fault: Fault) -> None:
    world.terminate(who, fault.seconds)


_ACTIONS: Final[dict[str, Callable[[World, str, Fault], None]]] = {
    "crash": _crash,
    "freeze": _freeze,
    "cut kafka": _cut("kafka"),
    "cut zookeeper": _cut("zookeeper"),
    "slow link": _slow,
    "slow fetch": _slow_fetch,
    "stuck reader": _stuck_reader,
    "clock jump": _jump,
    "lost reply": _doom(lose_reply=True),
    "lost request": _doom(lose_request=True),
    "broken call": _doom(fail_at_once=True),
    "unclear commit": _unclear,
    "topic not writable": _blocked,
    "all nodes down": _all_down,
    "stale zookeeper": _stale,
    "slow markers": _markers,
    "zookeeper down": _down("zookeeper"),
    "kafka down": _down("kafka"),
    "sigterm": _sigterm,
    "false death": _false_death,
    "snapshot damaged": _damage,
    "pulse cut": _cut(PULSE),
    "worker crash": _crash,
    "worker freeze": _freeze,
    "worker cut": _worker_cut,
    "worker sigterm": _sigterm,
    "store down": _down("store"),
}
