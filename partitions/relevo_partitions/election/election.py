"""How a claim to a partition is made, checked and given back.

The claim is one ephemeral znode per partition, created atomically. Its data carries a token of the claim, so
that a node finds its own znode again although the reply to the creation was lost, and tells it from those of
its earlier terms. Nothing of kazoo's lock and election recipes is used: they wait where they can't be
interrupted.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from relevo_partitions.errors import ZooKeeperUnavailable
from relevo_partitions.ports import Coordinator, Verdict, Znode
from relevo_partitions.statemachine import Term

FIELDS: Final = ("node", "incarnation", "term_token")


@dataclass(frozen=True, slots=True)
class LeaderRecord:
    """The leader znode of a partition as it was read."""

    node: str
    incarnation: str
    token: str
    czxid: int
    session: int
    version: int


@dataclass(frozen=True, slots=True)
class Sight:
    """What ZooKeeper shows of one partition."""

    leader: LeaderRecord | None
    candidates: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """What became of a dead leader's znode.

    Attributes:
        free: Whether nobody else has claimed the partition, as far as ZooKeeper has shown.
        removed: Whether it was deleted by this node.
        claim: This node's own, where it was to claim.
    """

    free: bool
    removed: bool = False
    claim: Claim | None = None


class Claim:
    """A leader znode of our own; see `relevo_partitions.ports.Seat`."""

    def __init__(self, zookeeper: Coordinator, path: str, record: LeaderRecord) -> None:
        self.record = record
        self._zookeeper = zookeeper
        self._path = path

    def verify(self) -> Verdict:
        """Whether the znode stands, by a read that isn't stale, within the session that created it."""
        try:
            found = self._zookeeper.get_fresh(self._path)
        except ZooKeeperUnavailable:
            return Verdict.UNKNOWN
        same = found is not None and found.czxid == self.record.czxid
        return Verdict.OURS if same and self._zookeeper.session == self.record.session else Verdict.LOST

    def is_shown_by(self, sight: Sight) -> bool:
        """Whether ``sight`` holds this very znode."""
        return sight.leader is not None and sight.leader.czxid == self.record.czxid


