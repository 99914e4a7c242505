"""Which options of Kafka a worker takes, and what it says to those that can't be right."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import relevo
from relevo.consumer.options import make_consumer, options_for_worker
from relevo.errors import ConfigurationError


def options(drain_s: float = 10.0, **chosen: Any) -> dict[str, Any]:
    return options_for_worker("nowhere:1", chosen, "g", drain_s, on_commit=print)


def test_a_dead_worker_is_noticed_soon_and_partitions_move_one_by_one() -> None:
    made = options()
    assert (made["session.timeout.ms"], made["heartbeat.interval.ms"]) == (6_000, 300)
    assert made["partition.assignment.strategy"] == "cooperative-sticky"
    assert options(session_timeout_ms=9_000)["session.timeout.ms"] == 9_000


def test_little_is_read_ahead_for_each_type_and_fetched_again_without_a_pause() -> None:
    """Librdkafka would hold 64 MB for each type; with a short queue and its 1 s of patience, be slow."""
    made = options()
    assert made["queued.max.messages.kbytes"] == 8_192
    assert made["fetch.queue.backoff.ms"] == 5
    assert options(queued_max_messages_kbytes=65_536)["queued.max.messages.kbytes"] == 65_536


@pytest.mark.parametrize(
    ("drain_s", "chosen", "expected"),
    [
        (10, {}, 120_000),
        (300, {}, 370_000),
        (10, {"session_timeout_ms": 200_000}, 200_000),
        (10, {"max_poll_interval_ms": 60_000}, 60_000),
        (1e9, {}, 86_400_000),
    ],
)
def test_a_drain_ends_before_the_poll_interval(drain_s: float, chosen: dict[str, Any], expected: int) -> None:
    """Else the group puts the worker out while it waits for its handlers, and takes no commit from it."""
    assert options(drain_s, **chosen)["max.poll.interval.ms"] == expected


def test_with_the_newer_protocol_the_broker_decides_how_members_are_heard() -> None:
    made = options(group_protocol="consumer", group_remote_assignor="uniform")
    assert made["group.protocol"] == "consumer"
    assert {"session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy"}.isdisjoint(made)
    make_consumer(made).close()


@pytest.mark.parametrize(
    ("chosen", "says"),
    [
        ({"group_protocol": "consumer", "session_timeout_ms": 6_000}, "group.consumer.session.timeout.ms"),
        ({"group.protocol": "CONSUMER", "heartbeat.interval.ms": 1}, "group.consumer.heartbeat.interval.ms"),
        ({"group_protocol": "consumer", "partition_assignment_strategy": "range"}, "group.remote.assignor"),
        ({"group_protocol": "consumer", "group_protocol_type": "consumer"}, "leave it out"),
        ({"group_remote_assignor": "uniform"}, "partition.assignment.strategy"),
        ({"group_protocol": "share"}, "'classic' or 'consumer'"),
        ({"partition_assignment_strategy": "range"}, "delivery rests on it"),
        ({"group_id": "mine"}, "delivery rests on it"),
        ({"auto_offset_reset": "latest"}, "delivery rests on it"),
        ({"max_poll_interval_ms": 10_000}, "drain"),
        ({"max_poll_interval_ms": "soon"}, "number of milliseconds"),
        ({"session_timeout_ms": -1}, "session.timeout.ms"),
        ({"max_poll_interval_ms": 20_000, "session_timeout_ms": 30_000}, "max.poll.interval.ms"),
        ({"sesion_timeout_ms": 6_000}, "sesion.timeout.ms"),
    ],
)
def test_an_option_that_can_not_be_right_is_refused_when_the_worker_starts(
    chosen: dict[str, Any], says: str
) -> None:
    """A traceback in a thread's log, and a process that works on nothing, help nobody."""
    before = set(threading.enumerate())
    app = relevo.WorkerApp("127.0.0.1:1", **chosen)
    app.job("good")(lambda job: None)
    app.job("better")(lambda job: None)
    with pytest.raises(ConfigurationError) as refused:
        app.start()
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not app.alive
    assert {each.name for each in set(threading.enumerate()) - before if each.is_alive()} == set()
