"""A log that was written once makes the state that it always made, event by event.

An applier that does something else with an old event gives nodes of different versions different states of
one log. So what a change makes of the old logs is seen here, and the change belongs to a new kind of
event, or to a new field that old events don't have.

- ``python -m tests.contract.test_golden_log`` writes the logs that are missing. A new kind of event, or a new
  form of one, gets another log beside these, made by a function of its own in ``golden_log_maker.py``.
- ``python -m tests.contract.test_golden_log states`` writes anew what the logs lead to. That is right where
  the state holds more than before, or its digest covers more, and every node replays the log after the
  upgrade; it is wrong where an event means something else than it did.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from relevo_engine.core import appliers
from relevo_engine.core.channels import FixedChannels
from relevo_engine.core.rules import Rules
from relevo_engine.machine import PartitionMachine
from relevo_partitions.statemachine import Incoming
from relevo_schemas import events as ev
from relevo_schemas.codec import decode, record_classes
from relevo_schemas.delivery import Barrier
from relevo_schemas.records import Event
from tests.contract import golden_log_maker as maker

FOLDER: Final = Path(__file__).parent
MAKERS: Final = {"golden_log_1": maker.first_log}
LOGS: Final = tuple(MAKERS)


def records_of(name: str) -> list[bytes]:
    """The values of a log's records."""
    lines = (FOLDER / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return [bytes.fromhex(line.split()[1]) for line in lines]


def replayed(values: list[bytes]) -> list[str]:
    """A line for each event: its number and kind, the hash of the state behind it; then the end."""
    machine = PartitionMachine(Rules(partition=0, **maker.SHARED), FixedChannels())
    lines = []
    for offset, value in enumerate(values):
        machine.replay([Incoming(offset, None, value)])
        kind = type(decode(value)).__name__
        if kind != Barrier.__name__:
            lines.append(f"{machine.last_seq} {kind} {machine.state_hash()}")
    return [*lines, *ending(machine)]


def ending(machine: PartitionMachine) -> list[str]:
    """What the hash doesn't cover too: the order of ready jobs and the timers, which follow from the rest."""
    state, said = machine._machine.state, machine.summary()
    numbers = ("epoch", "position", "last_at", "open", "remembered", "unclaimed", "started", "counts")
    timers = sorted({each for each in state.timers._heap if not state.timers._is_dead(each)})
    assert len(timers) == said["timers"]
    told = {
        **{name: said[name] for name in numbers},
        "finished": list(state.finished_order),
        "ready": {name: list(lane.queue.oldest_first()) for name, lane in state.lanes.items()},
        "timers": timers,
    }
    return [f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in told.items()]


def states_of(name: str) -> Path:
    """The file that says what a log leads to."""
    return FOLDER / f"{name}.states.txt"


@pytest.mark.parametrize("name", LOGS)
def test_a_log_that_was_written_once_makes_the_states_that_it_made(name: str) -> None:
    found = replayed(records_of(name))
    pinned = states_of(name).read_text(encoding="utf-8").splitlines()
    assert len(found) == len(pinned)
    other = next((pair for pair in zip(pinned, found, strict=True) if pair[0] != pair[1]), None)
    assert other is None, f"{name}: the first line that differs was {other[0]!r} and is {other[1]!r} now"


def test_every_kind_of_event_stands_in_a_log() -> None:
    """A new kind needs a log of its own: nothing else pins what its applier does."""
    found = {type(decode(value)) for name in LOGS for value in records_of(name)}
    assert found == {cls for cls in record_classes() if issubclass(cls, Event)} | {Barrier}
    assert found - {Barrier} == set(appliers._APPLIERS)


def test_the_first_log_has_each_event_in_each_of_its_forms() -> None:
    records: list[Any] = [decode(value) for value in records_of("golden_log_1")]
    events = [each for each in records if isinstance(each, Event)]
    failures = [each for each in events if isinstance(each, ev.JobFailed)]
    assert {"none" if f.retry_at < 0 else "pause" if f.retry_at > f.at else "now" for f in failures} == {
        "none", "pause", "now",
    }  # fmt: skip
    causes = Counter(each.cause for each in events if isinstance(each, ev.JobTimedOut | ev.JobIncident))
    assert causes.keys() == {"LEASE", "TAKEN_OVER", "UNCLAIMED", "LEASES_EXHAUSTED", "NOT_RETRIABLE"}
    created = [each.job for each in events if isinstance(each, ev.JobCreated)]
    keys = Counter(spec.key for spec in created)
    assert [key for key, times in keys.items() if times > 1] == ["plain"], "forgotten, and created anew"
    assert any(spec.run_at and spec.expires_at and spec.correlation_id for spec in created)
    assert any(not spec.run_at for spec in created)
    assert {bool(each.detail) for each in events if isinstance(each, ev.JobCheckpointed)} == {True, False}
    terms = [each.epoch for each in events if isinstance(each, ev.LeaderElected)]
    assert terms == [1, 2, 3]
    assert sum(isinstance(each, Barrier) for each in records) == 4


def write_missing() -> None:
    """Write the logs that aren't there, and what they lead to."""
    for name, make in MAKERS.items():
        file = FOLDER / f"{name}.txt"
        if not file.exists():
            lines = [f"{type(decode(value)).__name__} {value.hex()}" for value in make()]
            file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        if not states_of(name).exists():
            write_states(name)


def write_states(name: str) -> None:
    """Write what a log leads to now."""
    states_of(name).write_text("\n".join(replayed(records_of(name))) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] == ["states"]:
        for each in LOGS:
            write_states(each)
    else:
        write_missing()
