"""What librdkafka gives up: said to be not done only where it can't have been."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from relevo.errors import RelevoError
from relevo.kafka_options import no_topic, unreachable
from relevo.sender import Sender, delivery_error

UNKNOWN = ("OutcomeUnknown", "unknown", "same")
FATES = {
    KafkaError._MSG_TIMED_OUT: UNKNOWN,
    KafkaError._TIMED_OUT: UNKNOWN,
    KafkaError._TRANSPORT: UNKNOWN,
    KafkaError.REQUEST_TIMED_OUT: UNKNOWN,
    KafkaError._PURGE_INFLIGHT: UNKNOWN,
    # It may have been sent, lost its answer, and be waiting for its second try
    KafkaError._PURGE_QUEUE: UNKNOWN,
    KafkaError.NOT_ENOUGH_REPLICAS: UNKNOWN,
    # It is in the leader's log, and may be copied yet
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND: UNKNOWN,
    KafkaError.UNKNOWN_TOPIC_OR_PART: ("ClusterNotFound", "not_done", "stop"),
    KafkaError._UNKNOWN_TOPIC: ("ClusterNotFound", "not_done", "stop"),
    KafkaError.MSG_SIZE_TOO_LARGE: ("Refused", "not_done", "stop"),
    KafkaError.RECORD_LIST_TOO_LARGE: ("Refused", "not_done", "stop"),
    KafkaError.TOPIC_AUTHORIZATION_FAILED: ("Refused", "not_done", "stop"),
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: ("Refused", "not_done", "stop"),
    KafkaError.POLICY_VIOLATION: ("Refused", "not_done", "stop"),
    KafkaError.INVALID_RECORD: ("Refused", "not_done", "stop"),
    KafkaError._QUEUE_FULL: ("NotSent", "not_done", "same"),
}


def fate(error: RelevoError) -> tuple[str, str, str]:
    return type(error).__name__, error.outcome, error.retry


@pytest.mark.parametrize("code", FATES, ids=lambda code: KafkaError(code).name())
def test_each_says_what_became_of_it(code: int) -> None:
    error = delivery_error(KafkaError(code), "relevo.commands")
    assert fate(error) == FATES[code]
    assert "relevo.commands" in str(error)


@pytest.mark.parametrize("code", FATES, ids=lambda code: KafkaError(code).name())
def test_of_one_that_may_have_been_sent_before_nothing_is_certain(code: int) -> None:
    """Its first try was done and the answer lost; by the second the right to write was gone."""
    error = delivery_error(KafkaError(code), "relevo.commands", first_try=False)
    assert fate(error) == (FATES[code][0], "unknown", "same")


def test_a_right_that_is_missing_says_which() -> None:
    error = delivery_error(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), "relevo.commands")
    assert "right to write" in str(error)


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,
    ],
)
def test_whom_kafka_does_not_let_in_is_not_told_that_it_is_away(code: int) -> None:
    """Somebody looks for a network that is down, or makes topics that are there."""
    for error in (unreachable("b:9092", KafkaError(code)), no_topic("b:9092", "t", KafkaError(code))):
        assert fate(error) == ("Refused", "not_done", "stop")
        assert "b:9092" in str(error)
    assert fate(unreachable("b:9092", KafkaError(KafkaError._TRANSPORT))) == (
        "Unreachable",
        "not_done",
        "elsewhere",
    )


def test_what_librdkafka_will_not_take_is_told_apart_from_a_full_queue() -> None:
    """Both come back from the same call; only one of them is worth another try. No broker is asked."""
    options = {"queue_buffering_max_messages": 2, "message_max_bytes": 2_000}
    sender = Sender("127.0.0.1:9", options)
    try:
        values = [b"a", b"x" * 5_000, b"b", b"c"]
        messages = [{"key": b"k", "value": v, "partition": 0, "callback": print} for v in values]
        left, refused = sender.send_batch("topic", messages)
        assert [(each["value"][:1], error.code()) for each, error in refused] == [
            (b"x", KafkaError.MSG_SIZE_TOO_LARGE)
        ]
        assert [each["value"] for each in left] == [b"c"]
    finally:
        sender.close(0)
