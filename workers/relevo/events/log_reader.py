"""Takes records off the job log: assigned or shared with a group, checked for order, never past a hole."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from relevo.consumer.options import make_consumer
from relevo.errors import InvalidRequest, LogGap, Refused
from relevo.events.job_event import LogPosition, Skipped
from relevo.events.log_progress import CALL_S, Place, Progress, begin, keep, known
from relevo.events.type_history import TypeHistory
from relevo.kafka_options import guarded, no_topic, unreachable
from relevo_schemas.codec import decode
from relevo_schemas.errors import RecordError
from relevo_schemas.records import Event

_log: Final = logging.getLogger("relevo.events")

BATCH_MAX: Final = 500
QUIET_S: Final = 10.0
"""After so long without a record the topic is looked up: Kafka doesn't tell that it was deleted."""
_GONE: Final = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
)
_FORBIDDEN: Final = frozenset(
    {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED,
     KafkaError.CLUSTER_AUTHORIZATION_FAILED}
)  # fmt: skip
_REBALANCED: Final = frozenset(
    {KafkaError.REBALANCE_IN_PROGRESS, KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID,
     KafkaError.STALE_MEMBER_EPOCH, KafkaError._NO_OFFSET}
)  # fmt: skip


class Taken(NamedTuple):
    """An event off the log, and what is missing before it."""

    partition: int
    offset: int
    event: Event
    skipped: Skipped | None


