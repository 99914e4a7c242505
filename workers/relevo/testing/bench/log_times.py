"""What the job log says of one run: when its first job was created and its last one completed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import relevo
from relevo.testing.bench.child import ChildError
from relevo_schemas.events import JobCompleted, JobCreated


@dataclass(frozen=True)
class Span:
    """Of one run.

    Attributes:
        created_at: Of its first job, in milliseconds since the Unix epoch.
        completed_at: Of its last completion.
    """

    created_at: int
    completed_at: int

    @property
    def seconds(self) -> float:
        """Between the two; a millisecond at least, which is the clock's step."""
        return max(1, self.completed_at - self.created_at) / 1000


def end_of_log(kafka: str, cluster: str, options: Mapping[str, Any]) -> dict[int, int]:
    """The next offset of each partition of the log."""
    with relevo.JobEvents(kafka, cluster, "now", **options) as events:
        return events.positions


def span_of(
    kafka: str,
    cluster: str,
    options: Mapping[str, Any],
    place: Mapping[int, int],
    run: str,
    jobs: int,
    timeout_s: float,
) -> Span:
    """Read the log from ``place`` until it has the completions of all jobs of a run.

    Args:
        kafka: Bootstrap servers.
        cluster: The cluster's name.
        options: More librdkafka options.
        place: From where, see `end_of_log`.
        run: Prefix of its keys.
        jobs: How many it has.
        timeout_s: How long to wait for them, in seconds.

    Raises:
        ChildError: They aren't there in time, or there are others than were asked for.
    """
    created: set[str] = set()
    completed: set[str] = set()
    first, last = 0, 0
    deadline = time.monotonic() + timeout_s
    with relevo.JobEvents(kafka, cluster, place, kinds=[JobCreated, JobCompleted], **options) as events:
        while len(completed) < jobs:
            if time.monotonic() > deadline:
                raise ChildError(f"the log has {len(completed)} of {jobs} completions after {timeout_s:g} s")
            for each in events.read(0.2):
                if not each.key.startswith(run):
                    continue
                if isinstance(each.event, JobCreated):
                    created.add(each.key)
                    first = min(first or each.event.at, each.event.at)
                else:
                    completed.add(each.key)
                    last = max(last, each.event.at)
    if len(created) != jobs:
        raise ChildError(f"the log has {len(created)} creations of {jobs} jobs")
    return Span(first, last)
