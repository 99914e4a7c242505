"""Notices a reader that gets nothing although records are there: a Kafka client may stop fetching for good.

Nobody is told of that. Whoever follows the log would count as up to date, and a leader would take its silence
for that of the clients; to be replaced is all the reader needs.
"""

from __future__ import annotations

from collections.abc import Callable

from relevo_partitions.errors import KafkaUnavailable
from relevo_partitions.ports import Reader


class StuckReaderWatch:
    """Compares one reader with Kafka's own word. Used by one thread.

    Args:
        reader: Whose silence is to be judged.
        topic: What it reads, for people.
        stable: Asks Kafka up to where committed records can be read now.
    """

    def __init__(self, reader: Reader, topic: str, stable: Callable[[], int]) -> None:
        self._reader = reader
        self._topic = topic
        self._stable = stable
        self._reached = self._owed = -1

    def look(self) -> None:
        """To be called after each long time without a record, some seconds.

        One look proves nothing: what it finds may have come this moment. It counts at the next.

        Raises:
            KafkaUnavailable: What was there at the last look has still not come.
        """
        reached = self._reader.reached
        if reached == self._reached and reached < self._owed:
            raise KafkaUnavailable(
                f"{self._topic}: nothing comes from offset {reached} on, although what lies before "
                f"{self._owed} can be read: the client is stuck, and is made anew"
            )
        self._reached = reached
        try:
            self._owed = self._stable()
        except KafkaUnavailable:  # which is reason enough for silence
            self._owed = -1
