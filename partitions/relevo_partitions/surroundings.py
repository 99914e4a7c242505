"""What a host stands on: clocks and threads, ZooKeeper, Kafka. Real ones, or a simulation's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from relevo_partitions.kafka import Connection
from relevo_partitions.partition_io import KafkaPartition
from relevo_partitions.ports import Coordinator, PartitionIO
from relevo_partitions.runtime import THREADS, Runtime
from relevo_partitions.settings import HostSettings
from relevo_partitions.zookeeper import ZooKeeper


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

    def zookeeper(self, on_state: Callable[[str], None], on_watch: Callable[[str], None]) -> Coordinator:
        """See `Surroundings.zookeeper`."""
        settings = self._settings
        return ZooKeeper(settings.zookeeper, settings.session_timeout_s, on_state=on_state, on_watch=on_watch)

    def partition(self, number: int) -> PartitionIO:
        """See `Surroundings.partition`."""
        settings = self._settings
        return KafkaPartition(self._connection, settings.cluster, number, settings.checkpoint)
