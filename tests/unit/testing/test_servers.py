"""Shared servers are well again before the next test, whatever the one before has done to them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from relevo.testing import servers
from relevo.testing.pytest_plugin import Servers
from relevo.testing.servers import DrillServers


class Process:
    """A server's process.

    Attributes:
        done: What was done to it.
    """

    def __init__(self, pid: int, done: list[str], *, running: bool = True) -> None:
        self.pid = pid
        self.running = running
        self.done = done

    def thaw(self) -> None:
        self.done.append(f"thaw {self.pid}")

    def spawn(self) -> None:
        self.done.append(f"spawn {self.pid}")
        self.running = True

    def await_ready(self) -> None:
        self.done.append(f"await {self.pid}")


def test_a_frozen_broker_is_thawed_before_the_others_are_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs, and answers nobody: every later test of the session would wait for it."""
    done: list[str] = []
    frozen, dead, well = Process(1, done), Process(2, done, running=False), Process(3, done)
    monkeypatch.setattr("relevo_engine.local.processes.is_frozen", lambda pid: pid == 1)
    hurt = DrillServers()
    hurt._brokers = SimpleNamespace(  # type: ignore[assignment]
        servers=[frozen, dead, well],
        kafka_servers=[frozen],
        await_brokers=lambda: done.append("brokers"),
    )
    hurt.heal()
    assert done.index("thaw 1") < done.index("spawn 2") < done.index("await 1") < done.index("brokers")
    assert "spawn 1" not in done
    assert "await 3" not in done


class Incurable:
    """Servers of which the first can't be healed."""

    made: ClassVar[list[Incurable]] = []

    def __init__(self, *shape: int, kafka_slots: int) -> None:
        self.running = False
        self.made.append(self)

    def start(self) -> None:
        self.running = True

    def stop(self) -> None:
        self.running = False

    def heal(self) -> None:
        if self is self.made[0]:
            raise TimeoutError("a broker doesn't start any more")


def test_servers_that_can_not_be_healed_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every later test of the session would fail alike, for what one test did."""
    monkeypatch.setattr(Incurable, "made", [])
    monkeypatch.setattr(servers, "DrillServers", Incurable)
    shared = Servers()
    first: Any = shared.get(1, 1, 0)
    second: Any = shared.get(1, 1, 0)
    assert second is not first
    third: Any = shared.get(1, 1, 0)
    assert third is second
    assert (first.running, second.running) == (False, True)
    shared.stop()
    assert not second.running