class LogReader:
    """Reads a cluster's log for one `JobEvents`. Not for more than one thread at a time.

    Args:
        options: Of a consumer of committed records, with ``auto.offset.reset=error`` and ends told.
        topic: The log.
        start: Where to begin.
        to_end: Stop where the log ends now.
        allow_gap: Decides whether to go on where events were trimmed.
        history: Learns what came before the start; None: nobody wants to know.

    Raises:
        ConfigurationError: librdkafka doesn't take the options.
    """

    def __init__(
        self,
        options: dict[str, Any],
        topic: str,
        start: Place,
        *,
        to_end: bool,
        allow_gap: Callable[[Skipped], bool],
        history: TypeHistory | None,
    ) -> None:
        self._bootstrap = str(options["bootstrap.servers"])
        self._topic = topic
        self._start = start
        self._to_end = to_end
        self._allow_gap = allow_gap
        self._history = history
        self._grouped = False
        self._problem: Exception | None = None
        self._heard_at = time.monotonic()
        self._unplaced: set[int] = set()
        self._assigned: set[int] = set()
        self._off_the_log: set[int] = set()
        self._held: list[Message] = []
        self._committing: set[tuple[int, int]] = set()
        self._commit_answer: KafkaError | bool | None = None
        self._on_gone: Callable[[int], None] = lambda _partition: None
        self.progress: dict[int, Progress] = {}
        self._consumer = make_consumer({**options, "on_commit": guarded(self._on_commit)})

    def close(self) -> None:
        """Give back the connection."""
        if self._history is not None:
            self._history.close()
        self._consumer.close()

    # Beginning

    def assign_all(self) -> None:
        """Read all partitions.

        Raises:
            Unreachable: Kafka doesn't answer.
            ClusterNotFound: There is no such cluster.
            InvalidRequest: The start names a partition that isn't there.
        """
        try:
            self._place(self._partitions())
        except KafkaException as error:
            raise unreachable(self._bootstrap, error) from error

    def join(self, on_gone: Callable[[int], None]) -> None:
        """Read what the group gives us; ``on_gone`` is told of each partition that it takes.

        Raises:
            Unreachable, ClusterNotFound, InvalidRequest: As `assign_all`.
        """
        self._grouped, self._on_gone = True, on_gone
        try:
            self._partitions()
            self._consumer.subscribe(
                [self._topic], on_assign=guarded(self._on_assign), on_revoke=guarded(self._on_revoke)
            )
        except KafkaException as error:
            raise unreachable(self._bootstrap, error) from error

    def _partitions(self) -> list[int]:
        found = self._look_up()
        if isinstance(self._start, Mapping):
            unknown = sorted(set(self._start) - set(found))
            if unknown:
                raise InvalidRequest(f"{self._topic} has partitions {found}, not {unknown}")
        return found

    def _look_up(self) -> list[int]:
        found = self._consumer.list_topics(self._topic, timeout=CALL_S).topics[self._topic]
        if found.error is not None and found.error.code() in _FORBIDDEN:
            raise Refused(f"{self._topic}: {found.error.str()}. Its reader needs the right READ")
        if found.error is not None or not found.partitions:
            raise no_topic(self._bootstrap, self._topic)
        return sorted(found.partitions)

    def _place(self, partitions: list[int]) -> None:
        """Find out where to begin, and begin there."""
        stored = self._committed(partitions) if self._grouped else {}
        start: Place = self._start
        found = begin(
            self._consumer,
            self._topic,
            [each for each in partitions if each not in stored],
            start,
            to_end=self._to_end,
        )
        if self._grouped and start == "now":
            keep(self._consumer, self._topic, found)
        if stored:
            found += begin(self._consumer, self._topic, list(stored), stored, to_end=self._to_end)
        for progress in found:
            self._read_from(progress)

    def _read_from(self, progress: Progress) -> None:
        self.progress[progress.partition] = progress
        self._unplaced.discard(progress.partition)
        if self._history is not None and progress.offset > progress.begins:
            self._history.add(progress.partition, progress.begins, progress.offset)
        else:
            self._assign(progress)

    def _assign(self, progress: Progress) -> None:
        """Have librdkafka read from where we are.

        Never by pausing and resuming: a partition that was ours before is then read on from an old position.
        """
        place = TopicPartition(self._topic, progress.partition, progress.offset)
        if progress.partition in self._assigned:
            self._consumer.incremental_unassign([place])
        self._assigned.add(progress.partition)
        self._consumer.incremental_assign([place])

    # The group

    def _committed(self, partitions: list[int]) -> dict[int, int | LogPosition]:
        places = [TopicPartition(self._topic, each) for each in partitions]
        found: dict[int, int | LogPosition] = {}
        for each in self._consumer.committed(places, timeout=CALL_S):
            if each.error is not None:
                raise KafkaException(each.error)
            if each.offset >= 0:
                found[each.partition] = known(each)
        return found

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        # Where each begins is asked outside of this callback, where an error reaches the caller. Until then
        # librdkafka has none of them: one that is parked somewhere may be read on from there.
        consumer.incremental_assign([])
        self._unplaced |= {each.partition for each in partitions}

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        gone = {each.partition for each in partitions}
        consumer.incremental_unassign([each for each in partitions if each.partition in self._assigned])
        self._assigned -= gone
        self._held = [message for message in self._held if message.partition() not in gone]
        for each in partitions:
            self._unplaced.discard(each.partition)
            self._off_the_log.discard(each.partition)
            self.progress.pop(each.partition, None)
            if self._history is not None:
                self._history.drop(each.partition)
            self._on_gone(each.partition)

    def begin_commit(self, places: list[TopicPartition]) -> None:
        """Ask Kafka to store positions for the group; `committed` has the answer, while reads go on.

        A commit that waits in the call itself would hold up the very rebalance that it waits for.
        """
        self._committing = {(each.partition, each.offset) for each in places}
        self._commit_answer = None
        try:
            self._consumer.commit(offsets=places, asynchronous=True)
        except KafkaException as error:
            self._commit_answer = error.args[0]

    def committed(self) -> bool | None:
        """Whether positions were stored; False: the group was just shared out anew; None: not known yet.

        Raises:
            Unreachable: Kafka refuses.
        """
        answer = self._commit_answer
        if isinstance(answer, KafkaError):
            if answer.code() not in _REBALANCED:
                raise unreachable(self._bootstrap, answer)
            return False
        return answer

    def _on_commit(self, error: KafkaError | None, places: list[TopicPartition]) -> None:
        if {(each.partition, each.offset) for each in places} != self._committing:
            return  # of an earlier one, for which nobody waits any more
        errors = [each.error for each in places if each.error is not None]
        self._commit_answer = error or next(iter(errors), True)

    def serve(self, timeout: float) -> None:
        """Let librdkafka tell what it has to; a record that comes is kept for the next read."""
        message = self._consumer.poll(timeout)
        if message is not None:
            self._held.append(message)

    # Reading

    @property
    def ended(self) -> bool:
        """Whether everything up to the end was read, where there is an end."""
        return (
            self._to_end
            and bool(self.progress)
            and not self._unplaced
            and not (self._history is not None and self._history.pending)
            and all(each.at_end for each in self.progress.values())
        )

    def read(self, timeout: float) -> list[Taken]:
        """The next events; none after ``timeout`` seconds. What is sound before a gap is given out first.

        Raises:
            LogGap: The next event is gone or out of order. So it stays.
            Unreachable: Kafka doesn't say where to begin in a partition that the group gave us; go on reading
                to ask again.
            ClusterNotFound: The topic was deleted.
            Refused: Kafka forbids it.
        """
        if self._problem is not None:
            raise self._problem
        try:
            timeout = self._prepare(timeout)
            taken: list[Taken] = []
            for message in self._fetch(timeout):
                try:
                    self._take(message, taken)
                except Exception as error:
                    # What was read before it is still to be given out.
                    self._problem = error
                    break
        except KafkaException as error:
            raise unreachable(self._bootstrap, error) from error
        if self._problem is not None and not taken:
            raise self._problem
        return taken

    def _fetch(self, timeout: float) -> list[Message]:
        if self._held:
            held, self._held = self._held, []
            return held
        first = self._consumer.poll(timeout)
        if first is None:
            self._quiet()
            return []
        self._heard_at = time.monotonic()
        return [first, *self._consumer.consume(BATCH_MAX - 1, 0)]

    def _prepare(self, timeout: float) -> float:
        """Find places to read from, and learn what came before; how long to wait for a record then."""
        if self._unplaced:
            self._place(sorted(self._unplaced))
        for partition in sorted(self._off_the_log):
            self._out_of_range(self.progress[partition])
        if self._history is None or not self._history.pending:
            return timeout
        for partition in self._history.step(timeout):
            self._assign(self.progress[partition])
        return 0

    def _quiet(self) -> None:
        if time.monotonic() - self._heard_at >= QUIET_S:
            self._heard_at = time.monotonic()
            self._look_again()

    def _look_again(self) -> None:
        """Make sure that the topic is still there."""
        try:
            self._look_up()
        except KafkaException as error:
            # Brokers come back, and the reader goes on by itself.
            _log.debug("looking for %s: %s", self._topic, error)

    def _take(self, message: Message, taken: list[Taken]) -> None:
        partition, offset = message.partition() or 0, message.offset() or 0
        error = message.error()
        if error is not None:
            self._trouble(partition, offset, error)
            return
        progress = self.progress.get(partition)
        if progress is None or offset < progress.offset:
            # Fetched before the partition was taken from us, or read from elsewhere.
            return
        if progress.end is not None and offset >= progress.end:
            progress.at_end = True
            return
        where = f"{self._topic} [{partition}] at {offset}"
        try:
            event = decode(message.value())
        except RecordError as damage:
            raise LogGap(f"{where} can't be read ({damage.fault}: {damage})") from damage
        if isinstance(event, Event):
            skipped = progress.missing_before(event, offset, where)
            if skipped is not None and not progress.tolerant and not self._allow_gap(skipped):
                raise self._gone(skipped)
            progress.take(event, offset)
            taken.append(Taken(partition, offset, event, skipped))
        progress.offset = offset + 1
        progress.at_end = progress.end is not None and progress.offset >= progress.end

    def _gone(self, skipped: Skipped) -> LogGap:
        return LogGap(
            f"{self._topic} was trimmed before it was read. Missing in {skipped}; the log goes on at offset "
            f"{skipped.resumed_at}. Build what you derive anew and start at the beginning of the log; or go "
            f"on with what is left: from_={{{skipped.partition}: {skipped.resumed_at}}}, or on_gap='skip' to "
            f"skip all such gaps. The retention of the log says how much is kept"
        )

    def _trouble(self, partition: int, offset: int, error: KafkaError) -> None:
        code = error.code()
        progress = self.progress.get(partition)
        if code == KafkaError._PARTITION_EOF:
            if progress is not None and offset >= progress.offset:
                # Behind markers that end transactions: a position there is not lost when they are trimmed.
                progress.offset = offset
                progress.at_end = True
        elif code in (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET):
            if progress is not None:
                # Seen to by the next read: what was read before it is given out first.
                self._off_the_log.add(partition)
        elif code in _GONE:
            self._look_again()
        elif code in _FORBIDDEN or error.fatal():
            raise Refused(f"reading {self._topic} is refused: {error.str()}")
        else:
            _log.debug("%s [%d]: %s", self._topic, partition, error)

    def _out_of_range(self, progress: Progress) -> None:
        """Nothing stands where we want to go on: the log was trimmed, or it is another one."""
        place = TopicPartition(self._topic, progress.partition)
        low, high = self._consumer.get_watermark_offsets(place, timeout=CALL_S)
        if progress.offset >= low:
            raise LogGap(
                f"{self._topic} [{progress.partition}] has nothing at {progress.offset}, it ends at {high}: "
                f"the position is of another one. The topic was made anew, or the log lost its end. Build "
                f"what you derive anew and start at the beginning"
            )
        skipped = Skipped(progress.partition, progress.offset, low, None)
        if progress.seq is None and not progress.tolerant and not self._allow_gap(skipped):
            raise self._gone(skipped)
        # Where the last event's number is known, the next one tells what is missing.
        if progress.trimmed_from is None:
            progress.trimmed_from = progress.offset
        progress.tolerant |= progress.seq is None
        progress.offset = low
        self._assign(progress)
        self._off_the_log.discard(progress.partition)
