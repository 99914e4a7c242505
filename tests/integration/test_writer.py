"""How transactions end on a real broker: each ending is told apart, and none is taken for another."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from relevo_partitions.errors import UsedAfterFork
from relevo_partitions.kafka.connection import Connection, Faults, QuietLog
from relevo_partitions.kafka.fence import ProducerPool, fence
from relevo_partitions.kafka.writer import TransactionalWriter, producer_settings
from relevo_partitions.outcomes import Aborted, Committed, Fenced
from relevo_partitions.statemachine import Write
from tests.support.brokers import Brokers
from tests.support.counter_cluster import read_all
from tests.support.waiting import wait_until


class Bench:
    """A log and an activation topic, two partitions each."""

    def __init__(self, kafka: str, name: str) -> None:
        self.kafka, self.name = kafka, name
        self.log, self.other, self.missing = f"{name}.log", f"{name}.other", f"{name}.missing"
        self.connection = Connection(kafka)
        admin = AdminClient({"bootstrap.servers": kafka})
        small = {"max.message.bytes": "1000"}
        topics = [NewTopic(self.log, 2, 1), NewTopic(self.other, 2, 1, config=small)]
        for made in admin.create_topics(topics).values():
            made.result(30)

    def writer(
        self, checkpoint: Callable[[str], None] | None = None, settings: dict[str, Any] | None = None
    ) -> TransactionalWriter:
        if settings:
            faults = Faults()
            made = producer_settings(self.connection, faults, f"{self.name}-0")
            producer = Producer({**made, **settings})
            producer.init_transactions(30)
        else:
            pool = ProducerPool(self.connection, f"{self.name}-0", self.log)
            producer, faults = fence(pool, lambda: False)
        return TransactionalWriter(producer, faults, self.connection, self.log, checkpoint)

    def committed(self, topic: str, partition: int = 0) -> list[bytes]:
        return read_all(self.kafka, topic, partition)


@pytest.fixture
def bench(brokers: Brokers, cluster_name: str) -> Bench:
    return Bench(brokers.kafka, cluster_name)


def test_each_record_lands_in_its_partition_in_order(bench: Bench) -> None:
    """The client takes a partition for each record of a batch, and ignores it."""
    writes = [
        Write(topic, partition, b"k", b"%d" % index)
        for index in range(50)
        for topic in (bench.log, bench.other)
        for partition in (1, 0)
    ]
    outcome = bench.writer().commit(writes)
    assert isinstance(outcome, Committed)
    assert outcome.records == 200
    expected = [b"%d" % index for index in range(50)]
    for topic in (bench.log, bench.other):
        assert [bench.committed(topic, partition) for partition in (0, 1)] == [expected, expected]


def test_a_topic_that_is_missing_is_named_and_nothing_is_written(bench: Bench) -> None:
    writer = bench.writer()
    outcome = writer.commit([Write(bench.log, 0, b"", b"x"), Write(bench.missing, 0, b"", b"y")])
    assert isinstance(outcome, Aborted)
    assert outcome.topics == (bench.missing,)
    assert bench.committed(bench.log) == []
    assert isinstance(writer.commit([Write(bench.log, 0, b"", b"z")]), Committed), (
        "goes on after a clean abort"
    )
    assert bench.committed(bench.log) == [b"z"]


def test_a_partition_that_does_not_exist_is_an_abort(bench: Bench) -> None:
    writer = bench.writer()
    assert isinstance(writer.commit([Write(bench.log, 0, b"", b"warm")]), Committed)
    outcome = writer.commit([Write(bench.log, 0, b"", b"x"), Write(bench.other, 9, b"", b"y")])
    assert isinstance(outcome, Aborted)
    assert outcome.topics == (bench.other,)
    assert bench.committed(bench.log) == [b"warm"]


def test_a_record_that_the_broker_refuses_aborts_the_whole(bench: Bench) -> None:
    outcome = bench.writer().commit(
        [Write(bench.log, 0, b"", b"x"), Write(bench.other, 0, b"", os.urandom(5000))]
    )
    assert isinstance(outcome, Aborted)
    assert outcome.topics == (bench.other,)
    assert "too large" in outcome.reason
    assert bench.committed(bench.log) == bench.committed(bench.other) == []


def test_a_failing_log_is_never_blamed_on_another_topic(bench: Bench) -> None:
    writer = bench.writer()
    outcome = writer.commit([Write(bench.log, 9, b"", b"x"), Write(bench.other, 0, b"", b"y")])
    assert isinstance(outcome, Aborted)
    assert outcome.topics == ()


class Refusing:
    """A producer whose transactions are refused as a whole, as where one topic may not be written."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._taken: list[tuple[str, Callable[[KafkaError, Any], None]]] = []

    def produce_batch(
        self, topic: str, records: Any, *, partition: int, on_delivery: Callable[[KafkaError, Any], None]
    ) -> None:
        self._taken.append((topic, on_delivery))

    def flush(self, timeout: float) -> int:
        taken, self._taken = self._taken, []
        if any(topic == self._topic for topic, _ in taken):
            for topic, tell in taken:
                tell(KafkaError(KafkaError._PURGE_QUEUE), MagicMock(**{"topic.return_value": topic}))
        return 0

    def __getattr__(self, name: str) -> Any:
        return lambda *_: 0