class Election:
    """The znodes of all partitions of a cluster, as one node uses them.

    Every method raises `ZooKeeperUnavailable` where ZooKeeper doesn't answer: what was asked for may or may
    not have been done, and the next `look` shows it.

    Args:
        zookeeper: Connected.
        root: Path of the cluster.
        who: This node.
    """

    def __init__(self, zookeeper: Coordinator, root: str, who: Term) -> None:
        self._zookeeper = zookeeper
        self._root = root
        self._who = who

    @property
    def reachable(self) -> bool:
        """Whether ZooKeeper has been heard lately."""
        return self._zookeeper.connected

    def leader_path(self, partition: int) -> str:
        """Where the claim to ``partition`` stands."""
        return f"{self._root}/partitions/{partition}/leader"

    def candidates_path(self, partition: int) -> str:
        """What the candidates for ``partition`` stand below."""
        return f"{self._root}/partitions/{partition}/candidates"

    def partition_of(self, path: str) -> int | None:
        """The partition that a watched ``path`` belongs to."""
        prefix = f"{self._root}/partitions/"
        number = path.removeprefix(prefix).split("/")[0] if path.startswith(prefix) else ""
        return int(number) if number.isdecimal() else None

    def prepare(self, partition: int) -> None:
        """Create what the znodes stand below."""
        self._zookeeper.ensure(self.candidates_path(partition))

    def look(self, partition: int) -> Sight:
        """Read leader and candidates, and watch both."""
        leader = self._zookeeper.watch(self.leader_path(partition))
        names = self._zookeeper.children(self.candidates_path(partition))
        if names is None:
            self.prepare(partition)
            names = []
        return Sight(None if leader is None else read_record(leader), tuple(sorted(names)))

    def enroll(self, partition: int) -> None:
        """Become a candidate, instead of an earlier session or incarnation of this node."""
        path = f"{self.candidates_path(partition)}/{self._who.node}"
        data = self._who.incarnation.encode()
        if self._zookeeper.create(path, data, ephemeral=True) is not None:
            return
        found = self._zookeeper.get(path)
        if found is not None and (found.session != self._zookeeper.session or found.data != data):
            # The node id is registered to us, so whoever made this is gone, and its session soon will be.
            self._zookeeper.delete(path, found.version)
            self._zookeeper.create(path, data, ephemeral=True)

    def withdraw(self, partition: int) -> None:
        """Be no candidate any more."""
        path = f"{self.candidates_path(partition)}/{self._who.node}"
        found = self._zookeeper.get(path)
        if found is not None and found.session == self._zookeeper.session:
            self._zookeeper.delete(path, found.version)

    def claim(self, partition: int, token: str) -> Claim | None:
        """Create the leader znode; None where somebody else has one.

        A znode that exists and carries ``token`` is ours: it was created, and the reply got lost.
        """
        path, data = self.leader_path(partition), self._data(token)
        try:
            made = self._zookeeper.create(path, data, ephemeral=True)
        except KeyError:
            self.prepare(partition)
            made = self._zookeeper.create(path, data, ephemeral=True)
        return self._claim_in(path, made or self._zookeeper.get(path), token)

    def _data(self, token: str) -> bytes:
        who = self._who
        return json.dumps({"node": who.node, "incarnation": who.incarnation, "term_token": token}).encode()

    def _claim_in(self, path: str, found: Znode | None, token: str) -> Claim | None:
        """The claim in a znode that was made or found, if it is the one with ``token``."""
        record = None if found is None else read_record(found)
        if record is None or record.token != token or record.session != self._zookeeper.session:
            return None
        return Claim(self._zookeeper, path, record)

    def adopt(self, partition: int, record: LeaderRecord) -> Claim:
        """The claim behind a znode of our own."""
        return Claim(self._zookeeper, self.leader_path(partition), record)

    def remove(self, partition: int, record: LeaderRecord) -> bool:
        """Delete a leader znode of our own session, if it still is the one in ``record``."""
        path = self.leader_path(partition)
        found = self._zookeeper.get(path)
        if found is None or found.czxid != record.czxid or found.session != self._zookeeper.session:
            return False
        return self._zookeeper.delete(path, found.version)

    def remove_dead(
        self, partition: int, record: LeaderRecord, found_it: Callable[[], str | None]
    ) -> Removal:
        """Delete the leader znode of a process that is dead, if it still is the one in ``record``.

        ``found_it`` is called first, once ZooKeeper has shown that it is. It may give a token: then this node
        claims the partition in the same breath. Without one it is not the first to act, and the heir's claim
        may be on its way: that stands in the same place with the same version, so only a look at all that
        ZooKeeper has decided by now tells them apart.
        """
        path = self.leader_path(partition)
        found = self._zookeeper.get(path)
        if found is None or found.czxid != record.czxid:
            return Removal(free=found is None)
        token = found_it()
        if token is None:
            found = self._zookeeper.get_fresh(path)
            if found is None or found.czxid != record.czxid:
                return Removal(free=found is None)
            return Removal(free=True, removed=self._zookeeper.delete(path, found.version))
        removed, made = self._zookeeper.replace(path, found.version, self._data(token))
        return Removal(free=made is not None, removed=removed, claim=self._claim_in(path, made, token))

    def remove_candidate(self, partition: int, node: str, incarnation: str) -> None:
        """Delete the candidate znode of a process that is dead."""
        path = f"{self.candidates_path(partition)}/{node}"
        found = self._zookeeper.get(path)
        if found is not None and found.data == incarnation.encode():
            self._zookeeper.delete(path, found.version)

    def is_own(self, record: LeaderRecord) -> bool:
        """Whether this process made the znode, in whichever session."""
        return record.node == self._who.node and record.incarnation == self._who.incarnation


def read_record(znode: Znode) -> LeaderRecord:
    """Decode a leader znode; one that isn't ours to read counts as a stranger's."""
    try:
        fields = json.loads(znode.data)
        node, incarnation, token = (str(fields[name]) for name in FIELDS)
    except (ValueError, KeyError, TypeError):
        node, incarnation, token = "", "", ""
    return LeaderRecord(node, incarnation, token, znode.czxid, znode.session, znode.version)
