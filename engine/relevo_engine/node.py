"""One engine process: starts in order, says when it is ready, ends in order."""

from __future__ import annotations

import gc
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from relevo_engine import logs
from relevo_engine.api.server import ApiServer
from relevo_engine.backend import NodeBackend
from relevo_engine.core.rules import Rules
from relevo_engine.errors import (
    ClusterMismatchError,
    EngineError,
    NodeIdTakenError,
    SettingsError,
    StopUnfinishedError,
    TopicsError,
    UnreachableError,
)
from relevo_engine.held_activations import HeldActivations
from relevo_engine.machine import PartitionMachine
from relevo_engine.metrics import NodeMetrics
from relevo_engine.settings import NodeSettings, unknown_variables
from relevo_engine.stop_signals import StopSignals
from relevo_engine.topic_admin import TopicAdmin, require_safe
from relevo_engine.topics import Finding
from relevo_engine.types import TypeDirectory
from relevo_partitions.errors import ConfigMismatch, NodeIdTaken, ZooKeeperUnavailable
from relevo_partitions.host import PartitionHost
from relevo_partitions.pulse.pulse import PulseUnavailable
from relevo_partitions.settings import HostSettings, StandbySettings, TermSettings
from relevo_partitions.snapshots.snapshotter import SnapshotSettings
from relevo_partitions.term.roles import Role

T = TypeVar("T")

_RETRY_MIN_S: Final = 0.5
_RETRY_MAX_S: Final = 5.0
_KAFKA_TIMEOUT_S: Final = 5.0
_READY_POLL_S: Final = 0.05
_FORCE_MARGIN_S: Final = 2.0
"""How much longer than its deadline a stop may take before the process is ended from within."""


class StopRequested(Exception):  # noqa: N818 - nothing went wrong
    """The node was asked to stop before it had started."""


