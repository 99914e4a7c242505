"""Keys and partitions: as Kafka's clients put them."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka import Message, Producer

from relevo_schemas.partitioning import murmur2, partition_of


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_gives_the_published_values(key: bytes, expected: int) -> None:
    """The values that Kafka's own clients are tested with, as signed numbers."""
    assert murmur2(key) == expected & 0xFFFFFFFF


def test_keys_go_where_librdkafka_puts_them() -> None:
    """One key on two partitions would be two jobs. The client's own mock of a cluster shows where."""
    producer = Producer(
        {
            "test.mock.num.brokers": 1,
            "bootstrap.servers": "127.0.0.1:1",
            "partitioner": "murmur2",
            "log_level": 0,
        }
    )
    keys = [
        b"",
        b"x",
        "schlüssel-ü".encode(),
        *(f"order-{n}/{'z' * (n % 9)}".encode() for n in range(300)),
        bytes(range(256)),
    ]
    found: dict[bytes, int] = {}
    failed = threading.Event()

    def delivered(error: object, message: Message) -> None:
        if error is not None:
            failed.set()
            return
        partition = message.partition()
        assert partition is not None
        found[message.key() or b""] = partition

    for key in keys:
        producer.produce("t", key=key, value=b"", on_delivery=delivered)
    assert producer.flush(30) == 0
    assert not failed.is_set()
    partitions = max(found.values()) + 1
    assert partitions > 1
    assert {key: partition_of(key, partitions) for key in keys} == found


def test_text_and_bytes_are_one_key() -> None:
    assert partition_of("schlüssel", 7) == partition_of("schlüssel".encode(), 7)
