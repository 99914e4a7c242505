"""What follows from a proof of death: the dead process's znodes go at once, instead of with its session.

A proof may be wrong, and comes to every survivor. Whoever ranks first acts at once, the others a step later
each, if there is anything left to do by then. What is deleted is what was seen of the very process that died,
so a living node that was taken for dead keeps what it makes anew. Only where two act within a round trip of
each other may one delete what the other has just made in its place, since ZooKeeper counts versions from 0
again: that other one's term then ends, and the partition is claimed once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from relevo_partitions.election.election import Claim, Election
from relevo_partitions.election.membership import Membership
from relevo_partitions.election.ranking import rank
from relevo_partitions.observer import Observer
from relevo_partitions.supervisor.post import Post
from relevo_partitions.supervisor.scene import Scene
from relevo_partitions.supervisor.signals import Died
from relevo_partitions.term.roles import Role

_NODES: Final = -1
"""Stands for the list of nodes in a ranking, as a partition's number does."""


@dataclass(frozen=True, slots=True)
class _Proof:
    node: str
    incarnation: str
    at: float
    lost_at: float
    registration: int
    """Tells the dead process's registration from any later one; 0 where it isn't registered."""


class Deaths:
    """Remembers proofs until they were acted on, also while ZooKeeper is out of reach.

    Used by the supervisor's thread.

    Args:
        scene: What this node knows of the cluster.
        posts: All partitions.
        election: Deletes claims and candidates.
        membership: Deletes registrations.
        observer: Told of what was done.
        step_s: How much later each node acts than the one ranked before it.
    """

    def __init__(
        self,
        scene: Scene,
        posts: list[Post],
        election: Election,
        membership: Membership,
        observer: Observer,
        step_s: float,
    ) -> None:
        self._scene = scene
        self._posts = posts
        self._election = election
        self._membership = membership
        self._observer = observer
        self._step_s = step_s
        self._proofs: dict[tuple[str, str], _Proof] = {}

    def heard(self, died: Died) -> None:
        """Take in a proof."""
        who = (died.node, died.incarnation)
        if who in self._proofs or died.node == self._scene.me:
            return
        registered = any((node.node, node.incarnation) == who for node in self._scene.nodes)
        registration = self._membership.registration(died.node) if registered else 0
        self._proofs[who] = _Proof(*who, died.at, died.lost_at, registration)
        self._scene.dead.add(who)
        for post in self._claims(who):
            post.death_noticed_at, post.leader_lost_at = died.at, died.lost_at
            post.dirty = True

    def act(
        self, now: float, doomed: Callable[[Post], str | None], freed: Callable[[Post, Claim | None], None]
    ) -> None:
        """Delete what is due.

        Args:
            now: The present.
            doomed: Told each partition whose claim stands and is about to be deleted; gives the token of this
                node's own claim, where it is to be made at once.
            freed: Told each partition whose claim was deleted, at once, and this node's own.

        Raises:
            ZooKeeperUnavailable: The rest is tried again.
        """
        for who, proof in list(self._proofs.items()):
            claims = list(self._claims(who))
            for post in claims:
                if post.death_noticed_at is None:  # seen only after the proof
                    post.death_noticed_at, post.leader_lost_at = proof.at, proof.lost_at
                if proof.at + self._place(post) * self._step_s <= now:
                    self._free(post, doomed, freed)
            if proof.at + self._last_step() <= now and not list(self._claims(who)):
                self._clear(proof)
                del self._proofs[who]
                self._scene.dead.discard(who)

    def due(self) -> Iterable[float]:
        """When there is something to do."""
        for who, proof in self._proofs.items():
            yield from (proof.at + self._place(post) * self._step_s for post in self._claims(who))
            yield proof.at + self._last_step()

    def _claims(self, who: tuple[str, str]) -> Iterable[Post]:
        for post in self._posts:
            leader = post.sight.leader if post.sight is not None else None
            if leader is not None and (leader.node, leader.incarnation) == who:
                yield post

    def _place(self, post: Post) -> int:
        """How many are to act before this node: none, where it is the candidate that ranks first."""
        dead = self._scene.dead_names()
        candidates = [name for name in post.sight.candidates if name not in dead] if post.sight else []
        place = rank(post.partition, self._scene.me, candidates)
        return place if post.roles.role is Role.STANDBY else max(place, len(candidates))

    def _last_step(self) -> float:
        """The dead node's other znodes are in nobody's way at once: they come after the claims."""
        return (1 + rank(_NODES, self._scene.me, self._scene.live())) * self._step_s

    def _free(
        self, post: Post, doomed: Callable[[Post], str | None], freed: Callable[[Post, Claim | None], None]
    ) -> None:
        leader = post.sight.leader if post.sight is not None else None
        if leader is None:
            return
        removal = self._election.remove_dead(post.partition, leader, lambda: doomed(post))
        if removal.removed:
            self._observer.note("dead_leader_removed", partition=post.partition, node=leader.node)
        post.dirty = True
        if removal.free:
            freed(post, removal.claim)

    def _clear(self, proof: _Proof) -> None:
        if not proof.registration or not self._membership.remove(proof.node, proof.registration):
            return  # somebody else did it, the session ended, or the node is back
        self._observer.note("dead_node_removed", node=proof.node, incarnation=proof.incarnation)
        for post in self._posts:
            if post.sight is not None and proof.node in post.sight.candidates:
                self._election.remove_candidate(post.partition, proof.node, proof.incarnation)
                post.dirty = True
