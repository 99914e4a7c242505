"""What is measured of a takeover: by those who watch, and by the nodes' own word for the steps between."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from relevo.testing.arrivals import Activations
from relevo.testing.drills.scene import FLOW_S, Scene
from relevo.testing.faults import FaultMark
from relevo.testing.report import Sample
from relevo.testing.waiting import wait_for

STEPS: Final = (
    ("claim", "noticed_at", "claimed_at"),
    ("fence", "claimed_at", "fenced_at"),
    ("verify", "fenced_at", "verified_at"),
    ("barrier", "verified_at", "caught_up_at"),
    ("announce", "caught_up_at", "announced_at"),
    ("first_activation", "announced_at", "first_activation_at"),
)
"""Steps in order: name, and between which two moments each lies."""


def steps_of(takeover: Mapping[str, Any]) -> dict[str, float]:
    """How long each step took that the node told both ends of, in milliseconds."""
    found = {}
    for name, begin, end in STEPS:
        if takeover.get(begin) is not None and takeover.get(end) is not None:
            found[name] = round(takeover[end] - takeover[begin], 2)
    return found


def await_takeovers(scene: Scene, old_epochs: Mapping[int, int], timeout_s: float = FLOW_S) -> None:
    """Wait until the next leader of each partition has decided about a command and handed out a job.

    Args:
        scene: Where.
        old_epochs: The epoch before, by partition.
        timeout_s: The longest wait, in seconds.

    Raises:
        NotInTime: One has not.
    """

    def taken_over() -> bool:
        scene.check()
        return all(
            scene.seen.first_of_term(partition, epoch + 1) is not None
            and scene.log.first_accept(partition, epoch + 1) is not None
            for partition, epoch in old_epochs.items()
        )

    wait_for(taken_over, f"partitions {sorted(old_epochs)} are led by somebody else", timeout_s=timeout_s)


def samples_of(scene: Scene, old_epochs: Mapping[int, int], fault: FaultMark) -> list[Sample]:
    """What each partition went through; call it when `await_takeovers` has returned and jobs flow again.

    Args:
        scene: Where.
        old_epochs: The epoch before the fault, by partition.
        fault: What was done.
    """
    told = scene.cluster.takeovers()
    samples = []
    for partition, epoch in sorted(old_epochs.items()):
        first = scene.seen.first_of_term(partition, epoch + 1)
        accept = scene.log.first_accept(partition, epoch + 1)
        sample = Sample(partition, gap_ms=round(scene.gap_ms(fault.at_monotonic, among=[partition]), 1))
        sample.first_accept_ms = None if accept is None else round(accept - fault.at_wall, 1)
        if first is not None:
            sample.first_activation_ms = round(first.wall - fault.at_wall, 1)
            terms = (each for each in scene.log.terms if each.partition == partition)
            sample.next_leader = next((each.node for each in terms if each.epoch == first.epoch), "")
        # An aborted try may have come before the term that lasted: the first one is what detection is about.
        later = [each for each in told if each["partition"] == partition and each["epoch"] > epoch]
        if later:
            takeover = min(later, key=lambda each: int(each["epoch"]))
            if takeover.get("noticed_at") is not None:
                sample.detect_ms = round(takeover["noticed_at"] - fault.at_wall, 1)
            sample.steps = steps_of(takeover)
            sample.standby = takeover.get("standby")
        samples.append(sample)
    return samples


def moves_of(told: Iterable[Mapping[str, Any]], seen: Activations) -> list[Sample]:
    """Each change of a leader as its partition went through it, for drills in which many are due.

    Args:
        told: Takeovers, as the nodes tell of them.
        seen: What workers were handed.
    """
    samples = []
    for takeover in told:
        partition, epoch = takeover["partition"], takeover["epoch"]
        first = seen.first_of_term(partition, epoch) if epoch else None
        if first is None or first.epoch != epoch:
            continue  # it came to nothing, or to nothing that workers could see
        before = [each.seconds for each in seen.of(partition) if each.seconds < first.seconds]
        samples.append(
            Sample(
                partition,
                gap_ms=round((first.seconds - max(before)) * 1000, 1) if before else None,
                steps=steps_of(takeover),
                standby=takeover.get("standby"),
                next_leader=takeover["node"],
            )
        )
    return samples
