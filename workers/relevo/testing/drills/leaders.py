"""A leader is killed, or frozen; one node after the other is restarted under load."""

from __future__ import annotations

import time
from typing import Final

from relevo.testing.drills.scene import Scene
from relevo.testing.drills.takeovers import await_takeovers, moves_of, samples_of
from relevo.testing.ledger import now_ms
from relevo.testing.report import Run

_CONNECTIONS_S: Final = 60.0


def leader_kill(scene: Scene, run: Run) -> None:
    """``kill -9`` of a node that leads under load; the node is started again afterwards."""
    victim, epochs = choose_leader(scene, run)
    fault = scene.cluster.kill(victim)
    scene.mark(f"kill -9 {victim}, leader of {sorted(epochs)}", fault)
    await_takeovers(scene, epochs)
    scene.await_flow()
    run.samples = samples_of(scene, epochs, fault)
    scene.cluster.start(victim)
    scene.mark(f"{victim} started again")
    scene.await_calm(run)


def leader_freeze(scene: Scene, run: Run) -> None:
    """SIGSTOP until somebody else leads, then SIGCONT: the one that wakes up must write nothing any more."""
    victim, epochs = choose_leader(scene, run)
    stale = len(scene.log.stale)
    fault = scene.cluster.freeze(victim)
    scene.mark(f"SIGSTOP {victim}, leader of {sorted(epochs)}", fault)
    await_takeovers(scene, epochs)
    scene.await_flow()
    run.samples = samples_of(scene, epochs, fault)
    scene.cluster.thaw(victim)
    scene.mark(f"SIGCONT {victim}")
    await_knows_better(scene, victim, epochs)
    scene.await_calm(run)
    expect_nothing_stale(scene, run, stale)


def rolling_restart(scene: Scene, run: Run) -> None:
    """SIGTERM of each node in turn, and a start: no create may fail, and no partition may stand still."""
    run.target = "each node in turn"
    scene.crew.ledger.refresh()
    refused = len(scene.crew.ledger.refused)
    for node in scene.cluster.nodes:
        begin, wall = time.monotonic(), now_ms()
        mark = scene.cluster.stop(node)
        scene.mark(f"SIGTERM {node}", mark)
        scene.await_flow()
        scene.cluster.start(node)
        scene.mark(f"{node} started again")
        scene.await_calm(run)
        run.extra[f"{node}_gap_ms"] = round(scene.gap_ms(begin), 1)
        # Now: a node that ends takes its word of what it took over along.
        run.samples += moves_of(scene.cluster.takeovers(wall), scene.seen)
    scene.crew.ledger.refresh()
    failed = len(scene.crew.ledger.refused) - refused
    run.expect("every job was accepted", failed == 0, f"{failed} were not")


def choose_leader(scene: Scene, run: Run) -> tuple[str, dict[int, int]]:
    """The node to hurt, another partition's leader in each repeat, and what it leads, with the epochs."""
    partition = scene.choice % len(scene.partitions)
    victim = scene.cluster.await_leader(partition)
    run.target = victim
    epochs = scene.led_by(victim)
    scene.await_lease(epochs)
    return victim, epochs


def await_knows_better(scene: Scene, node: str, old_epochs: dict[int, int]) -> None:
    """Wait until a node that slept or was cut off no longer says that it leads what it led before."""
    from relevo_engine.errors import EngineError

    def knows_better() -> bool:
        try:
            rows = scene.cluster.node(node).api.get("/v1/partitions", {"scope": "local"})["partitions"]
        except EngineError:
            return False
        return not any(
            row.get("role") == "LEADING" and row.get("epoch") == old_epochs.get(row["partition"])
            for row in rows
        )

    scene.cluster.wait_for(knows_better, f"{node} knows that it leads no longer", timeout_s=_CONNECTIONS_S)


def expect_nothing_stale(scene: Scene, run: Run, before: int) -> None:
    """Nothing of an older term stands behind the announcement of a newer one."""
    stale = scene.log.stale[before:]
    run.expect("the old leader wrote nothing after its successor", not stale, "; ".join(stale[:3]))
