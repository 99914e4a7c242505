"""librdkafka settings, names, counters, steps, and what a reader of events may ask for."""

from __future__ import annotations

import asyncio
import logging
import time
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any

import pytest

from relevo import AsyncJobEvents, Client, JobEvents, JobWorker, MemoryDedupStore
from relevo.client.requests import LEASE_MAX_S, LEASE_MIN_S
from relevo.client.steps import Steps, Wait, run, run_async
from relevo.errors import ConfigurationError, InvalidRequest
from relevo.events.event_choice import KINDS, check_kinds, check_start
from relevo.kafka_options import guarded, options_for_consumer, options_for_producer
from relevo.names import check_cluster
from relevo.stats import WorkerStats, total
from relevo.worker.app import WorkerApp
from relevo.worker.worker import JobType
from relevo_engine.core.rules import Rules


def test_options_may_be_written_with_underscores() -> None:
    options = options_for_producer("b:1", {"sasl_username": "u", "ssl_ca": "pem", "linger.ms": 7})
    assert (options["sasl.username"], options["ssl_ca"], options["linger.ms"]) == ("u", "pem", 7)


def test_commands_are_compressed_unless_the_user_says_how() -> None:
    """They went as they were: nearly four times the bytes, on every replica's disk."""
    assert options_for_producer("b:1", {})["compression.type"] == "lz4"
    assert options_for_producer("b:1", {"compression.type": "zstd"})["compression.type"] == "zstd"


@pytest.mark.parametrize(
    "chosen",
    [{"acks": 1}, {"enable_idempotence": False}, {"partitioner": "random"}, {"bootstrap_servers": "x:1"}],
)
def test_what_delivery_rests_on_cannot_be_changed(chosen: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        options_for_producer("b:1", chosen)


@pytest.mark.parametrize("chosen", [{"enable_auto_commit": True}, {"isolation_level": "read_uncommitted"}])
def test_a_consumer_never_commits_by_itself_nor_reads_what_may_be_aborted(chosen: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        options_for_consumer("b:1", chosen, {"group.id": "g"})


def test_one_set_of_options_serves_producers_and_consumers() -> None:
    """Librdkafka warns about settings of the other kind, and those warnings would be the user's."""
    chosen = {"sasl_username": "u", "linger_ms": 1, "session_timeout_ms": 9_000}
    assert "session.timeout.ms" not in options_for_producer("b:1", chosen)
    consumer = options_for_consumer("b:1", chosen, {"group.id": "g"})
    assert "linger.ms" not in consumer
    assert (consumer["session.timeout.ms"], consumer["sasl.username"]) == (9_000, "u")


def test_an_empty_address_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="localhost:9092"):
        options_for_producer(" ", {})


def test_a_callback_that_raises_goes_no_further(caplog: pytest.LogCaptureFixture) -> None:
    """An exception out of it makes `poll` raise, and loses the messages that call had taken."""

    def callback(value: int) -> None:
        raise ValueError(value)

    with caplog.at_level(logging.ERROR):
        guarded(callback)(7)
    assert "a Kafka callback failed" in caplog.text


@pytest.mark.parametrize("name", ["", "a.b", "a/b", "x" * 101, "-a"])
def test_a_cluster_name_must_fit_into_topic_names(name: str) -> None:
    with pytest.raises(InvalidRequest, match="cluster name"):
        check_cluster(name)


def test_counters_add_up() -> None:
    one, two = WorkerStats(), WorkerStats()
    one.add("done", 2)
    two.add("done", 3)
    two.add("failed")
    summed = total([one, two])
    assert (summed.done, summed.failed) == (5, 1)
    assert one.snapshot()["done"] == 2
    assert all(not name.startswith("_") for name in one.snapshot())


def later(value: Any = None, error: Exception | None = None) -> Future[Any]:
    future: Future[Any] = Future()
    if error is not None:
        future.set_exception(error)
    elif value is not None:
        future.set_result(value)
    return future


def steps() -> Steps[list[Any]]:
    seen: list[Any] = [(yield Wait(later(1), None))]
    try:
        yield Wait(later(error=KeyError("x")), None)
    except KeyError:
        seen.append("caught")
    try:
        yield Wait(later(), time.monotonic() + 0.01)
    except TimeoutError:
        seen.append("late")
    return seen


def test_steps_run_alike_blocking_and_awaited() -> None:
    """Two hand-kept copies of every call drift apart."""
    assert run(steps()) == asyncio.run(run_async(steps())) == [1, "caught", "late"]


def test_cancelled_steps_clean_up() -> None:
    cleaned = []

    def waiting() -> Steps[None]:
        try:
            yield Wait(later(), None)
        finally:
            cleaned.append(True)

    async def main() -> None:
        task = asyncio.create_task(run_async(waiting()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert cleaned == [True]


@pytest.mark.parametrize("start", ["end", -1, 1.5, datetime(2026, 1, 1), {0: -1}, {"a": 1}, None, True])
def test_a_start_that_means_nothing_is_refused(start: Any) -> None:
    with pytest.raises(InvalidRequest):
        check_start(start)


def test_starts() -> None:
    assert check_start("now") == "now"
    assert check_start(datetime(2026, 1, 1, tzinfo=UTC)) == 1_767_225_600_000
    assert check_start({0: 5}) == {0: 5}


def test_kinds_are_those_of_the_log() -> None:
    assert {"JobCreated", "JobCompleted", "CommandRejected", "LeaderElected"} <= KINDS
    assert "Event" not in KINDS
    with pytest.raises(InvalidRequest, match="no such kind of event: JobDone"):
        check_kinds(["JobDone"])
    with pytest.raises(InvalidRequest, match="must be a list"):
        check_kinds("JobCreated")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"type": "a.b"}, "job type"),
        ({"lease": 0}, "lease of 't' must be between 1 and 86,400 seconds, not 0"),
        ({"lease": 0.5}, "lease of 't' must be between 1 and 86,400 seconds"),
        ({"lease": 1e9}, "lease of 't' must be between 1 and 86,400 seconds"),
        ({"lease": float("inf")}, "lease of 't' must be between 1 and 86,400 seconds"),
        ({"lease": "30"}, "lease of 't' must be a number of seconds, not '30'"),
        ({"concurrency": 0}, "concurrency of 't' must be at least 1"),
        ({"concurrency": 2.5}, "concurrency of 't' must be .* a whole number, not 2.5"),
        ({"concurrency": "8"}, "concurrency of 't' must be .* a whole number, not '8'"),
        ({"buffer": 10.5}, "buffer of 't' must be .* a whole number"),
        ({"buffer": 0}, "buffer of 't'"),
        ({"delivery": "exactly-once"}, "at-least-once"),
        ({"timeout": -1}, "timeout of 't'"),
        ({"timeout": 1e16}, "timeout of 't' must be more than 0 seconds, and finite"),
        ({"ttl": 0}, "ttl of 't'"),
        ({"ttl": float("inf")}, "ttl of 't' must be more than 0 seconds, and finite"),
        ({"ttl": 1e16}, "ttl of 't'"),
        ({"ttl": True}, "ttl of 't' must be a number of seconds"),
    ],
)
def test_a_handler_that_is_declared_wrongly_is_refused_at_once(arguments: dict[str, Any], says: str) -> None:
    app = WorkerApp("localhost:9092")
    with pytest.raises((ConfigurationError, InvalidRequest), match=says):
        app.job(**{"type": "t", **arguments})(print)


