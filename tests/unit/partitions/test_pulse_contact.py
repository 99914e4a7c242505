"""One watched process, over real loopback sockets, with the time in the test's hand."""

from __future__ import annotations

import errno
import selectors
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from relevo_engine.local.ports import free_ports
from relevo_partitions.pulse import contact as pulse_contact
from relevo_partitions.pulse.contact import RETRY_MAX_S, STEADY_S, Contact, State
from relevo_partitions.pulse.evidence import Peer
from relevo_partitions.pulse.lookup import Lookups, Target
from tests.support.pulse_peers import PlayedPeer, reset
from tests.support.waiting import wait_until


class Observer:
    """A contact whose clock moves only when the test says so."""

    def __init__(self, peer: Peer, lookups: Lookups | None = None) -> None:
        self.now = 100.0
        self.deaths: list[Peer] = []
        self._selector = selectors.DefaultSelector()
        self.contact = Contact(peer, self._selector, lookups or Lookups(lambda: None), self.deaths.append)

    def close(self) -> None:
        self.contact.close()
        self._selector.close()

    def turn(self) -> None:
        """One look at the sockets; also begins an attempt that is due."""
        if self.contact.due is not None and self.contact.due <= self.now:
            self.contact.act(self.now)
        for key, _ in self._selector.select(0.0) if self._selector.get_map() else []:
            key.data(self.now)

    def until(self, *states: State) -> None:
        def reached() -> bool:
            self.turn()
            return self.contact.state in states

        wait_until(reached, f"the contact is {states}")

    def pass_time(self) -> None:
        """Jump to when the contact has something to do."""
        assert self.contact.due is not None
        self.now = max(self.now, self.contact.due)
        self.turn()

    def meet(self, peer: PlayedPeer) -> socket.socket:
        self.until(State.LISTENING)
        connection = peer.greet("n1", "first")
        self.until(State.HELD)
        self.now += STEADY_S
        return connection

    def lose(self, connection: socket.socket) -> None:
        """The connection ends; returns when the contact has noticed."""
        connection.close()
        self.until(*set(State) - {State.HELD})


@pytest.fixture
def peer() -> Iterator[PlayedPeer]:
    with PlayedPeer(free_ports(1)[0]) as peer:
        yield peer


@pytest.fixture
def observe() -> Iterator[Callable[..., Observer]]:
    made: list[Observer] = []

    def make(address: str, lookups: Lookups | None = None) -> Observer:
        made.append(Observer(Peer("n1", "first", address), lookups))
        return made[-1]

    yield make
    for observer in made:
        observer.close()


Observe = Callable[..., Observer]


@pytest.mark.parametrize("end", [socket.socket.close, reset])
def test_an_ended_connection_and_a_refusal_prove_the_death(
    peer: PlayedPeer, observe: Observe, end: Callable[[socket.socket], None]
) -> None:
    """What a killed process leaves: closed connections, and nobody who listens."""
    observer = observe(peer.address)
    connection = observer.meet(peer)
    peer.stop_listening()
    end(connection)
    ended_at = observer.now
    observer.until(State.CLOSED)
    assert observer.deaths == [observer.contact.peer]
    assert observer.contact.lost_at == ended_at


def test_a_later_incarnation_at_the_port_proves_the_death(peer: PlayedPeer, observe: Observe) -> None:
    """A supervisor restarts a killed process faster than anybody can look."""
    observer = observe(peer.address)
    observer.lose(observer.meet(peer))
    lost_at, observer.now = observer.now, observer.now + 0.5
    observer.until(State.LISTENING)
    peer.greet("n1", "second")
    observer.until(State.CLOSED)
    assert observer.deaths == [observer.contact.peer]
    assert observer.contact.lost_at == lost_at, "not when it was proven"


def test_a_connection_cut_by_something_in_between_proves_nothing(peer: PlayedPeer, observe: Observe) -> None:
    """Firewalls forget idle connections; the process behind them lives, and goes on being watched."""
    observer = observe(peer.address)
    observer.lose(observer.meet(peer))
    observer.until(State.LISTENING)
    again = peer.greet("n1", "first")
    observer.until(State.HELD)
    assert observer.deaths == []
    peer.stop_listening()
    again.close()
    observer.until(State.RESTING)
    observer.pass_time()
    observer.until(State.CLOSED)
    assert observer.deaths == [observer.contact.peer]


