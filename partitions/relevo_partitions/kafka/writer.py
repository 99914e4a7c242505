"""Writes one transaction after the other with a fenced producer, and says exactly how each ended."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from relevo_partitions.fork import ForkGuard
from relevo_partitions.kafka.connection import FENCED, Connection, Faults, cause_of, drop_in_background
from relevo_partitions.outcomes import Aborted, Committed, Fenced, Outcome, Unclear
from relevo_partitions.statemachine import Write

TRANSACTION_TIMEOUT_S: Final = 10.0
"""After so long the broker aborts a transaction that wasn't ended, and readers behind it go on."""
DELIVERY_TIMEOUT_S: Final = 8.0
"""After so long a record counts as not deliverable. Below the transaction's time-out, so that we abort, not
the broker: its abort would fence us."""
COMMIT_TIMEOUT_S: Final = 10.0
ABORT_TIMEOUT_S: Final = 5.0
METADATA_TIMEOUT_S: Final = 1.0
QUEUE_FULL_WAIT_S: Final = 0.05
SLICE_MAX: Final = 5_000
"""Most records handed to librdkafka in one call: Python's other threads, ZooKeeper's among them, stand still
until it returns."""

DROPPED_STRAY: Final = (
    "the producer was dropped: a connection of its broke, and what was sent over it may still arrive"
)

_Batches = dict[tuple[str, int], list[dict[str, Any]]]


def producer_settings(connection: Connection, faults: Faults, transactional_id: str) -> dict[str, Any]:
    """Settings of a leader's producer."""
    return connection.settings(
        faults,
        {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": int(TRANSACTION_TIMEOUT_S * 1000),
            "message.timeout.ms": int(DELIVERY_TIMEOUT_S * 1000),
            "acks": "all",
            "enable.idempotence": True,
            "delivery.report.only.error": True,
            "linger.ms": 0,
            # Back to back transactions wait this long for the one before to be finished by the brokers.
            "retry.backoff.ms": 5,
            "retry.backoff.max.ms": 100,
            "compression.type": "lz4",
            "log_level": 6,  # so that a broken connection is heard of
        },
    )


