"""Pulses that watch each other over loopback: what is reported, how often, and how they start and stop."""

from __future__ import annotations

import logging
import os
import queue
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from relevo.testing.proxy import TcpProxy
from relevo_engine.local.ports import free_ports
from relevo_partitions.errors import UsedAfterFork
from relevo_partitions.pulse import pulse as pulse_module
from relevo_partitions.pulse.pulse import Peer, Pulse, PulseUnavailable
from relevo_partitions.pulse.watch import PulseWatch
from relevo_partitions.pulse.wire import Greeting
from tests.support.pulse_peers import PlayedPeer, greeting_of
from tests.support.waiting import wait_until

LIMIT_S = 20.0


class Pulses:
    """Pulses of one test, stopped at its end, and the deaths that each reported."""

    def __init__(self) -> None:
        self._made: list[Pulse] = []

    def make(
        self, node: str, incarnation: str = "first", *, host: str = "127.0.0.1", port: int = 0
    ) -> tuple[Pulse, queue.SimpleQueue[tuple[str, str]]]:
        deaths: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        pulse = Pulse(
            node, incarnation, host=host, port=port, on_death=lambda node, life, _: deaths.put((node, life))
        )
        self._made.append(pulse)
        pulse.start()
        return pulse, deaths

    def stop(self) -> None:
        for pulse in self._made:
            pulse.stop()


@pytest.fixture
def pulses() -> Iterator[Pulses]:
    made = Pulses()
    yield made
    made.stop()


def met(caplog: pytest.LogCaptureFixture, node: str) -> Callable[[], bool]:
    """Whether a pulse of the test has met ``node`` since the log was cleared."""
    return lambda: any(f"Watching the pulse of node '{node}'" in text for text in caplog.messages)


@pytest.fixture(autouse=True)
def _told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="relevo_partitions")


def test_the_end_of_a_node_is_reported_once_to_everybody_else(
    pulses: Pulses, caplog: pytest.LogCaptureFixture
) -> None:
    """A report for each turn, or for each list, would chase a partition from node to node."""
    dying, _ = pulses.make("n1")
    observers = [pulses.make("n2"), pulses.make("n3")]
    everybody = [Peer("n1", "first", dying.address)]
    everybody += [Peer(f"n{n}", "first", pulse.address) for n, (pulse, _) in enumerate(observers, 2)]
    for pulse, _ in observers:
        pulse.watch(everybody)
    wait_until(lambda: sum("Watching" in text for text in caplog.messages) == 4, "each watches both others")
    dying.stop()
    for _, deaths in observers:
        assert deaths.get(timeout=LIMIT_S) == ("n1", "first")
    later = [Peer(node, "first", pulses.make(node)[0].address) for node in ("n4", "n5")]
    for listed in (later[:1], [*everybody, *later]):  # the dead one leaves the list, and is on it again
        for pulse, _ in observers:
            pulse.watch(listed)
        newest = listed[-1].node
        wait_until(
            lambda newest=newest: sum(f"node '{newest}' at" in text for text in caplog.messages) == 2,  # type: ignore[misc]
            "both have taken over the list",
        )
    assert all(deaths.empty() for _, deaths in observers)


def test_a_false_proof_costs_a_node_its_partitions_once_and_not_for_ever(
    pulses: Pulses, caplog: pytest.LogCaptureFixture
) -> None:
    """A proxy before a living node that goes down and up looks like its death each time."""
    healthy, _ = pulses.make("n1")
    observer, deaths = pulses.make("n2")
    with TcpProxy(healthy.address) as proxy:
        peers = [Peer("n1", "first", proxy.address)]
        observer.watch(peers)
        wait_until(met(caplog, "n1"), "the node is watched")
        proxy.refuse()
        assert deaths.get(timeout=LIMIT_S) == ("n1", "first")
        proxy.heal()
        caplog.clear()
        observer.watch([])
        observer.watch([*peers, Peer("n3", "first", healthy.address)])
        wait_until(lambda: "node 'n3' is unclear" in caplog.text, "the list was taken over")
        proxy.refuse()
        proxy.heal()
        assert deaths.empty()
        assert not met(caplog, "n1")()
        assert greeting_of(proxy.address) == Greeting("n1", "first")
        observer.watch([Peer("n1", "first", healthy.address)])
        assert deaths.empty()


def test_a_cut_network_is_no_death(pulses: Pulses, caplog: pytest.LogCaptureFixture) -> None:
    """Both sides of a cut live; who is to lead is then for ZooKeeper to say."""
    healthy, _ = pulses.make("n1")
    observer, deaths = pulses.make("n2")
    with TcpProxy(healthy.address) as proxy:
        observer.watch([Peer("n1", "first", proxy.address)])
        wait_until(met(caplog, "n1"), "the node is watched")
        proxy.cut()
        caplog.clear()
        observer.watch([Peer("n1", "first", proxy.address), Peer("n1", "other", proxy.address)])
        wait_until(lambda: "is unclear: no greeting" in caplog.text, "the cut is seen as silence")
        proxy.heal()
    assert deaths.get(timeout=LIMIT_S) == ("n1", "first")  # the proxy is gone: nobody listens there any more