STRANGERS = [
    b"SSH-2.0-OpenSSH_9.6\r\n",
    b"RELEVO-PULSE/2 n1 second\n",
    b"RELEVO-PULSE/1 n1 second\nand more",
    b"RELEVO-PULSE/1 n2 first\n",
    b"x" * 4096,
]


@pytest.mark.parametrize("data", STRANGERS)
def test_a_stranger_at_the_port_proves_nothing(peer: PlayedPeer, observe: Observe, data: bytes) -> None:
    """What somebody else says must not speak for a node, neither for its life nor its death."""
    observer = observe(peer.address)
    observer.lose(observer.meet(peer))
    observer.until(State.LISTENING)
    peer.accept(data)
    observer.until(State.RESTING)
    assert observer.deaths == []


@pytest.mark.parametrize("end", [socket.socket.close, reset])
def test_an_end_before_the_greeting_proves_nothing_yet(
    peer: PlayedPeer, observe: Observe, end: Callable[[socket.socket], None]
) -> None:
    """A dying process closes one socket after the other; one that lives may have had no file left."""
    observer = observe(peer.address)
    observer.lose(observer.meet(peer))
    observer.until(State.LISTENING)
    end(peer.accept())
    observer.until(State.RESTING)
    assert observer.deaths == []
    assert observer.contact.due is not None
    assert observer.contact.due - observer.now < 0.02
    peer.stop_listening()
    observer.pass_time()
    observer.until(State.CLOSED)
    assert observer.deaths == [observer.contact.peer]


def test_silence_proves_nothing_however_long(peer: PlayedPeer, observe: Observe) -> None:
    """The kernel of a frozen process accepts for it; it may wake up at any time."""
    observer = observe(peer.address)
    observer.lose(observer.meet(peer))
    for _ in range(12):
        observer.until(State.LISTENING)
        observer.pass_time()  # the time for an answer is over
        assert observer.contact.state is State.RESTING
        observer.pass_time()
    observer.close()
    assert observer.deaths == []


def test_a_listener_with_a_full_backlog_proves_nothing(observe: Observe) -> None:
    """A process too busy to accept is alive, and its kernel answers nobody any more."""
    with PlayedPeer(free_ports(1)[0], backlog=0) as peer:
        observer = observe(peer.address)
        connection = observer.meet(peer)
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", peer.port))
        observer.lose(connection)
        for _ in range(5):
            observer.until(State.CONNECTING)
            observer.pass_time()
            observer.until(State.RESTING)
            observer.pass_time()
        for one in waiting:
            one.close()
        assert observer.deaths == []


def test_an_address_that_always_refused_proves_nothing(
    observe: Observe, caplog: pytest.LogCaptureFixture
) -> None:
    """A healthy node with a mistyped address must not lose its partitions, but its operator should know."""
    observer = observe(f"127.0.0.1:{free_ports(1)[0]}")
    waits = []
    for _ in range(20):
        observer.until(State.RESTING)
        assert observer.contact.due is not None
        waits.append(observer.contact.due - observer.now)
        observer.pass_time()
    assert observer.deaths == []
    assert waits == sorted(waits)
    assert waits[-1] == RETRY_MAX_S
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warned) == 1
    assert f"'n1' can't be reached at {observer.contact.peer.address} (ECONNREFUSED)" in warned[0]