class Node:
    """A node's parts, in the order in which they start.

    Args:
        settings: All of them.
        stopping: Set when the node is to end; waits are given up then.
    """

    def __init__(self, settings: NodeSettings, stopping: threading.Event) -> None:
        self.settings = settings
        self.address = ""
        self._stopping = stopping
        self._log = logs.get("node").bind(node=settings.node_id, cluster=settings.cluster)
        self._metrics = _Observer(Role)
        try:
            self._admin = TopicAdmin(settings.kafka, settings.cluster, settings.kafka_options_plain)
        except ValueError as error:
            raise SettingsError(str(error)) from error
        self._types = TypeDirectory(
            self._admin,
            settings.cluster,
            settings.partitions,
            settings.types_max,
            note=self._metrics.note,
        )
        self.backend = NodeBackend(settings, self._metrics, self._types)
        self._activations = HeldActivations(
            self._admin,
            settings.cluster,
            settings.partitions,
            slots=self._types.slots,
            led=self.backend.led,
            limit_s=settings.held_back_s,
            observer=self._metrics,
        )
        self.backend.activations = self._activations
        self._metrics.on_zookeeper_state = self.backend.zookeeper_state
        self._api = ApiServer(settings.api_host, settings.api_port)
        self._host: PartitionHost | None = None

    def start(self) -> None:
        """Joins the cluster. Returns once the node is registered; its roles settle afterwards.

        Raises:
            EngineError: It can't; the message says why and what to do.
            StopRequested: It was asked to stop meanwhile.
        """
        settings = self.settings
        deadline = time.monotonic() + settings.start_timeout_s if settings.start_timeout_s else None
        self.address = self._api.start(self.backend)
        self._log.info("listening", api=f"http://{self.address}")
        self._prepare_topics(deadline)
        self._retry(self._types.start, "Kafka", deadline)
        self.backend.starting = f"ZooKeeper at {settings.zookeeper} isn't reachable yet"
        self._host = PartitionHost(
            self._host_settings(), self._make_machine, self._metrics, self._types.on_topic_failure
        )
        self.backend.host = self._host
        limit_s = max(0.0, deadline - time.monotonic()) if deadline is not None else None
        try:
            self._host.start(limit_s)
        except ZooKeeperUnavailable as error:
            raise UnreachableError(str(error)) from error
        except ConfigMismatch as error:
            raise ClusterMismatchError(str(error)) from error
        except NodeIdTaken as error:
            raise NodeIdTakenError(str(error)) from error
        except PulseUnavailable as error:
            raise EngineError(str(error)) from error
        self._check_stop()
        self._activations.start()
        self.backend.starting = None

    def stop(self, timeout_s: float) -> None:
        """Ends everything within ``timeout_s``.

        Raises:
            StopUnfinishedError: Something still hangs. It can do no harm: Kafka's fence shuts it out.
        """
        deadline = time.monotonic() + timeout_s
        self.backend.starting = "the node is stopping"
        ended = self._host is None or self._host.stop(timeout_s * 0.7)
        for part in (self._types, self._activations):
            ended &= part.stop(max(0.1, deadline - time.monotonic()))
        self._api.stop(max(0.5, deadline - time.monotonic()))
        if not ended:
            raise StopUnfinishedError(
                f"the node did not end in order within {timeout_s:g} s: Kafka or ZooKeeper did not answer."
                " Nothing is lost; its partitions are free when its session has ended."
            )

    def _prepare_topics(self, deadline: float | None) -> None:
        settings = self.settings
        not_made = self._make_topics(deadline) if settings.create_topics else None
        findings = self._retry(
            lambda: self._admin.check(
                settings.partitions, just_made=settings.create_topics, timeout_s=_KAFKA_TIMEOUT_S
            ),
            "Kafka",
            deadline,
        )
        try:
            accepted = require_safe(findings, allow_unsafe=settings.allow_unsafe_topics)
        except TopicsError as error:
            if not_made is None:
                raise
            raise TopicsError(f"{error}\nWhat is missing could not be made: {not_made}") from not_made
        for finding in accepted:
            self._log.warning(
                _headline(finding),
                topic=finding.topic,
                setting=finding.setting,
                found=finding.found,
                wanted=finding.wanted,
                why=finding.why,
                remedy=finding.remedy,
            )

    def _make_topics(self, deadline: float | None) -> TopicsError | None:
        """Makes what is missing; returns why that was refused.

        No reason to stop by itself: what is missing may be something that nodes can do without.
        """
        settings = self.settings
        try:
            made = self._retry(
                lambda: self._admin.init(
                    settings.partitions, allow_unsafe=settings.allow_unsafe_topics, timeout_s=_KAFKA_TIMEOUT_S
                ),
                "Kafka",
                deadline,
            )
        except TopicsError as error:
            self._log.warning("topics not made", why=str(error))
            return error
        for name in made:
            self._log.info("topic created", topic=name)
        return None

    def _retry(self, call: Callable[[], T], what: str, deadline: float | None) -> T:
        """Calls until it is answered, with growing pauses; gives up at the deadline or when asked to stop."""
        pause_s = _RETRY_MIN_S
        while True:
            self._check_stop()
            try:
                return call()
            except UnreachableError as error:
                if deadline is not None and time.monotonic() + pause_s > deadline:
                    raise UnreachableError(
                        f"{error} (tried for {self.settings.start_timeout_s:g} s)."
                        " Is it running, and is the address right?"
                    ) from error
                self.backend.starting = str(error)
                self._log.warning("waiting", what=what, reason=str(error), again_in_s=pause_s)
            self._stopping.wait(pause_s)
            pause_s = min(pause_s * 2, _RETRY_MAX_S)

    def _check_stop(self) -> None:
        if self._stopping.is_set():
            raise StopRequested

    def _host_settings(self) -> HostSettings:
        settings = self.settings
        return HostSettings(
            node=settings.node_id,
            address=self._advertised(),
            kafka=settings.kafka,
            zookeeper=settings.zookeeper,
            partitions=settings.partitions,
            cluster=settings.cluster,
            kafka_options=settings.kafka_options_plain,
            agreed={name: value for name, value in settings.agreed.items() if name != "partitions"},
            session_timeout_s=settings.session_timeout_s,
            settle_s=settings.settle_s,
            replicas=settings.replicas,
            give_back_after_s=settings.give_back_after_s,
            pulse_host=settings.pulse_host or settings.api_host,
            pulse_port=settings.pulse_port,
            pulse_advertise=settings.pulse_advertise,
            term=TermSettings(held_back_s=settings.held_back_s),
            standby=StandbySettings(held_back_s=settings.held_back_s),
            snapshots=SnapshotSettings(
                events=settings.snapshot_events,
                interval_s=settings.snapshot_interval_s,
                log_keep_s=settings.log_keep_s,
            ),
        )

    def _advertised(self) -> str:
        """Where other nodes find the API; an address that stands for all of this host's is no use to them."""
        if self.settings.api_advertise:
            return self.settings.api_advertise
        host, _, port = self.address.rpartition(":")
        return f"{socket.gethostname()}:{port}" if host in ("0.0.0.0", "[::]") else self.address  # noqa: S104

    def _make_machine(self, partition: int) -> PartitionMachine:
        settings = self.settings
        rules = Rules(
            partition=partition,
            partitions=settings.partitions,
            finished_window_ms=settings.finished_window_s * 1000,
            finished_count_max=settings.finished_count_max,
            aging_ms=settings.aging_s * 1000,
            window=settings.window,
            lease_expiries_max=settings.lease_expiries_max,
            redispatch_after_ms=settings.redispatch_after_s * 1000,
        )
        return PartitionMachine(rules, self._types, cluster=settings.cluster)