def test_a_callback_that_fails_stops_nothing(pulses: Pulses, caplog: pytest.LogCaptureFixture) -> None:
    """One death that couldn't be told must not hide the next."""
    told: queue.SimpleQueue[str] = queue.SimpleQueue()

    def fails(node: str, _: str, _lost_at: float) -> None:
        told.put(node)
        raise RuntimeError("planted")

    observer = Pulse("n3", "first", host="127.0.0.1", on_death=fails)
    observer.start()
    dying = {node: pulses.make(node)[0] for node in ("n1", "n2")}
    observer.watch(Peer(node, "first", pulse.address) for node, pulse in dying.items())
    wait_until(lambda: met(caplog, "n1")() and met(caplog, "n2")(), "both are watched")
    for node, pulse in dying.items():
        pulse.stop()
        assert told.get(timeout=LIMIT_S) == node
    observer.stop()


def test_who_leaves_the_list_is_left_alone(pulses: Pulses, caplog: pytest.LogCaptureFixture) -> None:
    """A node that left in order and is shut down afterwards hasn't died."""
    observer, deaths = pulses.make("n2")
    with PlayedPeer() as leaving, PlayedPeer() as staying:
        peers = [Peer("n1", "first", leaving.address), Peer("n3", "first", staying.address)]
        observer.watch(peers)
        left = leaving.greet("n1", "first")
        held = staying.greet("n3", "first")
        wait_until(lambda: met(caplog, "n1")() and met(caplog, "n3")(), "both are watched")
        observer.watch(peers)
        observer.watch(peers[1:])
        assert left.recv(1) == b""
        leaving.stop_listening()
        staying.stop_listening()
        held.close()
        assert deaths.get(timeout=LIMIT_S) == ("n3", "first")
        assert deaths.empty()


def test_a_node_watches_neither_itself_nor_what_has_no_usable_address(
    pulses: Pulses, caplog: pytest.LogCaptureFixture
) -> None:
    """The list is what nodes wrote, some of them of an earlier version, some of them wrongly."""
    other, _ = pulses.make("n1")
    observer, deaths = pulses.make("n2")
    listed = [
        Peer("n2", "first", observer.address),
        Peer("n3", "first", ""),
        Peer("n4", "first", "not an address"),
        Peer("n1", "first", other.address),
    ]
    observer.watch(listed[:3])
    wait_until(lambda: "'n4' can't be watched" in caplog.text, "the first list was taken over")
    observer.watch(listed)
    wait_until(met(caplog, "n1"), "the usable one is watched")
    other.stop()
    assert deaths.get(timeout=LIMIT_S) == ("n1", "first")
    assert not met(caplog, "n2")()
    assert sum("'n4' can't be watched" in text for text in caplog.messages) == 1


def test_a_list_given_before_the_start_counts(caplog: pytest.LogCaptureFixture, pulses: Pulses) -> None:
    other, _ = pulses.make("n1")
    observer = Pulse("n2", "first", host="127.0.0.1", on_death=lambda node, life, lost_at: None)
    observer.watch([Peer("n1", "first", other.address)])
    observer.start()
    wait_until(met(caplog, "n1"), "the node is watched")
    observer.stop()


@pytest.mark.parametrize("host", ["::1", "localhost", "127.0.0.1"])
def test_addresses_of_every_kind(pulses: Pulses, caplog: pytest.LogCaptureFixture, host: str) -> None:
    """Clusters run on IPv6, and on names."""
    dying, _ = pulses.make("n1", host=host)
    observer, deaths = pulses.make("n2")
    observer.watch([Peer("n1", "first", dying.address)])
    wait_until(met(caplog, "n1"), f"the node is watched at {dying.address}")
    dying.stop()
    assert deaths.get(timeout=LIMIT_S) == ("n1", "first")


def test_what_others_are_told_to_connect_to() -> None:
    """An address that means something else on each host is of no use to others."""
    pulse = Pulse("n1", "first", host="127.0.0.1", advertise="relevo-0.example:7071", on_death=print)
    assert pulse.address == "relevo-0.example:7071"
    everywhere = Pulse("n1", "first", host="", on_death=print)
    with pytest.raises(RuntimeError, match="once it was started"):
        _ = everywhere.address
    everywhere.start()
    host, _, port = everywhere.address.rpartition(":")
    assert host == socket.gethostname()
    assert greeting_of(f"127.0.0.1:{port}") == Greeting("n1", "first")
    everywhere.stop()


