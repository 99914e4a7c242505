"""A worker is killed, or frozen: others do its jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from relevo.testing.drills.scene import FLOW_S, Scene
from relevo.testing.ledger import EffectRun, Moment
from relevo.testing.report import Run
from relevo.testing.waiting import wait_for

_OWNED_MS: Final = 1_000.0
"""Whose effects a worker has begun within so long before a fault, those partitions were its own."""


def worker_kill(scene: Scene, run: Run) -> None:
    """``kill -9`` of a worker: what it was doing runs elsewhere, and its partitions go to another."""
    number = _await_busy(scene)
    hit = scene.crew.kill_worker(number)
    run.target = hit.worker
    scene.mark(f"kill -9 worker {number + 1}")
    _measure(scene, run, hit)
    scene.crew.start_worker(number)
    scene.mark(f"worker {number + 1} started again")
    scene.crew.await_shared_out()
    scene.await_calm(run)


def worker_freeze(scene: Scene, run: Run) -> None:
    """SIGSTOP of a worker until others have done its jobs, then SIGCONT: it must not do them over."""
    number = _await_busy(scene)
    hit = scene.crew.freeze_worker(number)
    run.target = hit.worker
    scene.mark(f"SIGSTOP worker {number + 1}")
    _measure(scene, run, hit)
    scene.crew.thaw_worker(number)
    scene.mark(f"SIGCONT worker {number + 1}")
    scene.crew.await_shared_out()
    scene.await_calm(run)


def _await_busy(scene: Scene) -> int:
    """Wait until a worker is in the middle of an effect, since a fault between two proves less; its number.

    In each repeat another one, unless there are workers without a partition, which have nothing to do.
    """
    workers = scene.crew.workers
    turn = [(scene.choice + step) % len(workers) for step in range(len(workers))]
    wanted = turn[:1] if len(scene.partitions) >= len(workers) else turn
    names = {number: scene.crew.name_of(workers[number]) for number in wanted}

    def busy() -> list[int]:
        scene.check()
        scene.crew.ledger.refresh()
        return [number for number, name in names.items() if scene.crew.ledger.running(name)]

    return wait_for(busy, f"{' or '.join(names.values())} has something to do", timeout_s=FLOW_S)[0]


def _measure(scene: Scene, run: Run, hit: Moment) -> None:
    """Wait until others do what the worker did, its partitions included, and say how long that took."""
    from relevo_schemas.partitioning import partition_of

    ledger, count = scene.crew.ledger, scene.cluster.partitions
    ledger.refresh()
    started = unfinished(ledger.runs, hit, scene.log.completed)
    recent = [each for runs in ledger.runs.values() for each in runs if each.begun >= hit.at - _OWNED_MS]
    owned = {partition_of(each.key, count) for each in recent if each.worker == hit.worker}

    def all_done() -> bool:
        scene.check()
        ledger.refresh()
        found = taken_up(ledger.runs, ledger.sent, hit, lambda key: partition_of(key, count))
        return owned <= found.keys() and all(scene.log.ended(key) for key in started)

    wait_for(all_done, f"what {hit.worker} had is done by others", timeout_s=FLOW_S)
    # The engine knew of those whose lease it let run out; the others had begun a moment before, or wait for
    # the group to notice.
    reported = {key for _, key in scene.log.timeouts}
    redone, unreported = (
        [each.begun - hit.at for key in keys for each in ledger.runs[key][1:] if each.worker != hit.worker]
        for keys in (started & reported, started - reported)
    )
    found = taken_up(ledger.runs, ledger.sent, hit, lambda key: partition_of(key, count))
    for name, delays in (
        ("started_redone_ms", redone),
        ("unreported_redone_ms", unreported),
        ("partitions_taken_up_ms", [found[each] - hit.at for each in owned]),
    ):
        if delays:
            run.extra[name] = round(max(delays), 1)
    run.notes.append(f"{len(started)} jobs were running on it, partitions {sorted(owned)} were its own")


def taken_up(
    runs: Mapping[str, list[EffectRun]],
    sent: Mapping[str, float],
    hit: Moment,
    partition_of: Callable[[str], int],
) -> dict[int, float]:
    """When another worker first ran a job of each partition that was sent after the fault."""
    found: dict[int, float] = {}
    for key, of_job in runs.items():
        if sent.get(key, 0.0) <= hit.over:
            continue
        for each in of_job:
            if each.worker != hit.worker:
                partition = partition_of(key)
                found[partition] = min(each.begun, found.get(partition, each.begun))
    return found


def unfinished(runs: Mapping[str, list[EffectRun]], hit: Moment, completed: Mapping[str, float]) -> set[str]:
    """Keys of the jobs that a worker had begun and whose completion the log didn't have yet."""
    return {
        key
        for key, of_job in runs.items()
        for each in of_job
        if each.worker == hit.worker
        and each.begun <= hit.over
        and (key not in completed or completed[key] > hit.at)
    }
