"""Membership and election on a real ZooKeeper that is cut off, refuses, loses replies and ends sessions."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from relevo_partitions.election.election import Claim, Election
from relevo_partitions.election.membership import NodeInfo
from relevo_partitions.election.zookeeper import ZooKeeper
from relevo_partitions.errors import (
    ConfigMismatch,
    NodeIdTaken,
    UsedAfterFork,
    WrongThread,
    ZooKeeperUnavailable,
)
from relevo_partitions.ports import Verdict
from relevo_partitions.runtime import THREADS
from tests.support.brokers import Brokers
from tests.support.election_site import SESSION_TIMEOUT_S, Site
from tests.support.waiting import wait_until


@pytest.fixture
def site(brokers: Brokers, cluster_name: str) -> Iterator[Site]:
    site = Site(brokers.zookeeper, cluster_name)
    with site.stack:
        yield site


def never() -> bool:
    return False


def test_a_candidate_left_by_an_earlier_session_is_replaced(site: Site) -> None:
    old, new = site.client(), site.client()
    site.election(old).enroll(0)
    election = site.election(new)
    election.enroll(0)
    assert election.look(0).candidates == ("n1",)
    old.close(5)
    assert election.look(0).candidates == ("n1",)
    election.withdraw(0)
    assert election.look(0).candidates == ()


def test_znodes_that_somebody_wiped_are_made_again(site: Site) -> None:
    client = site.client()
    election = site.election(client)
    assert client.delete(election.candidates_path(0), -1)
    assert client.delete(f"/{site.cluster}/partitions/0", -1)
    assert election.look(0).candidates == ()
    assert election.claim(0, THREADS.token()) is not None


def test_a_change_is_told_once_looked_at(site: Site) -> None:
    touched: list[str] = []
    watching = site.election(site.client(on_watch=touched.append), "n1")
    other = site.election(site.client(), "n2")
    watching.look(0)
    claim = other.claim(0, THREADS.token())
    assert claim is not None
    wait_until(lambda: watching.leader_path(0) in touched, "the creation was told")
    watching.look(0)
    touched.clear()
    other.remove(0, claim.record)
    wait_until(lambda: watching.leader_path(0) in touched, "the deletion was told")
    assert watching.partition_of(watching.leader_path(0)) == 0
    assert watching.partition_of(f"/{site.cluster}/nodes") is None


# -- membership
# -----------------------------------------------------------------------------------------------------


def test_nodes_must_agree_on_the_clusters_settings(site: Site) -> None:
    site.membership(site.client()).agree({"partitions": 4, "format": 1})
    other = site.membership(site.client(), "n2")
    other.agree({"partitions": 4, "format": 1})
    with pytest.raises(ConfigMismatch) as raised:
        other.agree({"partitions": 8, "format": 1, "extra": True})
    assert raised.value.differing == {"partitions": (4, 8), "extra": (None, True)}
    assert "partitions: the cluster has 4, this node 8" in str(raised.value)


def test_an_id_in_use_is_refused_and_the_holder_named(site: Site) -> None:
    first = site.membership(site.client())
    first.agree({})
    first.register(never)
    with pytest.raises(NodeIdTaken, match=r"'n1' is in use by a live node at n1:80"):
        site.membership(site.client(), incarnation="2").register(never)


def test_a_killed_predecessors_registration_is_waited_for(site: Site) -> None:
    proxy = site.proxy()
    first = site.membership(site.client(proxy.address))
    first.agree({})
    first.register(never)
    proxy.cut()  # as the server sees a kill -9 whose sockets went with the machine
    successor = site.membership(site.client(), incarnation="2")
    successor.register(never)
    assert [node.incarnation for node in successor.nodes()] == ["2"]


def test_a_node_finds_its_own_registration_again(site: Site) -> None:
    client = site.client()
    membership = site.membership(client)
    membership.agree({})
    membership.register(never)
    membership.register(never)
    assert membership.nodes() == [NodeInfo("n1", "n1:80", "1")]


# -- the client
# -----------------------------------------------------------------------------------------------------


def test_a_call_within_a_callback_is_refused_instead_of_waiting_for_itself(site: Site) -> None:
    """A blocking call on the client's own thread keeps the client from ever answering it."""
    outcome: list[Any] = []
    clients: list[ZooKeeper] = []

    def on_watch(path: str) -> None:
        try:
            clients[0].get(path)
        except WrongThread as error:
            outcome.append(error)

    clients.append(site.client(on_watch=on_watch))
    election = site.election(clients[0])
    election.look(0)
    election.enroll(0)
    wait_until(lambda: outcome, "the guard has spoken")
    assert clients[0].get(election.candidates_path(0)) is not None, "the client still works"


