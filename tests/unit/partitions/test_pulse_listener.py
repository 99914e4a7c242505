"""What a pulse does with those who come by, and with names that take long to look up."""

from __future__ import annotations

import logging
import selectors
import socket
import threading

import pytest

from relevo_partitions.pulse import lookup as pulse_lookup
from relevo_partitions.pulse.listener import CONNECTIONS_MAX, PulseListener
from relevo_partitions.pulse.lookup import Lookups
from relevo_partitions.pulse.pulse import Pulse
from relevo_partitions.pulse.wire import Greeting
from tests.support.pulse_peers import greeting_of
from tests.support.waiting import wait_until

LIMIT_S = 20.0


def _is_reset(connection: socket.socket) -> bool:
    """Closed with what it sent left unread."""
    try:
        return connection.recv(512) == b"never"
    except ConnectionResetError:
        return True


def test_a_stranger_hears_who_is_there_and_is_shown_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Port scanners and health checks come by; nothing they send is read, kept or logged."""
    caplog.set_level(logging.DEBUG)
    pulse = Pulse("n1", "first", host="127.0.0.1", on_death=print)
    pulse.start()
    host, _, port = pulse.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=LIMIT_S) as stranger:
        stranger.sendall(b"GET /secret HTTP/1.1\r\n\r\n")
        wait_until(lambda: _is_reset(stranger), "it is shown out")
    assert "secret" not in caplog.text
    assert greeting_of(pulse.address) == Greeting("n1", "first")
    pulse.stop()


def test_no_more_connections_than_it_may_have() -> None:
    """Strangers that come and stay must not take all files of a process; who is there stays."""
    selector = selectors.DefaultSelector()
    listener = PulseListener(Greeting("n1", "first"), selector)
    address = listener.open("127.0.0.1", 0)

    def serve() -> int:
        for key, _ in selector.select(0.0):
            key.data(0.0)
        return len(selector.get_map()) - 1

    there = []
    for _ in range(CONNECTIONS_MAX + 5):
        there.append(socket.create_connection(address, timeout=LIMIT_S))
        serve()
    wait_until(lambda: serve() == CONNECTIONS_MAX, "it is full")
    assert all(one.recv(512) for one in there[:CONNECTIONS_MAX])
    assert [one.recv(512) for one in there[CONNECTIONS_MAX:]] == [b""] * 5
    there.pop(0).close()
    wait_until(lambda: serve() == CONNECTIONS_MAX - 1, "one has left")
    there.append(socket.create_connection(address, timeout=LIMIT_S))
    wait_until(lambda: serve() == CONNECTIONS_MAX, "another is taken")
    for one in there:
        one.close()
    listener.close()
    selector.close()


def test_slow_lookups_are_bounded_and_hold_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resolver that hangs must neither stop the pulse nor collect threads."""
    release = threading.Event()

    def hangs(host: str, port: int, flags: int) -> list[pulse_lookup.Target]:
        release.wait(LIMIT_S)
        return []

    monkeypatch.setattr(pulse_lookup, "_ask", hangs)
    woken = threading.Semaphore(0)
    lookups = Lookups(woken.release)
    begun = [lookups.begin(n, "relevo-0.example", 7071) for n in range(pulse_lookup.AT_ONCE_MAX + 3)]
    assert begun == [True] * pulse_lookup.AT_ONCE_MAX + [False] * 3
    assert lookups.finished() == []
    release.set()
    for _ in range(pulse_lookup.AT_ONCE_MAX):
        assert woken.acquire(timeout=LIMIT_S)
    assert sorted(str(who) for who, _ in lookups.finished()) == [
        str(n) for n in range(pulse_lookup.AT_ONCE_MAX)
    ]
    assert lookups.begin("later", "relevo-0.example", 7071)
    assert woken.acquire(timeout=LIMIT_S)