class TransactionalWriter:
    """One transaction per `commit`; used by one thread at a time.

    Args:
        producer: Initialised: its `init_transactions` has succeeded.
        faults: Hears the producer's background errors.
        connection: Puts errors into words.
        log_topic: A topic that can't be written is to blame alone only if this one could be.
        checkpoint: Called with a name between steps, for tests that stop a leader in the middle.
    """

    def __init__(
        self,
        producer: Producer,
        faults: Faults,
        connection: Connection,
        log_topic: str,
        checkpoint: Callable[[str], None] | None = None,
    ) -> None:
        self._producer: Producer | None = producer
        self._faults = faults
        self._connection = connection
        self._log_topic = log_topic
        self._checkpoint = checkpoint
        self._fork = ForkGuard("a transactional writer")
        self._undelivered: dict[str, KafkaError] = {}
        self._proven: set[str] = set()
        """Topics that stood in a transaction that committed."""
        self._dropped = "the producer was dropped"

    def commit(self, writes: Sequence[Write]) -> Outcome:
        """Write all or nothing. See `relevo_partitions.ports.Writer.commit`."""
        self._fork.check()
        producer = self._producer
        if producer is None:
            return Unclear(self._dropped)
        # One batch per partition: produce_batch() takes a partition for each record too, and ignores it.
        batches: _Batches = defaultdict(list)
        for topic, partition, key, value in writes:
            batches[topic, partition].append({"value": value, "key": key})
        began = time.monotonic()
        outcome = self._transact(producer, batches)
        if not (outcome is None or isinstance(outcome, Aborted)):
            self.drop()
        elif self._may_end_the_next(producer):
            self._dropped = DROPPED_STRAY
            self.drop()
        return outcome or Committed(len(writes), time.monotonic() - began)

    def missing(self, topic: str, partition: int) -> str | None:
        """See `relevo_partitions.ports.Writer.missing`. A producer's connection is free to answer at once."""
        producer = self._producer
        if producer is None:
            return None
        try:
            found = producer.list_topics(topic, timeout=METADATA_TIMEOUT_S).topics[topic]
        except (KafkaException, SystemError):
            return None  # Kafka is silent, or the producer is dead: the next commit says which
        no_topic = found.error is not None and found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
        if no_topic or (found.error is None and partition not in found.partitions):
            return f"{topic} [{partition}] doesn't exist in Kafka at {self._connection.bootstrap}"
        return None

    def drop(self) -> None:
        """Let the producer go, in another thread."""
        producer, self._producer = self._producer, None
        if producer is not None:
            drop_in_background(producer)

    def _may_end_the_next(self, producer: Producer) -> bool:
        """Whether the end of a transaction may be on its way still, although librdkafka has sent it again.

        The brokers can't tell one transaction of a producer from its next: a stray commit that arrives while
        that is half written commits the half. A producer behind a new fence is another one.
        """
        with contextlib.suppress(KafkaException, SystemError):
            producer.poll(0)  # serves log lines
        return self._faults.connection_lost

    def _transact(self, producer: Producer, batches: _Batches) -> Outcome | None:
        """None where the transaction committed."""
        self._undelivered.clear()
        deadline = time.monotonic() + DELIVERY_TIMEOUT_S
        try:
            self._point("begin")
            producer.begin_transaction()
            for topic, partition, records in _slices(batches):
                problem = self._produce(producer, topic, partition, records, deadline)
                if problem is not None:
                    return self._abort(producer, f"topic {topic}: {problem}", self._others((topic,), batches))
            # Reports of failed deliveries have been served when this returns; successes are not reported.
            left = producer.flush(max(0.0, deadline - time.monotonic()) + 1.0)
        except (KafkaException, SystemError) as raised:
            error = cause_of(raised) or _named_again(producer)
            return self._not_committed(producer, error) if error else Unclear(f"transaction: {raised}")
        if self._undelivered or left:
            return self._abort(producer, *self._blame(batches, left))
        try:
            self._point("commit")
            producer.commit_transaction(COMMIT_TIMEOUT_S)
        except (KafkaException, SystemError) as raised:
            error = cause_of(raised) or _named_again(producer)
            return self._commit_failed(producer, error, batches) if error else Unclear(f"commit: {raised}")
        if self._undelivered:
            # The client said yes to a transaction that lacks records: only the log can be believed.
            return Unclear(f"committed although records were not delivered: {self._blame(batches, 0)[0]}")
        self._proven.update(topic for topic, _ in batches)
        self._point("committed")
        return None

    def _produce(
        self, producer: Producer, topic: str, partition: int, records: list[dict[str, Any]], deadline: float
    ) -> str | None:
        """Hand ``records`` to librdkafka in order; what went wrong, or None."""
        while True:
            try:
                producer.produce_batch(topic, records, partition=partition, on_delivery=self._delivered)
            except BufferError as error:
                return str(error)
            taken = next((index for index, record in enumerate(records) if "_error" in record), len(records))
            if taken == len(records):
                return None
            records = records[taken:]
            problem = records[0]["_error"]
            if not isinstance(problem, KafkaError) or problem.code() != KafkaError._QUEUE_FULL:
                return self._words(problem)
            if not all("_error" in record for record in records):
                return "the client's queue took records out of order"
            if time.monotonic() > deadline:
                return f"the client's queue stayed full for {DELIVERY_TIMEOUT_S:g} s"
            for record in records:
                del record["_error"]
            producer.flush(QUEUE_FULL_WAIT_S)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        """Delivery report of a failed record; must not raise."""
        if error is not None:
            self._undelivered.setdefault(message.topic() or "", error)

    def _blame(self, batches: _Batches, left: int) -> tuple[str, tuple[str, ...]]:
        """Why records were not delivered, and the topics that are to blame."""
        if not self._undelivered:
            return f"{left} records were not acknowledged within {DELIVERY_TIMEOUT_S:g} s", ()
        # Once one record failed, librdkafka purges others of the transaction: that isn't their topic's fault.
        own = {t: e for t, e in self._undelivered.items() if e.code() not in _PURGED}
        if own:
            topic, error = next(iter(own.items()))
            return f"topic {topic}: {self._words(error)}", self._others(own, batches)
        # The transaction took none of its topics, as where one of them may not be written: the brokers then
        # refuse all at once, and librdkafka doesn't tell which it was.
        topic, error = next(iter(self._undelivered.items()))
        taking_part = {topic for topic, _ in batches} - {self._log_topic}
        suspects = sorted(taking_part - self._proven) or sorted(taking_part)
        reason = f"one of {', '.join(suspects or [topic])} can't be written: {self._words(error)}"
        return reason, self._others(suspects, batches)

    def _others(self, topics: Iterable[str], batches: _Batches) -> tuple[str, ...]:
        """``topics``, where the log was to be written too and isn't among them: it was no problem."""
        topics = tuple(topics)
        writes_log = any(topic == self._log_topic for topic, _ in batches)
        return topics if writes_log and self._log_topic not in topics else ()

    def _commit_failed(self, producer: Producer, error: KafkaError, batches: _Batches) -> Outcome:
        if error.code() in FENCED:
            return Fenced(self._words(error))
        if error.txn_requires_abort():
            reason, topics = self._blame(batches, 0) if self._undelivered else (self._words(error), ())
            return self._abort(producer, reason, topics)
        return Unclear(f"commit: {self._words(error)}")

    def _not_committed(self, producer: Producer, error: KafkaError) -> Outcome:
        """An error before the commit was asked for: the transaction can't have committed."""
        if error.code() in FENCED:
            return Fenced(self._words(error))
        if error.fatal() or not error.txn_requires_abort():
            return Unclear(f"transaction: {self._words(error)}")
        return self._abort(producer, self._words(error), ())

    def _abort(self, producer: Producer, reason: str, topics: tuple[str, ...]) -> Outcome:
        try:
            self._point("abort")
            producer.abort_transaction(ABORT_TIMEOUT_S)
        except (KafkaException, SystemError) as raised:
            problem = cause_of(raised) or _named_again(producer)
            if problem is not None and problem.code() in FENCED:
                return Fenced(self._words(problem))
            return Unclear(f"{reason}; the abort failed too: {self._words(problem or raised)}")
        return Aborted(reason, topics)

    def _words(self, error: object) -> str:
        if isinstance(error, KafkaError):
            fatal = self._faults.fatal
            cause = f" after {fatal.str()}" if fatal is not None and fatal.code() != error.code() else ""
            return self._connection.describe(error, self._faults) + self._connection.redact(cause)
        return self._connection.redact(str(error))

    def _point(self, name: str) -> None:
        if self._checkpoint is not None:
            self._checkpoint(name)


def _slices(batches: _Batches) -> Iterator[tuple[str, int, list[dict[str, Any]]]]:
    for (topic, partition), records in batches.items():
        for at in range(0, len(records), SLICE_MAX):
            yield topic, partition, records[at : at + SLICE_MAX]


def _named_again(producer: Producer) -> KafkaError | None:
    """A dead producer's error, which the binding may lose while it serves several callbacks at once.

    Only for a producer that isn't used again: where it isn't dead after all, this may begin a transaction.
    """
    try:
        producer.begin_transaction()
    except (KafkaException, SystemError) as raised:
        error = cause_of(raised)
        return error if error is not None and error.fatal() else None
    return None


_PURGED: Final = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})