def _headline(finding: Finding) -> str:
    """What an accepted finding comes to, in the log."""
    if finding.unsafe_only:
        return "UNSAFE TOPIC"
    return "no snapshots" if finding.slow_only else "job type held up"


class _Observer(NodeMetrics):
    """Metrics, and an ear for the state of the ZooKeeper session."""

    def __init__(self, roles: Any) -> None:
        super().__init__(roles)
        self.on_zookeeper_state: Callable[[str], None] = lambda _state: None

    def note(self, event: str, **fields: Any) -> None:
        """Passes the state on."""
        if event == "zookeeper_state":
            self.on_zookeeper_state(str(fields.get("state", "")))
        super().note(event, **fields)


def run(settings: NodeSettings) -> None:
    """Runs a node until SIGTERM or SIGINT; a second signal ends the process at once.

    Prints one line to standard output when the node is ready; all else goes to the log.

    Raises:
        EngineError: It could not start, or not stop in time.
    """
    logs.configure(settings.log_format, settings.log_level)
    # Many small objects that live long: with the defaults the collector walks all open jobs again and again.
    # New ones are walked again in portions of 150,000, some 20 ms each; all of them every hundred million.
    gc.set_threshold(50_000, 1, 750)
    log = logs.get("node").bind(node=settings.node_id, cluster=settings.cluster)
    for name in unknown_variables(os.environ):
        log.warning("unknown environment variable", variable=name)
    with StopSignals() as stop:
        _run(settings, stop, log)


def _run(settings: NodeSettings, stop: StopSignals, log: Any) -> None:
    node = Node(settings, stop.asked)
    failure: list[BaseException] = []
    starter = threading.Thread(target=_start, args=(node, failure, stop), name="relevo-start", daemon=True)
    starter.start()
    _announce_when_ready(node, stop)
    stop.wait()
    force = threading.Timer(settings.stop_timeout_s + _FORCE_MARGIN_S, _leave_by_force, args=(log,))
    force.daemon = True
    force.start()
    log.info("stopping")
    try:
        node.stop(settings.stop_timeout_s)
        starter.join(_FORCE_MARGIN_S)
    finally:
        # Why it could not start counts for more than how it ended.
        for error in failure:
            raise error
    log.info("stopped")


def _start(node: Node, failure: list[BaseException], stop: StopSignals) -> None:
    """The starter's thread: the main one stays free for signals."""
    try:
        node.start()
    except StopRequested:
        return
    except BaseException as error:
        failure.append(error)
        stop.ask()


def _announce_when_ready(node: Node, stop: StopSignals) -> None:
    while not stop.wait(_READY_POLL_S):
        if not node.backend.not_ready():
            settings = node.settings
            sys.stdout.write(
                f"relevo node {settings.node_id} is ready: cluster {settings.cluster},"
                f" {settings.partitions} partitions, http://{node.address}\n"
            )
            sys.stdout.flush()
            return


def _leave_by_force(log: Any) -> None:
    log.error("leaving by force", reason="the stop took longer than stop_timeout_s")
    os._exit(StopUnfinishedError.exit_code)