@pytest.mark.parametrize("wrong", [{"node": "n 1"}, {"incarnation": ""}, {"advertise": "n1"}])
def test_what_cant_be_used_is_refused_at_once(wrong: dict[str, str]) -> None:
    """Found only by others that can't read the greeting, it would be a riddle."""
    given = {"node": "n1", "incarnation": "first", "advertise": "", **wrong}
    with pytest.raises(ValueError, match=r"must be 1 to 100|isn't host:port"):
        Pulse(given["node"], given["incarnation"], host="", advertise=given["advertise"], on_death=print)


def test_a_port_in_use_is_named() -> None:
    """Two nodes at one port would each be taken for the other's death."""
    with PlayedPeer() as there:
        pulse = Pulse("n1", "first", host="127.0.0.1", port=there.port, on_death=print)
        with pytest.raises(PulseUnavailable, match=rf"127\.0\.0\.1:{there.port}: Address already in use"):
            pulse.start()
        pulse.stop()


def test_a_pulse_that_fails_doesnt_look_dead(
    pulses: Pulses, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of the pulse must not cost the node that has it its partitions."""
    faulty = Pulse("n1", "first", host="127.0.0.1", on_death=print)
    faulty.start()
    observer, deaths = pulses.make("n2")
    with TcpProxy(faulty.address) as proxy:
        observer.watch([Peer("n1", "first", proxy.address)])
        wait_until(met(caplog, "n1"), "the node is watched")

        def fails(self: PulseWatch) -> None:
            raise RuntimeError("planted")

        with monkeypatch.context() as patch:
            patch.setattr(faulty._watch, "_follow", fails.__get__(faulty._watch))
            faulty.watch([])
            wait_until(lambda: not faulty._thread.is_alive(), "its thread has ended")  # type: ignore[union-attr]
        assert "The pulse failed" in caplog.text
        assert "its connection ended" not in caplog.text
        host, _, port = faulty.address.rpartition(":")
        socket.create_connection((host, int(port)), timeout=LIMIT_S).close()
        assert deaths.empty()
        faulty.stop()


def test_stopping_is_bounded_though_the_callback_hangs(
    pulses: Pulses, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node has to get out, whatever hangs in it."""
    monkeypatch.setattr(pulse_module, "STOP_LIMIT_S", 0.05)
    hangs, release = threading.Event(), threading.Event()

    def hang(node: str, incarnation: str, lost_at: float) -> None:
        hangs.set()
        release.wait(LIMIT_S)

    dying, _ = pulses.make("n1")
    observer = Pulse("n2", "first", host="127.0.0.1", on_death=hang)
    observer.start()
    observer.watch([Peer("n1", "first", dying.address)])
    wait_until(met(caplog, "n1"), "the node is watched")
    dying.stop()
    assert hangs.wait(LIMIT_S)
    observer.stop()
    assert "didn't stop" in caplog.text
    release.set()
    wait_until(lambda: not observer._thread.is_alive(), "it ends once the callback has")  # type: ignore[union-attr]
    observer.stop()


def test_started_once_and_stopped_any_number_of_times() -> None:
    pulse = Pulse("n1", "first", host="127.0.0.1", on_death=print)
    pulse.start()
    with pytest.raises(RuntimeError, match="started once"):
        pulse.start()
    pulse.stop()
    pulse.stop()
    pulse.watch([Peer("n2", "first", "127.0.0.1:7071")])
    with pytest.raises(RuntimeError, match="started once"):
        pulse.start()
    never = Pulse("n1", "first", host="127.0.0.1", on_death=print)
    never.stop()
    with pytest.raises(RuntimeError, match="started once"):
        never.start()


def test_a_pulse_doesnt_survive_a_fork(pulses: Pulses, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child has no thread, and would take the parent's sockets apart."""
    pulse, _ = pulses.make("n1")
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        for call in (pulse.start, pulse.stop, lambda: pulse.watch([])):
            with pytest.raises(UsedAfterFork, match="a Pulse was made before a fork"):
                call()


def test_a_restarted_node_gets_its_port_back_and_is_watched_anew(
    pulses: Pulses, caplog: pytest.LogCaptureFixture
) -> None:
    """Connections of the process before linger in the kernel; the port must be free all the same."""
    port = free_ports(1)[0]
    observer, deaths = pulses.make("n2")
    for incarnation in ("first", "second", "third"):
        pulse, _ = pulses.make("n1", incarnation, port=port)
        caplog.clear()
        observer.watch([Peer("n1", incarnation, pulse.address)])
        wait_until(met(caplog, "n1"), "it is watched")
        pulse.stop()
        assert deaths.get(timeout=LIMIT_S) == ("n1", incarnation)