def test_a_callback_that_raises_does_not_harm_the_client(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    def on_watch(path: str) -> None:
        raise ZeroDivisionError(path)

    client = site.client(on_watch=on_watch)
    election = site.election(client)
    for _ in range(3):
        election.look(0)
        election.enroll(0)
        election.withdraw(0)
    wait_until(lambda: "A ZooKeeper callback failed" in caplog.text, "the failure was logged")
    assert election.look(0).candidates == ()


def test_twenty_lost_connections_in_a_row_leave_a_working_client(site: Site) -> None:
    """Callbacks that do more than enqueue would deadlock on one of them."""
    proxy = site.proxy()
    states: list[str] = []
    client = site.client(proxy.address, on_state=states.append)
    election = site.election(client)
    other = site.election(site.client(), "n2")
    for _ in range(20):
        seen = states.count("CONNECTED")
        election.look(0)
        proxy.refuse()
        proxy.heal()
        wait_until(lambda seen=seen: states.count("CONNECTED") > seen, "connected again")  # type: ignore[misc]
    other.enroll(0)
    assert "n2" in election.look(0).candidates
    assert len([t for t in threading.enumerate() if t.name == "relevo-zookeeper-stop"]) == 0


def test_twenty_lost_sessions_in_a_row_never_block_a_claim(site: Site) -> None:
    """A lock object that still believes it holds the lock waits for itself for ever."""
    client = site.client()
    election = site.election(client)
    killer = site.client()
    for _ in range(20):
        wait_until(lambda: client.connected, "connected")
        claim = _claim_until_won(election)
        before = client.session
        _end_session(killer, client)
        wait_until(lambda before=before: client.connected and client.session != before, "new")  # type: ignore[misc]
        assert claim.verify() is Verdict.LOST
    assert _claim_until_won(election).verify() is Verdict.OURS


def _claim_until_won(election: Election) -> Claim:
    won: list[Claim] = []

    def attempt() -> bool:
        try:
            claim = election.claim(0, THREADS.token())
        except ZooKeeperUnavailable:
            return False
        won.extend([claim] if claim is not None else [])
        return bool(won)

    wait_until(attempt, "claimed")
    return won[0]


def _end_session(killer: ZooKeeper, victim: ZooKeeper) -> None:
    """Let the servers end a session: another connection takes it over and closes it."""
    from kazoo.client import KazooClient

    twin = KazooClient(hosts=killer.hosts, client_id=victim._client.client_id, timeout=SESSION_TIMEOUT_S)
    twin.start(timeout=10)
    twin.stop()
    twin.close()


def test_a_server_that_does_not_answer_is_an_error_within_bounds(site: Site) -> None:
    proxy = site.proxy()
    client = site.client(proxy.address)
    proxy.cut()
    with pytest.raises(ZooKeeperUnavailable):
        client.get("/")


def test_a_server_that_accepts_and_says_nothing_is_asked_again_soon(site: Site) -> None:
    """One that is just starting may do so: whoever waits as long as a session lasts has lost it by then."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hosts = f"127.0.0.1:{silent.getsockname()[1]}"
        client = ZooKeeper(hosts, 60.0, lambda _: None, lambda _: None)
        site.stack.callback(client.close, 1)
        client.start()
        accepted, _ = silent.accept()
        silent.settimeout(20)
        again, _ = silent.accept()  # sixty seconds later otherwise
        accepted.close()
        again.close()


@pytest.mark.parametrize("fault", ["cut", "refuse"])
def test_closing_ends_within_its_deadline_though_zookeeper_is_away(site: Site, fault: str) -> None:
    """Stopping a suspended client can wait for ever."""
    for _ in range(5):
        proxy = site.proxy()
        client = site.client(proxy.address)
        getattr(proxy, fault)()
        began = time.monotonic()
        client.close(1.0)
        assert time.monotonic() - began < 20


def test_the_clients_noise_is_for_debugging_only(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """A line for each failed attempt would bury what a person needs to see."""
    proxy = site.proxy()
    with caplog.at_level("DEBUG"):
        client = site.client(proxy.address)
        proxy.refuse()
        wait_until(lambda: not client.connected, "the loss was noticed")
        wait_until(lambda: "kazoo: Connection dropped" in caplog.text, "the client complained")
        proxy.heal()
        wait_until(lambda: client.connected, "connected again")
    assert [record for record in caplog.records if record.levelname != "DEBUG"] == []


def test_a_client_used_in_a_forked_child_says_so(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    client = site.client()
    with monkeypatch.context() as patch:
        patch.setattr("os.getpid", lambda: -1)
        with pytest.raises(UsedAfterFork, match="ZooKeeper client was made before a fork"):
            client.get("/")


def test_the_leader_znode_tells_who_leads(site: Site) -> None:
    """Its data is a documented contract."""
    client = site.client()
    election = site.election(client)
    claim = election.claim(0, "the-token")
    assert claim is not None
    znode = client.get(f"/{site.cluster}/partitions/0/leader")
    assert znode is not None
    assert json.loads(znode.data) == {"node": "n1", "incarnation": "n1-1", "term_token": "the-token"}
    assert znode.session == client.session
