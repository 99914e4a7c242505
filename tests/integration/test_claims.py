"""Claims to a partition, in a real ZooKeeper: one holder, found again, replaced when it is dead."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from relevo_partitions.election.election import Claim, Election, Removal
from relevo_partitions.errors import (
    ZooKeeperUnavailable,
)
from relevo_partitions.ports import Verdict
from relevo_partitions.runtime import THREADS
from tests.support.brokers import Brokers
from tests.support.election_site import Site
from tests.support.waiting import wait_until


@pytest.fixture
def site(brokers: Brokers, cluster_name: str) -> Iterator[Site]:
    site = Site(brokers.zookeeper, cluster_name)
    with site.stack:
        yield site


def test_only_one_of_many_gets_the_claim(site: Site) -> None:
    elections = [site.election(site.client(), f"n{index}") for index in range(4)]
    claims: list[Claim | None] = []
    gate = threading.Barrier(4)

    def try_it(election: Election) -> None:
        gate.wait(10)
        claims.append(election.claim(0, THREADS.token()))

    threads = [threading.Thread(target=try_it, args=(election,)) for election in elections]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(claims) == 4
    winners = [claim for claim in claims if claim is not None]
    assert len(winners) == 1
    assert winners[0].verify() is Verdict.OURS


def test_a_claim_whose_reply_was_lost_is_found_again(site: Site) -> None:
    """The znode was created, and its creator waits behind itself."""
    proxy = site.proxy()
    client = site.client(proxy.address)
    election = site.election(client)
    token = THREADS.token()
    proxy.drop_replies(True)
    with pytest.raises(ZooKeeperUnavailable):
        election.claim(0, token)
    proxy.refuse()
    proxy.heal()
    wait_until(lambda: client.connected, "reconnected")
    claim = election.claim(0, token)
    if claim is None:  # the session didn't outlive the fault: the znode went with it, or will
        wait_until(lambda: election.claim(0, token) is not None, "claimed anew")
    else:
        assert claim.verify() is Verdict.OURS
    assert election.claim(0, THREADS.token()) is None, "one znode, and no second claim beside it"


def test_a_claim_does_not_survive_its_session(site: Site) -> None:
    proxy = site.proxy()
    client = site.client(proxy.address)
    election = site.election(client)
    claim = election.claim(0, THREADS.token())
    assert claim is not None
    before = client.session
    proxy.cut()
    assert claim.verify() is Verdict.UNKNOWN, "no answer is no answer, not yes and not no"
    witness = site.election(site.client(), "n2")
    wait_until(lambda: witness.look(0).leader is None, "the servers ended the session")
    proxy.heal()
    wait_until(lambda: client.connected and client.session != before, "a new session")
    assert claim.verify() is Verdict.LOST


def test_a_claim_that_was_deleted_and_made_anew_is_another(site: Site) -> None:
    client = site.client()
    election = site.election(client)
    first = election.claim(0, "same-token")
    assert first is not None
    assert election.remove(0, first.record)
    second = election.claim(0, "same-token")
    assert second is not None
    assert first.verify() is Verdict.LOST
    assert second.verify() is Verdict.OURS
    assert not election.remove(0, first.record), "a late clean-up must not hit the claim after"
    assert second.verify() is Verdict.OURS


def test_a_dead_leaders_claim_is_replaced_in_one_go(site: Site) -> None:
    dead, heir = site.election(site.client()), site.election(site.client(), "n2")
    old = dead.claim(0, "t1")
    assert old is not None
    removal = heir.remove_dead(0, old.record, lambda: "t2")
    assert (removal.free, removal.removed) == (True, True)
    assert removal.claim is not None
    assert removal.claim.verify() is Verdict.OURS
    assert old.verify() is Verdict.LOST
    assert heir.look(0).leader == removal.claim.record


def test_a_dead_leaders_claim_that_goes_at_the_last_moment_is_claimed(site: Site) -> None:
    dead, heir = site.election(site.client()), site.election(site.client(), "n2")
    old = dead.claim(0, "t1")
    assert old is not None

    def found_it() -> str:
        assert dead.remove(0, old.record)
        return "t2"

    removal = heir.remove_dead(0, old.record, found_it)
    assert (removal.free, removal.removed) == (True, False)
    assert removal.claim is not None
    assert removal.claim.is_shown_by(heir.look(0))


def test_of_two_who_replace_a_dead_leaders_claim_one_holds_it_and_the_other_learns_that(site: Site) -> None:
    """A version doesn't tell a znode from the one after it in the same place."""
    dead, heir = site.election(site.client()), site.election(site.client(), "n2")
    other = site.election(site.client(), "n3")
    old = dead.claim(0, "t1")
    assert old is not None
    claims: list[Claim | None] = []

    def found_it() -> str:
        claims.append(other.remove_dead(0, old.record, lambda: "t3").claim)
        return "t2"

    claims.append(heir.remove_dead(0, old.record, found_it).claim)
    assert [claim.verify() for claim in claims if claim is not None] == [Verdict.LOST, Verdict.OURS]


def test_a_bystanders_late_clean_up_leaves_the_heirs_claim_alone(site: Site) -> None:
    """Every survivor has the proof, and looks before it deletes: what it saw may be a moment old."""
    dead, heir = site.election(site.client()), site.election(site.client(), "n2")
    bystander = site.election(site.client(), "n3")
    old = dead.claim(0, "t1")
    assert old is not None
    claims: list[Claim | None] = []

    def found_it() -> None:
        claims.append(heir.remove_dead(0, old.record, lambda: "t2").claim)

    assert bystander.remove_dead(0, old.record, found_it) == Removal(free=False)
    (claim,) = claims
    assert claim is not None
    assert claim.verify() is Verdict.OURS


def test_whom_zookeeper_shows_no_more_is_not_doomed(site: Site) -> None:
    dead, heir = site.election(site.client()), site.election(site.client(), "n2")
    old = dead.claim(0, "t1")
    assert old is not None
    assert dead.remove(0, old.record)

    def found_it() -> str:
        raise AssertionError("it isn't there")

    assert heir.remove_dead(0, old.record, found_it) == Removal(free=True)
    assert dead.claim(0, "t4") is not None
    assert heir.remove_dead(0, old.record, found_it) == Removal(free=False)


def test_a_foreign_znode_counts_as_a_strangers_claim(site: Site) -> None:
    client = site.client()
    election = site.election(client)
    client.create(election.leader_path(0), b"\xff not JSON", ephemeral=False)
    sight = election.look(0)
    assert sight.leader is not None
    assert not election.is_own(sight.leader)
    assert election.claim(0, THREADS.token()) is None