@pytest.mark.parametrize(
    ("dedup", "says"),
    [
        ("redis://user:secret@host/0", "not a value of type str"),
        (MemoryDedupStore, "not the class MemoryDedupStore"),
        (object(), "not a value of type object"),
    ],
)
def test_what_is_no_dedup_store_is_refused_at_once(dedup: Any, says: str) -> None:
    """Found at the first job it would end the worker, and an address in the error would show its password."""
    client = Client("localhost:9092")
    for make in (
        lambda: WorkerApp("localhost:9092", dedup=dedup),
        lambda: JobWorker(client=client, job_type="t", handler=print, dedup_store=dedup),
    ):
        with pytest.raises(ConfigurationError, match=says) as caught:
            make()
        assert "secret" not in str(caught.value)
    client.close()


def test_a_worker_takes_a_client_and_not_its_address() -> None:
    client: Any = "localhost:9092"
    with pytest.raises(ConfigurationError, match=r"client must be a relevo\.Client .* not 'localhost:9092'"):
        JobWorker(client=client, job_type="t", handler=print)


@pytest.mark.parametrize("drain", [-1, float("nan"), float("inf"), "10"])
def test_what_is_no_drain_time_is_refused_at_once(drain: Any) -> None:
    with pytest.raises(ConfigurationError, match="drain must not be negative"):
        WorkerApp("localhost:9092", drain=drain)


def test_the_bounds_of_a_lease_are_the_engines() -> None:
    """It would refuse each renewal, and take the job away from a worker that is well."""
    rules = Rules(partition=0, partitions=1)
    assert (rules.lease_ms_min, rules.lease_ms_max) == (LEASE_MIN_S * 1_000, LEASE_MAX_S * 1_000)


@pytest.mark.parametrize("group", [None, "g"])
def test_an_unknown_option_of_events_is_said_as_one(group: str | None) -> None:
    with (
        pytest.raises(ConfigurationError, match=r'No such configuration property: "no\.such\.option"'),
        JobEvents("127.0.0.1:1", group=group, no_such_option=1) as events,
    ):
        next(iter(events))


async def test_an_unknown_option_of_events_for_coroutines_is_said_as_one() -> None:
    with pytest.raises(ConfigurationError, match=r'No such configuration property: "no\.such\.option"'):
        async with AsyncJobEvents("127.0.0.1:1", no_such_option=1) as events:
            await anext(aiter(events))


def test_a_type_has_one_handler() -> None:
    app = WorkerApp("localhost:9092")
    app.job("t")(print)
    with pytest.raises(ConfigurationError, match="has a handler already"):
        app.job("t")(print)


def test_a_worker_without_handlers_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="nothing to run"):
        WorkerApp("localhost:9092").start()


async def _no_argument() -> None: ...


def _two_arguments(job: object, to: object) -> None:
    del job, to


@pytest.mark.parametrize("handler", [_no_argument, _two_arguments])
def test_a_handler_that_can_not_take_a_job_is_refused_at_once(handler: Any) -> None:
    """Found at the first job it would turn every job of the type into an incident."""
    with pytest.raises(ConfigurationError, match=r"must take one argument, the job: _\w+\("):
        JobType("t", handler)


def test_a_decorator_without_a_type_says_how() -> None:
    app: Any = WorkerApp("localhost:9092")
    with pytest.raises(ConfigurationError, match="name the job type"):
        app.job(_two_arguments)