def test_a_topic_that_may_not_be_written_is_found_though_kafka_does_not_name_it() -> None:
    """Nothing of any type would be decided any more: all topics of the transaction say the same."""
    connection = Connection("127.0.0.1:1")
    writer = TransactionalWriter(Refusing("sms"), Faults(), connection, "log")  # type: ignore[arg-type]
    both = [Write(topic, 0, b"", b"x") for topic in ("log", "mail", "sms")]
    outcome = writer.commit(both)
    assert isinstance(outcome, Aborted)
    assert outcome.topics == ("mail", "sms")
    assert "mail, sms" in outcome.reason
    assert isinstance(writer.commit(both[:2]), Committed)
    outcome = writer.commit(both)
    assert isinstance(outcome, Aborted)
    assert outcome.topics == ("sms",)


def test_a_full_client_queue_is_waited_for(bench: Bench) -> None:
    """Records that the client refuses for want of room must be offered again, in order."""
    writer = bench.writer(settings={"queue.buffering.max.messages": 64})
    values = [b"%d" % index for index in range(1000)]
    assert isinstance(writer.commit([Write(bench.log, 0, b"", value) for value in values]), Committed)
    assert bench.committed(bench.log) == values


@pytest.mark.parametrize("point", ["begin", "commit"])
def test_a_leader_that_sleeps_within_a_transaction_wakes_up_fenced(bench: Bench, point: str) -> None:
    successor: list[TransactionalWriter] = []

    def asleep(name: str) -> None:
        if name == point and not successor:
            successor.append(bench.writer())
            assert isinstance(successor[0].commit([Write(bench.log, 0, b"", b"successor")]), Committed)

    outcome = bench.writer(asleep).commit(
        [Write(bench.log, 0, b"", b"sleeper"), Write(bench.other, 0, b"", b"s")]
    )
    assert isinstance(outcome, Fenced)
    assert bench.committed(bench.log) == [b"successor"]
    assert bench.committed(bench.other) == []


def test_a_leader_that_sleeps_longer_than_its_transaction_may_last_is_told(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker has aborted the transaction meanwhile; the lone producer hears that it was fenced."""

    def asleep(name: str) -> None:
        if name == "commit":
            foreign = Producer({"bootstrap.servers": bench.kafka})
            foreign.produce(bench.log, b"behind it", partition=0)
            foreign.flush(30)
            wait_until(lambda: bench.committed(bench.log) == [b"behind it"], "the broker has aborted it")

    monkeypatch.setattr("relevo_partitions.kafka.writer.TRANSACTION_TIMEOUT_S", 1.0)
    monkeypatch.setattr("relevo_partitions.kafka.writer.DELIVERY_TIMEOUT_S", 0.9)
    writer = bench.writer(asleep)
    assert not isinstance(writer.commit([Write(bench.log, 0, b"", b"late")]), Committed)
    monkeypatch.undo()
    assert isinstance(bench.writer().commit([Write(bench.log, 0, b"", b"next")]), Committed)
    assert bench.committed(bench.log) == [b"behind it", b"next"]


def test_a_delivery_report_never_raises_into_the_client(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception in a report makes the commit raise although it goes on."""
    reports: list[str] = []
    original = TransactionalWriter._delivered

    def spying(self: TransactionalWriter, error: KafkaError | None, message: object) -> None:
        reports.append(type(error).__name__)
        original(self, error, message)  # type: ignore[arg-type]

    monkeypatch.setattr(TransactionalWriter, "_delivered", spying)
    writer = bench.writer()
    assert isinstance(writer.commit([Write(bench.log, 0, b"", b"x")]), Committed)
    assert reports == [], "successes aren't reported one by one"
    writer.commit([Write(bench.missing, 0, b"", b"y")])
    assert reports == ["KafkaError"]


def test_a_writer_used_in_a_forked_child_says_so(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's threads don't exist in the child: its records would never be sent."""
    writer = bench.writer()
    monkeypatch.setattr("os.getpid", lambda: -1)
    with pytest.raises(UsedAfterFork, match="transactional writer was made before a fork"):
        writer.commit([Write(bench.log, 0, b"", b"x")])


def test_secrets_stay_out_of_logs_and_errors(caplog: pytest.LogCaptureFixture) -> None:
    connection = Connection("127.0.0.1:9", {"sasl.password": "hunter2", "sasl.username": "relevo-user"})
    with caplog.at_level(logging.DEBUG):
        QuietLog(connection.redact).log(
            logging.ERROR, "%s [%s] %s", "FAIL", "rdkafka", "hunter2 for relevo-user"
        )
    assert "hunter2" not in caplog.text
    assert "relevo-user" not in caplog.text
    assert "[redacted]" in caplog.text
    described = connection.describe(KafkaError(KafkaError._AUTHENTICATION, "bad hunter2"), Faults())
    assert "hunter2" not in described


def test_options_that_would_break_a_guarantee_are_refused() -> None:
    with pytest.raises(ValueError, match=r"may not set acks, transactional\.id"):
        Connection("127.0.0.1:9", {"acks": 1, "transactional.id": "mine", "sasl.mechanism": "PLAIN"})
