"""Where a drill takes place: the cluster, the load on it, those who watch, and waiting for facts."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from relevo.testing.arrivals import Activations, LogFacts
from relevo.testing.drills.crew import Crew
from relevo.testing.drills.settings import JOB_TYPE, DrillSettings
from relevo.testing.faults import FaultMark
from relevo.testing.ledger import now_ms
from relevo.testing.load import Orders
from relevo.testing.report import Run
from relevo.testing.waiting import NotInTime, wait_for
from relevo.testing.watchers import ActivationWatcher, LogWatcher

if TYPE_CHECKING:
    from relevo.testing.cluster import DrillCluster

FLOW_S: Final = 120.0
"""The longest wait for jobs to flow again, in seconds."""
_SPREAD_S: Final = 45.0
_LEASE_S: Final = 5.0
_CONTROL_S: Final = 2.0
"""How much of the load the control looks at, in seconds."""
_FLOWING: Final = 5
_LONG_PART: Final = 0.25
"""Of what all workers can do at once, so much may be long jobs."""
_EFFECTS_AT_ONCE: Final = 12
"""In each worker, where each takes a connection to a database, which has 100 as a rule."""


@dataclass(frozen=True)
class Mark:
    """Something that happened, for the picture: when, in milliseconds since the Unix epoch, and what."""

    wall: float
    what: str


class Scene:
    """One drill's surroundings: a fresh load and fresh watchers on a cluster that stays.

    Args:
        cluster: The cluster.
        settings: With what.
        folder: For logs and the ledger of this drill.
        say: Told what happens, line by line.
        effects_name: What this drill's effects are called where the settings say that effects happen; empty:
            they happen nowhere.

    Attributes:
        crew: The load's processes.
        seen: Activations.
        log: What the job log told.
        marks: What happened.
        begun: When it began, in milliseconds since the Unix epoch.
        choice: A number that each repeat gets anew; it decides who is hurt.
    """

    def __init__(
        self,
        cluster: DrillCluster,
        settings: DrillSettings,
        folder: Path,
        say: Callable[[str], None],
        effects_name: str = "",
    ) -> None:
        self.cluster = cluster
        self.settings = settings
        self.say = say
        self.marks: list[Mark] = []
        self.begun = now_ms()
        self.choice = 0
        folder.mkdir(parents=True, exist_ok=True)
        self.crew = Crew(
            Orders(
                kafka=cluster.kafka,
                cluster=cluster.name,
                partitions=cluster.partitions,
                type=JOB_TYPE,
                folder=str(folder / "ledger"),
                rate=settings.rate,
                lease_s=settings.lease_s,
                work_s=settings.work_s,
                long_every=_long_every(settings),
                long_s=settings.long_s,
                calls=settings.calls_per_s,
                zookeeper=cluster.zookeeper,
                nodes=[cluster.node(name).address for name in cluster.nodes],
                redis=settings.redis,
                concurrency=_EFFECTS_AT_ONCE if effects_name else Orders.concurrency,
                jobs=settings.jobs if effects_name else 0,
                effects=settings.effects if effects_name else "",
                effects_name=effects_name,
                options=settings.kafka_options,
            ),
            folder,
            settings.workers,
        )
        options = settings.kafka_options
        self._activation_watcher = ActivationWatcher(cluster.kafka, cluster.name, JOB_TYPE, options)
        self._log_watcher = LogWatcher(cluster.kafka, cluster.name, options)
        self._closing = ExitStack()

    def __enter__(self) -> Self:
        """Start to watch, then the load, and wait until jobs flow in every partition."""
        with ExitStack() as opening:
            opening.enter_context(self._activation_watcher)
            opening.enter_context(self._log_watcher)
            opening.enter_context(self.crew)
            self.await_flow()
            self._closing = opening.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the load and the watching."""
        self._closing.close()

    @property
    def seen(self) -> Activations:
        """Activations since the drill began."""
        return self._activation_watcher.seen

    @property
    def log(self) -> LogFacts:
        """What the job log told since the drill began."""
        return self._log_watcher.seen

    @property
    def partitions(self) -> range:
        """Numbers of all partitions."""
        return range(self.cluster.partitions)

    def check(self) -> None:
        """Does nothing while everything is seen and the load runs.

        Raises:
            WatchError: A watcher has ended.
            ServerError: The process that creates jobs has.
        """
        self.check_watchers()
        self.crew.check()

    def check_watchers(self) -> None:
        """Does nothing while everything is seen.

        Raises:
            WatchError: A watcher has ended.
        """
        self._activation_watcher.check()
        self._log_watcher.check()

    def mark(self, what: str, at: FaultMark | None = None, *, at_wall: float | None = None) -> None:
        """Note that something happens, and tell it.

        Args:
            what: In words.
            at: What was done; its time counts.
            at_wall: When, in milliseconds since the Unix epoch; by default now.
        """
        moment = at.at_wall if at is not None else at_wall
        self.marks.append(Mark(now_ms() if moment is None else moment, what))
        self.say(what)

    def led_by(self, node: str) -> dict[int, int]:
        """The partitions that a node leads, each with its epoch as the log or, if newer, the node has it."""
        told = {row["partition"]: int(row.get("epoch") or 0) for row in self.cluster.partition_rows()}
        return {
            partition: max(self.log.epochs.get(partition, 0), told.get(partition, 0))
            for partition, leader in self.cluster.leaders().items()
            if leader == node
        }

    def await_flow(
        self, after: float | None = None, *, each: int = _FLOWING, partitions: Iterable[int] | None = None
    ) -> None:
        """Wait until jobs that were sent after a moment (or from now on) have been handed out everywhere.

        Args:
            after: The moment, in milliseconds since the Unix epoch.
            each: How many of every partition.
            partitions: Where; everywhere by default.

        Raises:
            NotInTime: Some partition doesn't hand out jobs in time.
        """
        moment = now_ms() if after is None else after
        wanted = list(self.partitions if partitions is None else partitions)

        def flows() -> bool:
            self.check()
            return all(self.seen.count_sent(partition, moment) >= each for partition in wanted)

        wait_for(flows, f"jobs are handed out in partitions {wanted}", timeout_s=FLOW_S)

    def await_lease(self, partitions: Iterable[int]) -> bool:
        """Wait until the lease of a job of these partitions has just begun, so that a fault meets it.

        Returns:
            False: None has, where long jobs are few; a drill goes on and says what it proved.
        """
        if not self.crew.orders.long_every:
            return False
        wanted, since = list(partitions), now_ms()

        def begun() -> bool:
            self.check()
            return any(self.log.newest_lease.get(partition, 0.0) > since for partition in wanted)

        try:
            return wait_for(begun, f"a lease of partitions {wanted} begins", timeout_s=_LEASE_S)
        except NotInTime:
            return False

    def await_calm(self, run: Run | None = None) -> None:
        """Wait until the cluster is as it was: led, stood by, spread, and handing out what is sent.

        Raises:
            NotInTime: It isn't in time, as far as its nodes tell.
        """
        self.cluster.await_all_led()
        if self.cluster.await_all_hot():
            self._await_spread(run)
        self.await_flow()

    def _await_spread(self, run: Run | None) -> None:
        """Wait until every partition is led by the node that is best for it, where nodes hand over."""
        if not any("hand_over" in row for row in self.cluster.partition_rows()):
            return
        from relevo_partitions.election.ranking import ranking

        best = {p: ranking(p, self.cluster.nodes)[0] for p in self.partitions}
        try:
            wait_for(lambda: self.cluster.leaders() == best, "leaders are spread", timeout_s=_SPREAD_S)
        except NotInTime as error:
            if run is not None:
                run.notes.append(f"{error}: {self.cluster.leaders()} in place of {best}")

    def watch_for(self, seconds: float) -> None:
        """Let the load run on for so long: what is measured is that time itself.

        Raises:
            WatchError: A watcher has ended meanwhile.
        """
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.check()
            time.sleep(min(0.2, left))

    def gap_ms(self, begin: float, end: float | None = None, among: Collection[int] = ()) -> float:
        """The longest time in which one of the partitions had no activation.

        Args:
            begin: From here on, in monotonic seconds.
            end: Up to here; None: until now.
            among: The partitions; all by default.
        """
        until = time.monotonic() if end is None else end
        return max(self.seen.gap_ms(partition, begin, until) for partition in among or self.partitions)

    def control(self) -> dict[str, float]:
        """The longest gap and the latency while nothing is hurt: what machine and watcher add by themselves.

        Raises:
            NotInTime: Jobs don't flow.
        """
        begin, wall = time.monotonic(), now_ms()
        self.await_flow(
            wall, each=max(_FLOWING, round(self.settings.rate / len(self.partitions) * _CONTROL_S))
        )
        gap = self.gap_ms(begin)
        delays = sorted(
            arrival.wall - arrival.sent
            for _, arrival in self.seen.all()
            if arrival.sent is not None and arrival.sent > wall
        )
        expected = self.cluster.partitions / self.settings.rate * 1000
        return {
            "max_gap_ms": round(gap, 1),
            "sent_every_ms": round(expected, 1),
            "latency_p50_ms": round(delays[len(delays) // 2], 1),
            "latency_max_ms": round(delays[-1], 1),
            "load_average": round(os.getloadavg()[0], 1),
        }


def _long_every(settings: DrillSettings) -> int:
    """One of so many jobs takes long: at a high rate fewer, as the workers have the others to do, too."""
    if not settings.long_every:
        return 0
    at_once = settings.workers * Orders.concurrency * _LONG_PART
    return max(settings.long_every, math.ceil(settings.rate * settings.long_s / at_once))
