"""The job log where it is no plain sequence: open transactions, trimmed, made anew, a broker restarted."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

import relevo
from tests.support.brokers import Brokers
from tests.support.fixtures import StartBrokers
from tests.support.waiting import wait_until
from tests.support.written_log import WrittenLog


@pytest.fixture
def log(brokers: Brokers, cluster_name: str) -> Iterator[WrittenLog]:
    with WrittenLog(brokers.kafka, cluster_name) as log:
        yield log


def reader(log: WrittenLog, from_: object = "beginning", **arguments: object) -> relevo.JobEvents:
    return relevo.JobEvents(log.kafka, log.cluster, from_, **arguments)  # type: ignore[arg-type]


def kept(log: WrittenLog, from_: object = "beginning", **arguments: object) -> list[relevo.JobEvent]:
    with reader(log, from_, follow=False, **arguments) as events:
        return list(events)


def keys(found: list[relevo.JobEvent]) -> list[str]:
    return [event.key for event in found]


# Transactions


def test_only_what_was_committed_and_nothing_of_an_open_transaction(log: WrittenLog) -> None:
    """A reader would tell of jobs that no leader knows."""
    log.write("a")
    log.begin()
    log.add("aborted")
    log.abort()
    log.seqs[0] -= 1
    log.write("b")
    log.begin()
    log.add("open")
    assert keys(kept(log)) == ["a", "b"]
    with reader(log) as events:
        assert keys([next(events), next(events)]) == ["a", "b"]
        assert events.read(0.5) == []
        log.commit()
        assert next(events).key == "open"


def test_now_takes_in_what_is_committed_from_now_on(log: WrittenLog) -> None:
    """Events written before, and committed after the start, would be told to nobody."""
    log.write("a")
    log.begin()
    log.add("open")
    with reader(log, "now") as events:
        log.commit()
        assert next(events).key == "open"


def test_an_end_that_grows_is_no_end(log: WrittenLog) -> None:
    """Reading what is there would never end on a busy cluster."""
    log.write("a", "b")
    with reader(log, follow=False) as events:
        assert next(events).key == "a"
        log.write("c")
        assert keys(list(events)) == ["b"]
        assert events.ended


# Positions


def test_every_event_is_a_place_to_go_on_from(log: WrittenLog) -> None:
    log.write("a", "b")
    log.write("c")
    found = kept(log)
    for number, event in enumerate(found):
        assert keys(kept(log, [event.position])) == keys(found[number + 1 :])
        assert keys(kept(log, [str(event.position)])) == keys(found[number + 1 :])
        assert keys(kept(log, {0: event.position})) == keys(found[number + 1 :])


def test_positions_move_over_what_is_not_wanted(log: WrittenLog) -> None:
    """The position of a reader of rare events would stay behind until the log is trimmed under it."""
    log.write("a", "b", "c")
    with reader(log, keys=["a"]) as events:
        assert next(events).key == "a"
        assert events.positions[0] >= 3
        log.write("d")
        assert events.read(3) == []
        log.trim(events.positions[0])
        stored = events.positions
    log.write("a")
    assert keys(kept(log, stored)) == ["a"]


def test_events_of_a_type_go_on_behind_a_position(log: WrittenLog) -> None:
    """The end of a job created before the position would be missed: it doesn't tell the job's type."""
    log.write("mine", "done", "other's", type="work")
    log.write("else", type="other")
    log.write("done", kind="completed")
    position = kept(log)[-1].position
    log.write("mine", "else", kind="completed")
    found = kept(log, [position], types=["work"])
    assert [(event.key, event.kind) for event in found] == [("mine", "JobCompleted")]
    with reader(log, "now", types=["work"]) as events:
        log.write("other's", "else", kind="completed")
        assert next(events).key == "other's"
    assert kept(log, [position], types=["work"], learn_types=False) == []


def test_a_type_that_was_trimmed_away_is_counted(log: WrittenLog) -> None:
    log.write("a")
    log.write("a", kind="due")
    log.write("b")
    log.trim(1)
    with reader(log, types=["work"], follow=False) as events:
        assert keys(list(events)) == ["b"]
        assert events.untyped == 1


# Trimmed


def test_a_position_below_a_trimmed_log_says_what_is_missing(log: WrittenLog) -> None:
    log.write("a", "b", "c", "d", "e")
    position = kept(log)[0].position
    log.trim(3)
    with reader(log, [position]) as events, pytest.raises(relevo.LogGap) as told:
        list(events)
    assert "partition 0: 2 events, offsets 1 to 2" in str(told.value)
    assert "from_={0: 3}" in str(told.value)
    assert "on_gap='skip'" in str(told.value)
    with reader(log, {0: 1}) as events, pytest.raises(relevo.LogGap, match="unknown number of events"):
        list(events)
    assert keys(kept(log, {0: 3})) == ["d", "e"]


def test_a_gap_is_skipped_only_when_asked_and_told_with_the_next_event(log: WrittenLog) -> None:
    log.write("a", "b", "c", "d", "e")
    position = kept(log)[0].position
    log.trim(3)
    first, second = kept(log, [position], on_gap="skip")
    assert first.skipped == relevo.Skipped(0, 1, 3, 2)
    assert second.skipped is None
    told: list[relevo.Skipped] = []
    # What isn't wanted doesn't swallow the marker.
    assert [event.skipped for event in kept(log, [position], on_gap=told.append, keys=["e"])] == [
        relevo.Skipped(0, 1, 3, 2)
    ]
    assert told == [relevo.Skipped(0, 1, 3, 2)]
    assert kept(log, {0: 1}, on_gap="skip")[0].skipped == relevo.Skipped(0, 1, 3, None)


def test_a_function_may_refuse_a_gap(log: WrittenLog) -> None:
    log.write("a", "b", "c")
    position = kept(log)[0].position
    log.trim(2)

    def refuse(skipped: relevo.Skipped) -> None:
        raise RuntimeError(f"no: {skipped}")

    with reader(log, [position], on_gap=refuse) as events, pytest.raises(RuntimeError, match="1 events"):
        list(events)


def test_trimming_what_was_read_is_no_gap(log: WrittenLog) -> None:
    """Markers that end transactions stand behind the last event: trimmed with it, they are nothing lost."""
    log.write("a")
    (event,) = kept(log)
    log.write("b")
    log.trim(2)
    (found,) = kept(log, [event.position])
    assert (found.key, found.skipped) == ("b", None)


def test_the_beginning_of_a_trimmed_log_is_its_start_and_says_so(log: WrittenLog) -> None:
    log.write("a", "b", "c")
    log.trim(2)
    (found,) = kept(log)
    assert (found.key, found.skipped) == ("c", relevo.Skipped(0, 0, 2, 2))
    assert kept(log, 1)[0].skipped == relevo.Skipped(0, 0, 2, None)


def test_a_log_trimmed_under_a_slow_reader(log: WrittenLog) -> None:
    for number in range(60):
        log.write(str(number))
    # Fetched one by one, so that little of it is here when the rest goes away.
    slow = {"queued.min.messages": 1, "fetch.message.max.bytes": 100}
    with reader(log, **slow) as events, reader(log, on_gap="skip", **slow) as easy:
        assert (next(events).key, next(easy).key) == ("0", "0")
        log.trim(2 * 59)
        found: list[str] = []
        with pytest.raises(relevo.LogGap, match="trimmed before it was read"):
            found.extend(event.key for event in events)
        assert found == [str(number) for number in range(1, len(found) + 1)]
        rest = [next(easy)]
        while rest[-1].key != "59":
            rest.append(next(easy))
        gap = rest[-1].skipped
        assert gap is not None
        assert gap.events == 60 - 1 - len(rest)


# Another log


def test_a_topic_that_was_deleted_ends_the_wait(log: WrittenLog) -> None:
    """A reader would wait for ever, in silence."""
    log.write("a")
    with reader(log) as events:
        assert next(events).key == "a"
        log.delete()
        with pytest.raises(relevo.ClusterNotFound, match="has no topic"):
            next(events)


@pytest.mark.parametrize("count", [1, 9], ids=["shorter", "longer"])
@pytest.mark.parametrize("on_gap", ["error", "skip"])
def test_a_topic_made_anew_is_not_read_on(log: WrittenLog, count: int, on_gap: str) -> None:
    """Two histories would be taken for one."""
    log.epoch = 4
    log.write("a", "b", "c")
    with reader(log, on_gap=on_gap) as events:
        assert keys([next(events), next(events), next(events)]) == ["a", "b", "c"]
        position = kept(log)[-1].position
        log.delete()
        log.make()
        log.epoch = 1
        log.write(*(f"new{number}" for number in range(count)))
        with pytest.raises((relevo.LogGap, relevo.ClusterNotFound)):
            next(events)
    with reader(log, [position], on_gap=on_gap) as events, pytest.raises(relevo.LogGap, match="anew"):
        next(events)


# Broken off


def test_a_broker_restarted_under_a_reader(own_brokers: StartBrokers, cluster_name: str) -> None:
    servers = own_brokers()
    with WrittenLog(servers.kafka, cluster_name) as log:
        log.write("a", "b")
        with reader(log) as events, reader(log, group=f"{cluster_name}.readers") as member:
            assert keys([next(events), next(events)]) == ["a", "b"]
            assert keys([next(member), next(member)]) == ["a", "b"]
            assert member.commit()
            servers.kafka_servers[0].kill()
            assert events.read(2) == []
            servers.kafka_servers[0].restart()
            servers.await_brokers()
            log.write("c")
            assert keys([next(events), next(member)]) == ["c", "c"]
            assert member.commit()


def test_closed_by_another_thread(log: WrittenLog) -> None:
    """A process that ends would have to wait for the next event."""
    log.write("a")
    events = reader(log)
    seen: list[object] = []

    def follow() -> None:
        try:
            seen.extend(event.key for event in events)
        except relevo.Closed as closed:
            seen.append(closed)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    wait_until(lambda: seen or events.positions.get(0, 0) > 0, "it waits for more")
    events.close()
    thread.join(30)
    assert not thread.is_alive()
    assert isinstance(seen[-1], relevo.Closed)
    events.close()
    for late in (events.read, lambda: next(events), lambda: next(iter(events))):
        with pytest.raises(relevo.Closed):
            late()


def test_a_time_limit_and_a_number(log: WrittenLog) -> None:
    log.write(*"abcde")
    with reader(log) as events:
        assert keys(events.read(30, limit=2)) == ["a", "b"]
        assert keys(events.read(30, limit=2)) == ["c", "d"]
        assert events.positions == {0: 4}
        assert keys(events.read(30)) == ["e"]
        before = time.monotonic()
        assert events.read(0.3) == []
        assert time.monotonic() - before >= 0.3


# Coroutines


async def test_a_cancelled_wait_loses_no_event(log: WrittenLog) -> None:
    """What a cancelled read had found would be gone: asyncio.timeout around the next event is usual."""
    async with relevo.AsyncJobEvents(log.kafka, log.cluster) as events:
        found: list[str] = []

        def write() -> None:
            for number in range(20):
                log.write(str(number))

        task = asyncio.create_task(asyncio.to_thread(write))
        cancelled = 0
        while len(found) < 20:
            try:
                async with asyncio.timeout(0.003):
                    found.append((await anext(events)).key)
            except TimeoutError:
                cancelled += 1
        await task
        assert found == [str(number) for number in range(20)]
        assert cancelled
        assert events.positions[0] >= 39


async def test_coroutines_read_in_batches_and_close_under_a_wait(log: WrittenLog) -> None:
    log.write(*"abc")
    events = relevo.AsyncJobEvents(log.kafka, log.cluster)
    with pytest.raises(relevo.Closed, match="open it first"):
        await anext(events)
    async with events:
        assert keys(await events.read(30, limit=2)) == ["a", "b"]
        assert keys(await events.read(30)) == ["c"]
        waiting = asyncio.create_task(events.read(60))
        await asyncio.sleep(0.1)
        await events.close()
        with pytest.raises(relevo.Closed):
            await waiting


async def test_coroutines_stop_at_a_gap(log: WrittenLog) -> None:
    log.write(*"abc")
    log.trim(2)
    async with relevo.AsyncJobEvents(log.kafka, log.cluster, {0: 1}) as events:
        with pytest.raises(relevo.LogGap):
            await anext(events)
    async with relevo.AsyncJobEvents(log.kafka, log.cluster, {0: 1}, on_gap="skip", follow=False) as events:
        assert [event.key async for event in events] == ["c"]


async def test_opening_that_is_cancelled_leaves_nothing_behind(log: WrittenLog) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001), relevo.AsyncJobEvents(log.kafka, log.cluster):
            pytest.fail("it opened in a millisecond")
    await asyncio.to_thread(
        wait_until,
        lambda: not [each for each in threading.enumerate() if each.name.startswith("relevo-events")],
        "its thread ends",
    )
