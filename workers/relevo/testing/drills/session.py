"""A session of drills: one cluster, one drill after the other, and a report that grows with every repeat."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from relevo.errors import RelevoError, Unreachable
from relevo.kafka_options import options_for_producer
from relevo.testing.drills.calls import judge_calls
from relevo.testing.drills.catalog import DRILLS, SOAK, Drill, targets_of
from relevo.testing.drills.effects import database
from relevo.testing.drills.ending import DRAIN_S, close_books, drain, settle
from relevo.testing.drills.leases import judge_leases
from relevo.testing.drills.machine import machine
from relevo.testing.drills.scene import Scene
from relevo.testing.drills.settings import JOB_TYPE, OF_THE_CLUSTER, DrillSettings
from relevo.testing.drills.store import shared_store
from relevo.testing.faults import DrillError, Kind
from relevo.testing.ledger import Moment, now_ms
from relevo.testing.picture import Panel, panel_of
from relevo.testing.report import Report, Run

if TYPE_CHECKING:
    from relevo.testing.cluster import DrillCluster

_SOAK_PAUSE_S: Final = (10.0, 20.0)
_SOAK_DOWN_S: Final = 5.0
_WARM_UP_TIMES: Final = 10
"""The load of a warm-up, to that of the drills."""
_BROKERS_S: Final = 15.0
_HITS: Final = (Kind.KILL, Kind.FREEZE)


class Session:
    """Runs drills.

    Args:
        settings: With what.
        say: Told what happens, line by line.
        changed: Called after every repeat: the report has grown.

    Attributes:
        report: What was measured so far.
        panels: What a picture shows, one for each drill that is over.
    """

    def __init__(
        self, settings: DrillSettings, say: Callable[[str], None], changed: Callable[[Session], None]
    ) -> None:
        from relevo_engine.settings import NodeSettings

        if settings.given:
            # What was asked for is what would have been started.
            known: dict[str, float] = dict.fromkeys(OF_THE_CLUSTER, 0)
        else:
            known = {"session_timeout_s": float(NodeSettings.model_fields["session_timeout_s"].default)}
        self.settings = replace(settings, **known)  # type: ignore[arg-type] # each is a number
        self.report = Report(machine(), self.settings.as_dict(), targets_of(self.settings))
        self.panels: list[Panel] = []
        self._say = say
        self._changed = changed
        self._random = random.Random(settings.seed)
        self._place = ""

    def run(self, names: Sequence[str]) -> None:
        """Run these drills, in order.

        Raises:
            RelevoError: The cluster can't be started or reached.
            EngineError: Likewise.
            KeyboardInterrupt: Somebody has had enough; the report has what was measured, and says so.
        """
        possible = [name for name in names if not self._skip(name, self._why_never(name))]
        if not possible:
            self._changed(self)
            return
        try:
            with ExitStack() as stack:
                folder = self.settings.keep_logs
                if folder is None:
                    folder = Path(stack.enter_context(TemporaryDirectory(prefix="relevo-drill-")))
                timed = any(name == SOAK or DRILLS[name].count_up is None for name in possible)
                if timed:
                    store = shared_store(self.settings.redis, folder, self._say)
                    self._take(redis=stack.enter_context(store))
                if any(name != SOAK and DRILLS[name].count_up is not None for name in possible):
                    # Before the brokers: whether there is such a database is known in a moment.
                    there = database(self.settings, self._say, lambda: self.report.held)
                    self._place = stack.enter_context(there)
                cluster = stack.enter_context(self._cluster(folder))
                self._take(
                    nodes=len(cluster.nodes) + len(cluster.unreachable),
                    partitions=cluster.partitions,
                    brokers=self._brokers(cluster),
                )
                if timed and not self.settings.given and self.settings.warm_up_s > 0:
                    self._warm_up(cluster, folder / "00-warm-up")
                for number, name in enumerate(possible, 1):
                    self._play(cluster, name, folder / f"{number:02}-{name}")
        except BaseException:
            self.report.interrupted = True
            raise
        finally:
            self._changed(self)

    def _take(self, **found: Any) -> None:
        """What is known of the surroundings now; the report tells of it."""
        self.settings = replace(self.settings, **found)
        self.report.settings = self.settings.as_dict()
        self.report.targets = targets_of(self.settings)

    def _brokers(self, cluster: DrillCluster) -> int:
        """How many brokers there are, by their own word where they were not started here.

        Raises:
            Unreachable: None answers.
        """
        if not self.settings.given:
            return self.settings.brokers
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        admin = AdminClient(options_for_producer(cluster.kafka, self.settings.kafka_options))
        try:
            return len(admin.list_topics(timeout=_BROKERS_S).brokers)
        except KafkaException as error:
            raise Unreachable(f"Kafka at {cluster.kafka} doesn't answer: {error.args[0].str()}") from error

    def _cluster(self, folder: Path) -> DrillCluster:
        from relevo.testing.cluster import DrillCluster
        from relevo_engine.topic_admin import TopicAdmin

        wanted = self.settings
        if wanted.kafka and wanted.zookeeper:
            cluster = DrillCluster.attach(wanted.kafka, wanted.zookeeper, wanted.cluster)
            options = {name: str(value) for name, value in wanted.kafka_options.items()}
            TopicAdmin(wanted.kafka, wanted.cluster, options).create_type(JOB_TYPE, cluster.partitions)
            return cluster
        return DrillCluster(
            wanted.nodes,
            wanted.partitions,
            wanted.brokers,
            wanted.zookeepers,
            name=wanted.cluster,
            types=[JOB_TYPE],
            for_tests=False,
            home=folder / "cluster" if wanted.keep_logs is not None else None,
            report=self._say,
        )

    def _warm_up(self, cluster: DrillCluster, folder: Path) -> None:
        """Work without a fault first.

        The Kafka that people have has run for long; that of a drill is new, and in its first minute the Java
        compiler takes more of the processor than the brokers' work does.

        Raises:
            DrillError: Its jobs aren't done in time: what is left would be the load of the first drill, too.
        """
        rate = _WARM_UP_TIMES * self.settings.rate
        busy = replace(self.settings, rate=rate, long_every=0, calls_per_s=0.0)
        self._say(f"warming up: {busy.rate:g} jobs/s for {busy.warm_up_s:g} s")
        with Scene(cluster, busy, folder, self._say) as scene:
            scene.watch_for(busy.warm_up_s)
            if not drain(scene):
                accepted = scene.crew.ledger.accepted
                left = sum(not scene.log.ended(key) for key in accepted)
                raise DrillError(
                    f"this machine can't keep up with {_WARM_UP_TIMES} times the rate: of the warm-up's "
                    f"{len(accepted)} jobs {left} had not ended {DRAIN_S:g} s after the last one was sent. "
                    f"Lower --rate, or shorten the warm-up with --warm-up (0: none)"
                )

    def _play(self, cluster: DrillCluster, name: str, folder: Path) -> None:
        drills = [DRILLS[name]] if name != SOAK else self._soakable(cluster)
        if self._skip(name, drills[0].why_not(cluster) if drills else "no fault is possible here"):
            return
        self._say(f"{name}: {self.settings.rate:g} jobs/s over {cluster.partitions} partitions")
        soak = name == SOAK
        settings = replace(self.settings, down_s=_SOAK_DOWN_S) if soak else drills[0].settings(self.settings)
        faults_before = len(cluster.faults)
        count_up = drills[0].count_up
        place = self._place if count_up is not None else ""
        with Scene(cluster, settings, folder, self._say, place) as scene:
            if count_up is None:
                # Jobs that are counted are not there to be measured.
                scene.await_calm()
                self.report.controls[name] = scene.control()
            try:
                if soak:
                    self._soak(scene, drills)
                else:
                    self._repeat(scene, drills[0])
            finally:
                self.panels.append(panel_of(name, scene.seen.all(), scene.log.completed, scene.marks))
            runs = self.report.runs_of(name)
            self._say(f"{name}: waiting for the last job, and asking the verifier")
            faults = cluster.faults[faults_before:]
            hits = [Moment(each.at_wall) for each in faults if each.kind in _HITS]
            accounts = close_books(scene, hits, handled=count_up is None)
            settle(runs, accounts, shared_store=bool(settings.redis) and count_up is None)
            ledger, workers_hit = scene.crew.ledger, scene.crew.hits
            if settings.long_every:
                judge_leases(runs, scene.log, faults, accounts.repeated, ledger.runs, workers_hit)
            if settings.calls_per_s:
                judge_calls(runs, ledger.calls, lambda run: DRILLS[run.fault or run.drill].calls_hold)
            if count_up is not None:
                count_up(scene, runs[-1], accounts)
        self._changed(self)

    def _soakable(self, cluster: DrillCluster) -> list[Drill]:
        inside = [each for each in DRILLS.values() if each.count_up is None]
        possible = [each for each in inside if self._why_never(each.name) is None]
        return [each for each in possible if each.why_not(cluster) is None]

    def _why_never(self, name: str) -> str | None:
        if name == SOAK:
            return None
        return DRILLS[name].why_never(self.settings)

    def _skip(self, name: str, reason: str | None) -> bool:
        """Whether a drill is passed over; if it is, the reason is told and kept."""
        if reason is None:
            return False
        self.report.skipped[name] = reason
        self._say(f"{name} is skipped: {reason}")
        self._changed(self)
        return True

    def _repeat(self, scene: Scene, drill: Drill) -> None:
        for repeat in range(1, (self.settings.repeat if drill.count_up is None else 1) + 1):
            scene.choice = repeat - 1
            run = Run(drill.name, repeat, now_ms())
            if not self._one(scene, drill, run):
                return

    def _soak(self, scene: Scene, drills: Sequence[Drill]) -> None:
        ends = time.monotonic() + self.settings.duration_s
        repeat = 0
        while True:
            pause = self._random.uniform(*_SOAK_PAUSE_S)
            drill = self._random.choice(drills)
            scene.choice = self._random.randrange(1_000)
            if time.monotonic() + pause > ends:
                scene.watch_for(max(0.0, ends - time.monotonic()))
                return
            begun = time.monotonic()
            repeat += 1
            if not self._one(scene, drill, Run(SOAK, repeat, now_ms(), fault=drill.name)):
                return
            scene.watch_for(max(0.0, begun + pause - time.monotonic()))

    def _one(self, scene: Scene, drill: Drill, run: Run) -> bool:
        """One repeat; False: it did not come to its end, and neither would the next."""
        from relevo_engine.errors import EngineError

        begin = time.monotonic()
        went_on = True
        try:
            drill.play(scene, run)
        except (RelevoError, EngineError) as error:
            run.expect("the drill came to its end", False, str(error))
            went_on = self._put_back(scene, run)
        run.max_gap_ms = scene.gap_ms(begin)
        self.report.runs.append(run)
        self._say(_told(run))
        self._changed(self)
        return went_on

    def _put_back(self, scene: Scene, run: Run) -> bool:
        from relevo_engine.errors import EngineError

        try:
            scene.cluster.heal()
            scene.crew.heal()
            scene.await_calm(run)
        except (RelevoError, EngineError) as error:
            run.expect("everything could be put back", False, str(error))
            return False
        return True


def _told(run: Run) -> str:
    """A repeat in one line."""
    known = {
        "detect": run.slowest("detect_ms"),
        "first accept": run.slowest("first_accept_ms"),
        "first activation": run.slowest("first_activation_ms"),
        **{name.removesuffix("_ms").replace("_", " "): value for name, value in run.extra.items()},
        "longest gap": run.max_gap_ms,
    }
    times = ", ".join(f"{name} {value:.0f} ms" for name, value in known.items() if value is not None)
    broken = "".join(f"\n  NOT SO: {each.what} ({each.found})" for each in run.broken)
    return f"{run.drill} {run.repeat}{f' ({run.fault})' if run.fault else ''}: {times}{broken}"
