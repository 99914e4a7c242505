"""What a host stands on: clocks and threads, ZooKeeper, Kafka. Real ones, or a simulation's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from relevo_partitions.election.zookeeper import ZooKeeper
from relevo_partitions.kafka.connection import Connection
from relevo_partitions.kafka.ends import PartitionEnds
from relevo_partitions.partition_io import KafkaPartition
from relevo_partitions.ports import Coordinator, PartitionIO
from relevo_partitions.pulse.pulse import Peer, Pulse
from relevo_partitions.runtime import THREADS, Runtime
from relevo_partitions.settings import HostSettings


class PulsePort(Protocol):
    """Notices the death of other nodes' processes at once; see `relevo_partitions.pulse.pulse.Pulse`."""

    @property
    def address(self) -> str:
        """``host:port`` that others reach this node's pulse at, once started."""

    def start(self) -> None:
        """Listen.

        Raises:
            PulseUnavailable: The address can't be listened on.
        """

    def watch(self, peers: Iterable[Peer]) -> None:
        """Watch these and no others; returns at once."""

    def stop(self) -> None:
        """Close everything, which others may take for this process's death."""


class Surroundings(Protocol):
    """Makes the parts of one host that reach outside of the process."""

    @property
    def runtime(self) -> Runtime:
        """Clocks, threads and chance."""

    def zookeeper(self, on_state: Callable[[str], None], on_watch: Callable[[str], None]) -> Coordinator:
        """A client, not started.

        Args:
            on_state: Told ``CONNECTED``, ``SUSPENDED`` or ``LOST``, on a thread of the client; only enqueues.
            on_watch: Told the path of a znode that changed, likewise.
        """

    def partition(self, number: int) -> PartitionIO:
        """Access to one partition's topics."""

    def pulse(self, on_death: Callable[[str, str, float], None]) -> PulsePort | None:
        """The pulse, not started; None where this node is to have none.

        Args:
            on_death: Told node and incarnation of a process proven dead, and when the connection to it ended
                by the monotonic clock, on a thread of the pulse; only enqueues.
        """


class RealSurroundings:
    """Threads, and the Kafka and ZooKeeper that the settings name.

    Args:
        settings: Of the host.

    Raises:
        ValueError: ``settings.kafka_options`` holds a setting that the guarantees rest on.
    """

    def __init__(self, settings: HostSettings) -> None:
        self.runtime: Runtime = THREADS
        self._settings = settings
        self._connection = Connection(settings.kafka, settings.kafka_options)
        self._ends = PartitionEnds(self._connection)

    def zookeeper(self, on_state: Callable[[str], None], on_watch: Callable[[str], None]) -> Coordinator:
        """See `Surroundings.zookeeper`."""
        settings = self._settings
        return ZooKeeper(settings.zookeeper, settings.session_timeout_s, on_state=on_state, on_watch=on_watch)

    def partition(self, number: int) -> PartitionIO:
        """See `Surroundings.partition`."""
        settings = self._settings
        return KafkaPartition(
            self._connection,
            settings.cluster,
            number,
            settings.checkpoint,
            node=settings.node,
            ends=self._ends,
        )

    def pulse(self, on_death: Callable[[str, str, float], None]) -> PulsePort | None:
        """See `Surroundings.pulse`."""
        settings = self._settings
        if not settings.pulse:
            return None
        return Pulse(
            settings.node,
            settings.incarnation,
            host=settings.pulse_host,
            port=settings.pulse_port,
            advertise=settings.pulse_advertise,
            on_death=on_death,
        )
