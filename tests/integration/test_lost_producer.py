"""librdkafka gives an idempotent producer up for good: who uses it is told, and nobody waits for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException

import relevo
from relevo.errors import NotSent
from relevo.sender import Sender
from tests.support.waiting import wait_until

NOBODY = "127.0.0.1:9"
WHY = KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, "sequence 7 is missing", fatal=True)


class LostProducer:
    """As confluent_kafka's is after a fatal error: the next poll raises it, each new record is refused."""

    def __init__(self) -> None:
        self.told = threading.Event()

    def __len__(self) -> int:
        return 0

    def poll(self, timeout: float) -> int:
        if not self.told.is_set():
            self.told.set()
            raise KafkaException(WHY)
        time.sleep(0.001)
        return 0

    def produce(self, *record: object) -> None:
        raise KafkaException(KafkaError(KafkaError._FATAL))

    def produce_batch(self, topic: str, messages: list[dict[str, object]]) -> int:
        for each in messages:
            each["_error"] = KafkaError(KafkaError._FATAL)
        return 0

    def flush(self, timeout: float) -> int:
        return 0


@pytest.fixture
def sender() -> Iterator[Sender]:
    sender = Sender(NOBODY, {})
    yield sender
    sender.close(0)


def lose(sender: Sender, *, silently: bool = False) -> None:
    """Its producer is given up; ``silently``: nobody polls before the next record."""
    lost = LostProducer()
    if silently:
        lost.told.set()
    sender._producer = lost  # type: ignore[assignment]
    assert lost.told.wait(30)


def test_it_is_known_from_the_next_poll_on_and_told_once(sender: Sender) -> None:
    faults: list[relevo.RelevoError] = []
    sender.at_fault(faults.append)
    lose(sender)
    wait_until(lambda: faults, "it is told")
    assert "sequence 7 is missing" in str(sender.fault)
    assert not sender.try_send("t", b"k", b"v", print)
    assert [str(each) for each in faults] == [str(sender.fault)]
    with pytest.raises(NotSent, match="make a new client") as raised:
        sender.check()
    assert (raised.value.outcome, raised.value.retry) == ("not_done", "stop")


@pytest.mark.parametrize("by", ["one", "many"])
def test_a_record_can_be_what_finds_out(sender: Sender, by: str) -> None:
    """Its sender must not take the refusal for the record's, nor for a full queue."""
    faults: list[relevo.RelevoError] = []
    sender.at_fault(faults.append)
    lose(sender, silently=True)
    if by == "one":
        assert not sender.try_send("t", b"k", b"v", print)
    else:
        message = {"key": b"k", "value": b"v", "partition": 0, "callback": print}
        assert sender.send_batch("t", [message]) == ([message], [])
    assert [type(each) for each in faults] == [NotSent]


def test_who_asks_late_hears_of_it_too(sender: Sender) -> None:
    lose(sender, silently=True)
    sender.try_send("t", b"k", b"v", print)
    faults: list[relevo.RelevoError] = []
    sender.at_fault(faults.append)
    assert len(faults) == 1


def test_a_client_is_told_at_once_that_it_is_of_no_more_use() -> None:
    """Not after a timeout, and not that the outcome is unknown: it would try again for ever."""
    with relevo.Client(NOBODY) as client:
        lose(client._core.sender)
        wait_until(lambda: client._core.sender.fault, "it is known")
        with pytest.raises(NotSent, match="make a new client"):
            client.create("send-email", key="a")
        with pytest.raises(NotSent, match="make a new client"):
            list(client.create_many([{"type": "send-email", "key": "b"}]))


def test_a_worker_ends_and_says_why() -> None:
    """It would run its buffer empty, tell nobody, and have all of it run again elsewhere."""
    app = relevo.WorkerApp(NOBODY, http="127.0.0.1:0")
    app.job("send-email")(lambda job: None)
    raised: list[BaseException] = []

    def run() -> None:
        try:
            app.run(drain=5)
        except relevo.RelevoError as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: app._workers.shared is not None and app.alive, "it works")
    shared = app._workers.shared
    assert shared is not None
    lose(shared.sender)
    thread.join(30)
    assert not thread.is_alive()
    assert "sequence 7 is missing" in str(raised[0])
    assert not app.alive
