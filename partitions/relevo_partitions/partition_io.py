"""One partition's topics, transactional id and clients."""

from __future__ import annotations

from collections.abc import Callable

from relevo_partitions.kafka.connection import Connection
from relevo_partitions.kafka.ends import PartitionEnds
from relevo_partitions.kafka.fence import ProducerPool, fence
from relevo_partitions.kafka.log import PartitionReader
from relevo_partitions.kafka.warm_reader import WarmReader
from relevo_partitions.kafka.writer import TransactionalWriter
from relevo_partitions.snapshots.store import KafkaSnapshots


class KafkaPartition:
    """What a term needs of Kafka; see `relevo_partitions.ports.PartitionIO`.

    Args:
        connection: Where Kafka is.
        cluster: Prefix of the topics.
        partition: Number of the partition.
        checkpoint: Passed to the writer.
        node: Whose name the snapshots taken here carry.
        ends: Shared by a node's partitions; one of its own where none is given.
    """

    def __init__(
        self,
        connection: Connection,
        cluster: str,
        partition: int,
        checkpoint: Callable[[int, str], None] | None = None,
        *,
        node: str = "",
        ends: PartitionEnds | None = None,
    ) -> None:
        self.log_topic = f"{cluster}.log"
        self.commands_topic = f"{cluster}.commands"
        self.pool = ProducerPool(connection, f"{cluster}-{partition}", self.log_topic)
        self._connection = connection
        self._group = f"{cluster}.engine"
        self._partition = partition
        self._cluster, self._node = cluster, node
        self._checkpoint = checkpoint
        self._ends = PartitionEnds(connection) if ends is None else ends
        self._commands = WarmReader(
            lambda: PartitionReader(
                connection, self.commands_topic, partition, self._group, tell_end=True, in_batches=True
            )
        )

    def keep_warm(self, producers: int) -> None:
        """See `relevo_partitions.ports.PartitionIO.keep_warm`."""
        self.pool.keep(producers)
        self._commands.keep(producers > 0)

    def tend(self) -> None:
        """See `relevo_partitions.ports.PartitionIO.tend`."""
        self.pool.tend()
        self._commands.tend()

    def fence(self, cancelled: Callable[[], bool]) -> TransactionalWriter:
        """See `relevo_partitions.ports.PartitionIO.fence`."""
        producer, faults = fence(self.pool, cancelled)
        return TransactionalWriter(producer, faults, self._connection, self.log_topic, self._point)

    def log(self) -> PartitionReader:
        """A reader of the log, not started."""
        return PartitionReader(
            self._connection,
            self.log_topic,
            self._partition,
            self._group,
            verify_checksums=True,
            tell_end=True,
        )

    def commands(self) -> PartitionReader:
        """A reader of the commands, not started."""
        return self._commands.take()

    def commands_end(self) -> int:
        """Where the commands end now; see `relevo_partitions.ports.PartitionIO.commands_end`."""
        return self._ends.end(self.commands_topic, self._partition)

    def stable_end(self, topic: str) -> int:
        """See `relevo_partitions.ports.PartitionIO.stable_end`."""
        return self._ends.end(topic, self._partition, stable=True)

    def snapshots(self) -> KafkaSnapshots:
        """The partition's snapshots; making this asks nobody."""
        return KafkaSnapshots(self._connection, self._cluster, self._partition, self._node)

    def _point(self, name: str) -> None:
        if self._checkpoint is not None:
            self._checkpoint(self._partition, name)
