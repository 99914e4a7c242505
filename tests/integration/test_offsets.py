"""Where partitions begin and end: asked until brokers have settled who leads, restart or not."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined] # its stubs re-export without saying so
    AdminClient,
    OffsetSpec,
)

from relevo_engine.topic_admin import TopicAdmin
from relevo_partitions.kafka import offsets
from relevo_partitions.kafka.connection import Connection
from relevo_partitions.kafka.ends import PartitionEnds
from relevo_partitions.kafka.log_care import LogCare
from relevo_partitions.kafka.offsets import UNSETTLED, ask_offset, ask_offsets, settled
from tests.support.fixtures import StartBrokers

LATEST = OffsetSpec.latest()  # type: ignore[no-untyped-call]


def test_after_a_brokers_restart(own_brokers: StartBrokers, cluster_name: str) -> None:
    """It raises each leader's epoch. An admin client goes on with the former one, and is refused."""
    brokers = own_brokers()
    connection = Connection(brokers.kafka)
    topics = TopicAdmin(brokers.kafka, cluster_name)
    topics.init(1, [], allow_unsafe=True)
    log = f"{cluster_name}.log"
    ends, care, admin = (
        PartitionEnds(connection),
        LogCare(connection, cluster_name, 0),
        AdminClient({"bootstrap.servers": brokers.kafka}),
    )
    earliest = {TopicPartition(log, 0): OffsetSpec.earliest()}  # type: ignore[no-untyped-call]

    def ask() -> None:
        """Each of them twice: what the first question costs is over then."""
        for _ in range(2):
            assert ends.end(log, 0) == 0
            assert care.bounds().end == 0
            assert topics.stability([(log, 0)]).keys() == {(log, 0)}
            found = ask_offsets(admin, earliest, 10.0, IsolationLevel.READ_COMMITTED)
            assert list(found.values()) == [0]

    ask()
    brokers.kafka_servers[0].kill()
    brokers.kafka_servers[0].restart()
    brokers.await_brokers()
    ask()
    care.close()


class Answers:
    """Gives one answer after the other, the last one for ever; an error is raised."""

    def __init__(self, *answers: int | str) -> None:
        self._answers = deque(answers)
        self.asked = 0

    def __call__(self) -> str:
        self.asked += 1
        answer = self._answers.popleft() if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, int):
            raise KafkaException(KafkaError(answer))
        return answer


@pytest.mark.parametrize("code", sorted(UNSETTLED))
def test_brokers_that_settle_who_leads_are_asked_again(code: int) -> None:
    """They answer so for a moment after each death of a broker; a partition would be let go of."""
    answers = Answers(code, code, "there")
    assert settled(answers) == "there"
    assert answers.asked == 3


def test_those_that_never_settle_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else may reach others."""
    monkeypatch.setattr(offsets, "UNSETTLED_S", 0.2)
    answers = Answers(KafkaError.NOT_LEADER_FOR_PARTITION)
    with pytest.raises(KafkaException):
        settled(answers)
    assert answers.asked > 1


def test_what_does_not_pass_is_told_at_once() -> None:
    """Kafka refuses, or isn't there: to ask again changes nothing."""
    answers = Answers(KafkaError.TOPIC_AUTHORIZATION_FAILED, "never")
    with pytest.raises(KafkaException):
        settled(answers)
    assert answers.asked == 1


class Client:
    """An admin client of one partition: gives one answer after the other, and learns who leads if told."""

    def __init__(self, *answers: int | KafkaError) -> None:
        self._answers = deque(answers)
        self.learnt: list[str] = []

    def list_offsets(
        self, wanted: Mapping[TopicPartition, object], **_: object
    ) -> dict[TopicPartition, object]:
        (where,), answer = wanted, self._answers.popleft()
        future: Future[object] = Future()
        if isinstance(answer, KafkaError):
            future.set_exception(KafkaException(answer))
        else:
            future.set_result(SimpleNamespace(offset=answer))
        return {where: future}

    def list_topics(self, topic: str, _timeout_s: float) -> None:
        self.learnt.append(topic)


def test_a_client_that_is_behind_learns_and_one_that_is_ahead_waits() -> None:
    """By the word of the others a broker leads before it knows so itself: one more question isn't enough."""
    fenced, early = KafkaError(KafkaError.FENCED_LEADER_EPOCH), KafkaError(KafkaError.UNKNOWN_LEADER_EPOCH)
    client = Client(fenced, early, early, 7)
    assert ask_offset(client, "t", 0, LATEST, 1.0) == 7  # type: ignore[arg-type]
    assert client.learnt == ["t"] * 3


def test_a_client_that_is_refused_is_told_at_once() -> None:
    """Whatever isn't about who leads won't pass."""
    client = Client(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(KafkaException):
        ask_offset(client, "t", 0, LATEST, 1.0)  # type: ignore[arg-type]
    assert client.learnt == []
