"""The tests' own Redis and their faulty network do what the tests that use them believe."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from relevo.testing.proxy import TcpProxy
from relevo_engine.local.ports import LOOPBACK
from tests.support.redis import Redis, answers
from tests.support.waiting import wait_until

SHORT_S = 0.3


@contextmanager
def echo_server() -> Iterator[tuple[str, list[bytes]]]:
    """Sends everything back; its address, and what it received."""
    received: list[bytes] = []

    def serve(connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(65_536):
                    received.append(data)
                    connection.sendall(data)
            except OSError:
                return

    def accept(listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with closing(socket.create_server((LOOPBACK, 0))) as listener:
        acceptor = threading.Thread(target=accept, args=(listener,), daemon=True)
        acceptor.start()
        yield f"{LOOPBACK}:{listener.getsockname()[1]}", received
        listener.shutdown(socket.SHUT_RDWR)
        acceptor.join(10)


@pytest.fixture
def proxied() -> Iterator[tuple[TcpProxy, list[bytes]]]:
    """A proxy before an echo server, and what reached that."""
    with echo_server() as (address, received), TcpProxy(address) as proxy:
        yield proxy, received


def connect(proxy: TcpProxy) -> socket.socket:
    """A connection through the proxy."""
    host, port = proxy.address.split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def read(connection: socket.socket, count: int) -> bytes:
    """Exactly so many bytes."""
    data = b""
    while len(data) < count and (part := connection.recv(65_536)):
        data += part
    return data


def is_silent(connection: socket.socket) -> bool:
    """Whether nothing arrives, not even an end, for a short while."""
    connection.settimeout(SHORT_S)
    try:
        connection.recv(1)
    except TimeoutError:
        return True
    finally:
        connection.settimeout(20)
    return False


def test_a_proxy_forwards_large_data_in_order(proxied: tuple[TcpProxy, list[bytes]]) -> None:
    """A proxy that loses or mixes bytes makes every fault test worthless."""
    proxy, _ = proxied
    payload = bytes(range(256)) * 40_000
    with connect(proxy) as connection:
        sender = threading.Thread(target=connection.sendall, args=(payload,))
        sender.start()
        assert read(connection, len(payload)) == payload
        sender.join(10)
        assert proxy.connections == 1
    wait_until(lambda: proxy.connections == 0, "the closed connection is forgotten")


def test_a_cut_keeps_connections_open_and_silent(proxied: tuple[TcpProxy, list[bytes]]) -> None:
    """A cut-off node hears nothing, not even that its connection is dead."""
    proxy, received = proxied
    with connect(proxy) as connection:
        connection.sendall(b"one")
        assert read(connection, 3) == b"one"
        proxy.cut()
        connection.sendall(b"two")
        assert is_silent(connection)
        with connect(proxy) as late:
            late.sendall(b"x")
            assert is_silent(late)
        assert received == [b"one"]
        proxy.heal()
        assert read(connection, 3) == b"two"


def test_a_refusal_resets_and_a_heal_reopens(proxied: tuple[TcpProxy, list[bytes]]) -> None:
    """A dead server's clients hear of it at once."""
    proxy, _ = proxied
    with connect(proxy) as connection:
        connection.sendall(b"one")
        assert read(connection, 3) == b"one"
        proxy.refuse()
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    with pytest.raises(ConnectionRefusedError):
        connect(proxy)
    proxy.heal()
    with connect(proxy) as connection:
        connection.sendall(b"two")
        assert read(connection, 3) == b"two"


def test_a_proxy_is_aimed_once_its_server_is_known(proxied: tuple[TcpProxy, list[bytes]]) -> None:
    """A broker has to be told its proxy's address before it can tell its own."""
    with TcpProxy() as proxy:
        with connect(proxy) as early:
            assert early.recv(1) == b""
        proxy.aim(proxied[0].address)
        with connect(proxy) as connection:
            connection.sendall(b"one")
            assert read(connection, 3) == b"one"


def test_swallowed_replies_leave_the_outcome_unknown(proxied: tuple[TcpProxy, list[bytes]]) -> None:
    """The request was carried out, and nobody hears of it."""
    proxy, received = proxied
    with connect(proxy) as connection:
        proxy.drop_replies(True)
        connection.sendall(b"lost")
        wait_until(lambda: received == [b"lost"], "the request reached the server")
        assert is_silent(connection)
        proxy.drop_replies(False)
        connection.sendall(b"heard")
        assert read(connection, 5) == b"heard"


def test_a_delay_holds_back_both_directions(proxied: tuple[TcpProxy, list[bytes]]) -> None:
    """A slow network is slow there and back."""
    proxy, _ = proxied
    with connect(proxy) as connection:
        proxy.delay(0.2)
        before = time.monotonic()
        connection.sendall(b"slow")
        assert read(connection, 4) == b"slow"
        assert time.monotonic() - before >= 0.4


def test_redis_comes_back_empty_at_the_same_address(own_redis: Redis) -> None:
    """A killed Redis has forgotten every claim; the tests of the dedup store rely on that."""
    port = int(own_redis.url.rsplit(":", 1)[1].split("/")[0])
    assert ask_redis(port, "SET key value") == "+OK"
    own_redis.kill()
    assert not answers(port)
    own_redis.restart()
    assert ask_redis(port, "GET key") == "$-1"
    own_redis.freeze()
    assert not answers(port)
    own_redis.thaw()
    wait_until(lambda: answers(port), "the thawed Redis answers")


def test_one_redis_for_all(redis_url: str) -> None:
    """The shared one is there for whoever asks."""
    assert redis_url.startswith("redis://")


def ask_redis(port: int, command: str) -> str:
    """The first line of the answer."""
    with socket.create_connection((LOOPBACK, port), timeout=20) as connection:
        connection.sendall(f"{command}\r\n".encode())
        return connection.recv(1_024).decode().split("\r\n")[0]
