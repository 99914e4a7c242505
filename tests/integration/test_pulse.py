"""Processes that are killed, frozen, starved of files or restarted, and what a pulse makes of it."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import socket
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from relevo.testing.proxy import TcpProxy
from relevo_engine.local.ports import free_ports
from relevo_partitions.pulse.pulse import Peer, Pulse
from relevo_partitions.pulse.wire import Greeting
from tests.support.pulse_peers import PulseProcess, greeting_of
from tests.support.waiting import wait_until

LIMIT_S = 30.0


class Observer:
    """A pulse in this process, and what it found."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.deaths: queue.SimpleQueue[tuple[float, str, str]] = queue.SimpleQueue()
        self._log = caplog
        caplog.set_level(logging.DEBUG, logger="relevo_partitions")
        self.pulse = Pulse("observer", "first", host="127.0.0.1", on_death=self._died)
        self.pulse.start()

    def _died(self, node: str, incarnation: str, _lost_at: float) -> None:
        self.deaths.put((time.monotonic(), node, incarnation))

    def forget(self) -> None:
        self._log.clear()

    def heard(self, text: str) -> int:
        return sum(text in line for line in self._log.messages)

    def watch(self, *processes: PulseProcess) -> None:
        """Returns once each is watched."""
        self.pulse.watch(Peer(each.node, each.incarnation, each.address) for each in processes)
        for each in processes:
            told = f"Watching the pulse of node '{each.node}' at {each.address}"
            wait_until(lambda told=told: self.heard(told), told)  # type: ignore[misc]

    def death(self) -> tuple[str, str]:
        return self.deaths.get(timeout=LIMIT_S)[1:]


@pytest.fixture
def observer(caplog: pytest.LogCaptureFixture) -> Iterator[Observer]:
    observer = Observer(caplog)
    yield observer
    observer.pulse.stop()


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_killed_processes_are_found_dead_long_before_a_session_ends(observer: Observer) -> None:
    """Without that, every crash costs its partitions the whole session timeout."""
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(PulseProcess(f"n{n}", f"life-{n}")) for n in range(4)]
        observer.watch(*processes)
        took = []
        for process in processes[:3]:
            killed_at = time.monotonic()
            process.send_signal(signal.SIGKILL)
            noticed_at, node, incarnation = observer.deaths.get(timeout=LIMIT_S)
            assert (node, incarnation) == (process.node, process.incarnation)
            took.append(noticed_at - killed_at)
        assert statistics.median(took) < 1.0  # it is some milliseconds; a session lasts 2 s
        assert observer.deaths.empty()
        processes[3].kill()
        assert observer.death() == ("n3", "life-3")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGABRT, signal.SIGSEGV])
def test_whatever_ends_a_process_ends_its_pulse(observer: Observer, number: signal.Signals) -> None:
    with PulseProcess("n1", "first") as process:
        observer.watch(process)
        process.send_signal(number)
        assert observer.death() == ("n1", "first")


def test_a_frozen_process_is_not_dead(observer: Observer) -> None:
    """It may wake up at any moment, and its kernel goes on accepting connections for it."""
    with PulseProcess("n1", "first") as process, TcpProxy(process.address) as proxy:
        observer.pulse.watch([Peer("n1", "first", proxy.address)])
        wait_until(lambda: observer.heard("Watching the pulse"), "it is watched")
        process.freeze()
        with _connections_cut(proxy):
            wait_until(lambda: observer.heard("is unclear: no greeting") >= 2, "silence was met twice")
        assert observer.deaths.empty()
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: observer.heard("Watching the pulse") >= 2, "it is watched again")
        assert observer.deaths.empty()
        process.kill()
        proxy.refuse()
        assert observer.death() == ("n1", "first")


@contextlib.contextmanager
def _connections_cut(proxy: TcpProxy) -> Iterator[None]:
    """End the connections through a proxy, as something in between might, and go on forwarding."""
    for flow in list(proxy._flows):
        with contextlib.suppress(OSError):
            flow.source.shutdown(socket.SHUT_RDWR)
    yield


def test_a_later_process_at_the_same_address_proves_the_death_of_the_earlier(observer: Observer) -> None:
    """A restart by a supervisor is fast, and must hide nothing: the earlier process's partitions are free."""
    port = free_ports(1)[0]
    with PulseProcess("n1", "first", port=port) as process:
        observer.watch(process)
        process.kill()
        with PulseProcess("n1", "second", port=port) as successor:
            assert observer.death() == ("n1", "first")
            observer.forget()
            observer.watch(successor)
            successor.kill()
            assert observer.death() == ("n1", "second")


def test_an_orderly_stop_is_seen_as_what_it_is(observer: Observer) -> None:
    with PulseProcess("n1", "first") as process:
        observer.watch(process)
        process.stop()
        assert observer.death() == ("n1", "first")


def test_a_program_started_by_a_node_doesnt_keep_its_pulse_alive(observer: Observer) -> None:
    """A socket inherited by a child would stay open when the node is killed."""
    with PulseProcess("n1", "first", child=True) as process:
        child = process.told["child"]
        observer.watch(process)
        process.send_signal(signal.SIGKILL)
        try:
            assert observer.death() == ("n1", "first")
            assert Path(f"/proc/{child}").exists()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


def test_a_process_without_a_file_left_is_neither_dead_nor_busy(observer: Observer) -> None:
    """Sockets that can't be accepted wake a listener again and again: it must wait, and come back."""
    with PulseProcess("n1", "first", files_max=40) as process:
        observer.watch(process)
        host, _, port = process.address.rpartition(":")
        crowd = [socket.create_connection((host, int(port)), timeout=LIMIT_S) for _ in range(60)]
        observer.pulse.watch([Peer("n1", "first", process.address), Peer("n1", "second", process.address)])
        wait_until(lambda: observer.heard("is unclear: no greeting") >= 2, "newcomers aren't greeted")
        before = cpu_s(process.pid)
        wait_until(lambda: observer.heard("is unclear: no greeting") >= 4, "it still has no file left")
        assert cpu_s(process.pid) - before < 0.5  # over the two seconds of two attempts
        assert observer.deaths.empty()
        for one in crowd:
            one.close()
        wait_until(lambda: greeting_of(process.address) == Greeting("n1", "first"), "it greets again")
        assert observer.deaths.empty()
        process.kill()
        assert observer.death() == ("n1", "first")
