"""Fetches a partition's commands while its takeover is under way, so that the first batch is there at once.

Where the new leader will have to begin isn't known before the barrier, but no earlier than where its standby
stands now: it begins there, and what turns out to be decided already is left out.
"""

from __future__ import annotations

import threading

from relevo_partitions.errors import KafkaUnavailable
from relevo_partitions.ports import Reader
from relevo_partitions.runtime import Runtime
from relevo_partitions.statemachine import Incoming, LogDamaged


class CommandsAhead:
    """Checks that the commands are there and begins to fetch them, beside the thread that makes it.

    Args:
        reader: Of the commands, not started; its owner closes it, or has it closed by `give_up`.
        position: Where the standby stands.
        partition: For the thread's name.
        runtime: Runs the thread.
    """

    def __init__(self, reader: Reader, position: int, partition: int, runtime: Runtime) -> None:
        self.reader = self._reader = reader
        self._position = position
        self._problem: LogDamaged | KafkaUnavailable | None = None
        self._lock = threading.Lock()
        self._given_up = self._ended = False
        self._task = runtime.spawn(f"relevo-commands-{partition}", self._begin)

    def _begin(self) -> None:
        try:
            self._reader.check(self._position)
            self._reader.start(self._position)
        except (LogDamaged, KafkaUnavailable) as problem:
            self._problem = problem
        except Exception as error:  # whatever it is: nothing is fetched
            self._problem = KafkaUnavailable(
                f"the commands can't be fetched: {type(error).__name__}: {error}"
            )
        with self._lock:
            self._ended = True
            given_up = self._given_up
        if given_up:
            self._reader.close()

    def give_up(self) -> None:
        """Nobody wants the commands any more. Returns at once.

        The reader is closed once nothing is being asked by it: a client that is closed in the middle of a
        call of another thread brings the process down.
        """
        with self._lock:
            self._given_up = True
            ended = self._ended
        if ended:
            self._reader.close()

    def from_position(self, position: int) -> Reader:
        """The commands from ``position`` on, which is no earlier than where the fetching began.

        Raises:
            LogDamaged: They aren't all there.
            KafkaUnavailable: Kafka doesn't answer.
        """
        self._task.join()
        if isinstance(self._problem, LogDamaged) and position > self._position:
            # What is missing lies before: the standby was behind, and the commands are trimmed meanwhile.
            self._reader.check(position)
            self._reader.start(position)
            return self._reader
        if self._problem is not None:
            raise self._problem
        return self._reader if position == self._position else _ReaderFrom(self._reader, position)


class _ReaderFrom:
    """A started reader, without what lies before an offset."""

    def __init__(self, reader: Reader, position: int) -> None:
        self._reader = reader
        self._position = position
        self._arrived = False
        self.start = reader.start
        self.check = reader.check
        self.end_offset = reader.end_offset
        self.stability = reader.stability
        self.note_position = reader.note_position
        self.close = reader.close

    @property
    def reached(self) -> int:
        return max(self._position, self._reader.reached)

    @property
    def at_end(self) -> bool:
        return self._reader.at_end

    def read(self, wait_s: float, records_max: int) -> list[Incoming]:
        if self._arrived:
            return self._reader.read(wait_s, records_max)
        try:
            records = self._reader.read(wait_s, records_max)
        except LogDamaged:  # before the offset that counts: commands decided long ago may be deleted
            self._reader.check(self._position)
            self._reader.start(self._position)
            self._arrived = True
            return []
        self._arrived = bool(records) and records[-1].offset >= self._position
        return [record for record in records if record.offset >= self._position]
