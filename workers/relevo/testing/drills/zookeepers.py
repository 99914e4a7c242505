"""ZooKeeper is out of reach: for one leader, for everybody, or for a moment."""

from __future__ import annotations

from typing import Final

from relevo.testing.drills.leaders import await_knows_better, choose_leader, expect_nothing_stale
from relevo.testing.drills.scene import Scene
from relevo.testing.drills.takeovers import await_takeovers, samples_of
from relevo.testing.report import Run

_KILL_BEFORE_RETURN_S: Final = 3.0
_SETTLED_SESSIONS: Final = 3.0
"""So many session timeouts after ZooKeeper is back, whoever was to lose its session has lost it."""


def zookeeper_cut(scene: Scene, run: Run) -> None:
    """A leader is cut off from ZooKeeper only: it works on until its successor's fence, and no longer."""
    victim, epochs = choose_leader(scene, run)
    stale = len(scene.log.stale)
    fault = scene.cluster.cut(victim, from_="zookeeper")
    scene.mark(f"{victim}, leader of {sorted(epochs)}, cut off from ZooKeeper", fault)
    await_takeovers(scene, epochs)
    scene.await_flow()
    run.samples = samples_of(scene, epochs, fault)
    for partition, epoch in epochs.items():
        lasts = [each.wall for each in scene.seen.of(partition) if each.epoch <= epoch]
        worked_on = max(lasts, default=0.0) - fault.at_wall
        # Its session can't have ended before half of the timeout was over.
        run.expect(
            f"the cut-off leader of {partition} worked on",
            worked_on >= scene.settings.session_timeout_s * 500,
            f"its last job was handed out {worked_on:.0f} ms after the cut",
        )
    scene.cluster.mend(victim)
    scene.mark(f"{victim} reaches ZooKeeper again")
    await_knows_better(scene, victim, epochs)
    scene.await_calm(run)
    expect_nothing_stale(scene, run, stale)


def zookeeper_down(scene: Scene, run: Run) -> None:
    """No ZooKeeper for a while: leaders work on, and nobody takes over anything, then and afterwards."""
    run.target = "all ZooKeeper servers"
    terms = len(scene.log.terms)
    scene.mark("ZooKeeper stopped", scene.cluster.stop_zookeeper())
    scene.watch_for(scene.settings.down_s)
    scene.cluster.start_zookeeper()
    scene.mark("ZooKeeper started again")
    scene.watch_for(scene.settings.session_timeout_s * _SETTLED_SESSIONS)
    scene.await_calm(run)
    expect_no_moves(scene, run, terms)


def zookeeper_down_kill(scene: Scene, run: Run) -> None:
    """A leader is killed while there is no ZooKeeper; it is replaced as soon as that answers again."""
    stopped = scene.cluster.stop_zookeeper()
    scene.mark("ZooKeeper stopped", stopped)
    scene.watch_for(max(1.0, scene.settings.down_s - _KILL_BEFORE_RETURN_S))
    victim, epochs = choose_leader(scene, run)
    fault = scene.cluster.kill(victim)
    scene.mark(f"kill -9 {victim}, leader of {sorted(epochs)}", fault)
    scene.watch_for(_KILL_BEFORE_RETURN_S)
    answers = scene.cluster.return_zookeeper()
    scene.mark("ZooKeeper answers again", at_wall=answers)
    await_takeovers(scene, epochs)
    scene.await_flow()
    run.samples = samples_of(scene, epochs, fault)
    firsts = [scene.seen.first_of_term(partition, epoch + 1) for partition, epoch in epochs.items()]
    replaced = [first.wall - answers for first in firsts if first is not None]
    if replaced:
        run.extra["replaced_after_return_ms"] = round(max(replaced), 1)
    scene.cluster.start(victim)
    scene.mark(f"{victim} started again")
    scene.await_calm(run)


def zookeeper_restart(scene: Scene, run: Run) -> None:
    """The ensemble's leader is killed, or the only server restarted: nothing moves."""
    terms = len(scene.log.terms)
    if scene.settings.zookeepers > 1:
        fault = scene.cluster.kill_zookeeper_leader()
        scene.mark(f"kill -9 {fault.target}, leader of the ensemble", fault)
    else:
        fault = scene.cluster.restart_zookeeper()
        scene.mark("ZooKeeper restarted", fault)
    run.target = fault.target
    scene.watch_for(scene.settings.session_timeout_s * _SETTLED_SESSIONS)
    scene.cluster.start_zookeeper()
    scene.await_calm(run)
    expect_no_moves(scene, run, terms)


def expect_no_moves(scene: Scene, run: Run, terms: int) -> None:
    """No partition has changed its leader."""
    moved = scene.log.terms[terms:]
    found = ", ".join(f"partition {term.partition} to {term.node}" for term in moved[:4])
    run.expect("no leadership moved", not moved, found)
