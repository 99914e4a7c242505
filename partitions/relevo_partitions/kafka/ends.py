"""Asks Kafka where partitions end, beside whatever is being read and written."""

from __future__ import annotations

import threading
from typing import Final

from confluent_kafka import IsolationLevel, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined] # its stubs re-export without saying so
    AdminClient,
    OffsetSpec,
)

from relevo_partitions.errors import KafkaUnavailable
from relevo_partitions.kafka.connection import Connection, Faults
from relevo_partitions.kafka.offsets import ask_offset

TIMEOUT_S: Final = 5.0
_LATEST: Final = OffsetSpec.latest()  # type: ignore[no-untyped-call]


class PartitionEnds:
    """One client for all partitions of a node, made when it is first asked. Thread-safe.

    A consumer would answer too, but only once the fetch that it waits for is over.

    Args:
        connection: Where Kafka is.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._faults = Faults()
        self._lock = threading.Lock()
        self._admin: AdminClient | None = None

    def end(self, topic: str, partition: int, *, stable: bool = False) -> int:
        """Offset behind the last record, those of open transactions included; ``stable``: before those.

        Raises:
            KafkaUnavailable: Kafka doesn't answer, or knows no such partition.
        """
        isolation = IsolationLevel.READ_COMMITTED if stable else IsolationLevel.READ_UNCOMMITTED
        try:
            return ask_offset(self._client(), topic, partition, _LATEST, TIMEOUT_S, isolation)
        except KafkaException as raised:
            raise KafkaUnavailable(self._connection.describe(raised.args[0], self._faults)) from None
        except TimeoutError:
            raise KafkaUnavailable(f"Kafka at {self._connection.bootstrap} didn't answer in time") from None

    def _client(self) -> AdminClient:
        with self._lock:
            if self._admin is None:
                self._admin = AdminClient(self._connection.settings(self._faults, {}))
            return self._admin
