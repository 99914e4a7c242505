"""Asks Kafka for offsets by an admin client, which by itself may ask in vain for a quarter of an hour."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Final, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined] # its stubs re-export without saying so
    AdminClient,
    ListOffsetsResultInfo,
    OffsetSpec,
)

ANSWER_GRACE_S: Final = 1.0
"""The client itself tells that a request came to nothing; this much later, whatever it does."""
UNSETTLED_S: Final = 2.0
"""For so long brokers may not know a topic that was just made, or who leads it now, or how far it reaches."""
UNSETTLED_STEP_S: Final = 0.1
UNSETTLED: Final = frozenset(
    {
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError._NOENT,  # noqa: SLF001,RUF100 - the client's public name: it knows no leader
    }
)
"""What the client, or a broker, knows of a partition's leader is not, or not yet, so: it passes."""
T = TypeVar("T")


def settled(ask: Callable[[], T]) -> T:
    """What ``ask`` gives; it is asked again for a moment where brokers have yet to settle who leads.

    After the death of a broker the others answer so for a tenth of a second or two. Whoever takes it for the
    end of Kafka lets go of a partition for seconds.

    Raises:
        KafkaException: Something else is the matter, or they don't settle within `UNSETTLED_S`.
    """
    deadline = time.monotonic() + UNSETTLED_S
    while True:
        try:
            return ask()
        except KafkaException as raised:
            if raised.args[0].code() not in UNSETTLED or time.monotonic() > deadline:
                raise
        time.sleep(UNSETTLED_STEP_S)


def ask_offsets(
    client: AdminClient,
    wanted: Mapping[TopicPartition, OffsetSpec],
    timeout_s: float,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[TopicPartition, int | KafkaError]:
    """The offset in each partition, or why there is none.

    A consumer that is told that it asks the wrong broker, or by a leader's epoch that is over, learns who
    leads and asks again. An admin client does neither (librdkafka 2.16): after each restart of a broker,
    and each move of a leader, it gets the same error until it forgets what it knows, 15 minutes later by
    default. So it is made to learn here.

    Args:
        client: Asks.
        wanted: Which offset of each partition: the earliest, the latest, the first of a time on.
        timeout_s: For each question, in seconds; while brokers settle there may be several.
        isolation: Whether the latest lies before open transactions.

    Raises:
        KafkaException: It can't be asked for these at all.
        TimeoutError: The client said nothing, not even that its request came to nothing.
    """
    if not wanted:
        return {}
    deadline = time.monotonic() + UNSETTLED_S
    found = _ask(client, wanted, timeout_s, isolation)
    while stale := {where: wanted[where] for where, answer in found.items() if _is_stale(answer)}:
        if time.monotonic() > deadline:
            break
        for topic in {where.topic for where in stale}:
            with suppress(KafkaException):  # what was found before tells why there is no answer
                client.list_topics(topic, timeout_s)
        found |= _ask(client, stale, timeout_s, isolation)
        # The one that leads may itself be the last to hear of it.
        if any(_is_stale(found[where]) for where in stale):
            time.sleep(UNSETTLED_STEP_S)
    return found


def ask_offset(
    client: AdminClient,
    topic: str,
    partition: int,
    which: OffsetSpec,
    timeout_s: float,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> int:
    """As `ask_offsets`, of one partition.

    Raises:
        KafkaException: There is none, and why.
        TimeoutError: As above.
    """
    wanted = {TopicPartition(topic, partition): which}
    (answer,) = ask_offsets(client, wanted, timeout_s, isolation).values()
    if isinstance(answer, KafkaError):
        raise KafkaException(answer)
    return answer


def _ask(
    client: AdminClient,
    wanted: Mapping[TopicPartition, OffsetSpec],
    timeout_s: float,
    isolation: IsolationLevel,
) -> dict[TopicPartition, int | KafkaError]:
    futures = client.list_offsets(dict(wanted), isolation_level=isolation, request_timeout=timeout_s)
    return {where: _answer(future, timeout_s + ANSWER_GRACE_S) for where, future in futures.items()}


def _answer(future: Future[ListOffsetsResultInfo], timeout_s: float) -> int | KafkaError:
    try:
        return int(future.result(timeout_s).offset)
    except KafkaException as raised:
        error: KafkaError = raised.args[0]
        return error


def _is_stale(answer: int | KafkaError) -> bool:
    return isinstance(answer, KafkaError) and answer.code() in UNSETTLED