def test_another_incarnation_where_this_one_was_never_met_proves_nothing(
    peer: PlayedPeer, observe: Observe
) -> None:
    """The list of nodes may be older than what listens."""
    observer = observe(peer.address)
    observer.until(State.LISTENING)
    peer.greet("n1", "second")
    observer.until(State.RESTING)
    assert observer.deaths == []


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOBUFS, errno.EAFNOSUPPORT])
def test_a_want_on_this_side_proves_nothing(
    peer: PlayedPeer, observe: Observe, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """An observer without a file left must not take everybody else for dead."""
    observer = observe(peer.address)
    connection = observer.meet(peer)
    peer.stop_listening()

    def fails(*_: Any) -> None:
        raise OSError(code, "none left")

    with monkeypatch.context() as patch:
        patch.setattr(socket, "socket", fails)
        observer.lose(connection)
        assert observer.contact.state is State.RESTING
        assert observer.deaths == []
    observer.pass_time()
    observer.until(State.CLOSED)
    assert observer.deaths == [observer.contact.peer]


@pytest.mark.parametrize("code", [errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ECONNRESET])
def test_no_way_to_the_host_proves_nothing(
    peer: PlayedPeer, observe: Observe, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """A cut network looks like that, and both sides of it live."""
    observer = observe(peer.address)
    connection = observer.meet(peer)

    class Unreachable(socket.socket):
        def connect_ex(self, address: Any) -> int:
            return code

    monkeypatch.setattr(socket, "socket", Unreachable)
    observer.lose(connection)
    assert observer.contact.state is State.RESTING
    assert observer.deaths == []


def test_an_attempt_that_meets_itself_counts_as_refused(
    peer: PlayedPeer, observe: Observe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nobody listens, the kernel may give the attempt the port it aims at: it would wait for itself."""
    observer = observe(peer.address)
    connection = observer.meet(peer)
    peer.stop_listening()

    def take_the_port(attempt: socket.socket) -> None:
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        attempt.bind(("127.0.0.1", peer.port))

    monkeypatch.setattr(pulse_contact, "keep_alive", take_the_port)
    reset(connection)
    observer.until(State.CLOSED)
    assert observer.deaths == [observer.contact.peer]


class Names(Lookups):
    """A resolver that the test answers for."""

    def __init__(self) -> None:
        super().__init__(lambda: None)
        self.asked: list[str] = []

    def begin(self, who: object, host: str, port: int) -> bool:
        self.asked.append(host)
        return True


def test_one_of_several_addresses_is_enough_and_only_that_one_counts(
    peer: PlayedPeer, observe: Observe
) -> None:
    """Names lead to several hosts; that the first one refuses says nothing of the second."""
    names = Names()
    observer = observe(f"relevo-0.example:{peer.port}", names)
    observer.until(State.LOOKING_UP)
    nobody = Target(socket.AF_INET, ("127.0.0.1", free_ports(1)[0]))
    right = Target(socket.AF_INET, ("127.0.0.1", peer.port))
    observer.contact.looked_up([nobody, right, nobody], observer.now)
    observer.lose(observer.meet(peer))
    observer.until(State.LISTENING)
    again = peer.greet("n1", "first")
    observer.until(State.HELD)
    observer.now += STEADY_S
    assert observer.deaths == []
    peer.stop_listening()
    again.close()
    observer.until(State.CLOSED)
    assert observer.deaths == [observer.contact.peer]
    assert names.asked == ["relevo-0.example"]  # nothing to look up once it matters


def test_a_name_that_nobody_knows_is_asked_for_again(observe: Observe) -> None:
    """A node may be registered a moment before its name is."""
    names = Names()
    observer = observe("relevo-0.example:7071", names)
    observer.until(State.LOOKING_UP)
    observer.contact.looked_up([], observer.now)
    assert observer.contact.state is State.RESTING
    observer.pass_time()
    assert names.asked == ["relevo-0.example"] * 2


def test_a_peer_that_closes_every_connection_isnt_asked_all_the_time(
    peer: PlayedPeer, observe: Observe
) -> None:
    """A proxy that ends what it has just accepted would keep a core busy."""
    observer = observe(peer.address)
    observer.until(State.LISTENING)
    observer.lose(peer.greet("n1", "first"))
    waited = 0.0
    for _ in range(14):
        if observer.contact.state is State.RESTING:
            assert observer.contact.due is not None
            waited += observer.contact.due - observer.now
            observer.pass_time()
        observer.until(State.LISTENING)
        connection = peer.greet("n1", "first")
        observer.until(State.HELD)
        observer.lose(connection)
    assert waited > RETRY_MAX_S
    assert observer.deaths == []


def test_a_closed_contact_lets_go_in_every_state(peer: PlayedPeer, observe: Observe) -> None:
    """A node that has left the list is nobody's business, whatever was going on."""
    for state in (State.RESTING, State.CONNECTING, State.LISTENING, State.HELD):
        observer = observe(peer.address)
        if state is State.CONNECTING:
            observer.contact.act(observer.now)
        elif state is State.HELD:
            observer.until(State.LISTENING)
            peer.greet("n1", "first")
            observer.until(State.HELD)
        elif state is State.LISTENING:
            observer.until(state)
        assert observer.contact.state is state
        observer.contact.close()
        assert observer.contact.due is None
        if state is not State.HELD and state is not State.RESTING:
            assert peer.accept().recv(1) == b""
