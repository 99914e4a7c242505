"""A ZooKeeper ensemble: sessions, ephemeral znodes, one-shot watches, and a follower that lags behind."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from relevo_partitions.ports import Znode
from tests.simulation.world.network import ServerSays
from tests.simulation.world.scheduler import Scheduler

LAG_S: Final = 0.02
"""How far the follower usually is behind, at most."""

Op = tuple[str, str, Znode | None]
"""``put`` or ``delete``, a path, and the znode put."""


class Expired(ServerSays):
    """The session is over."""


class NoParent(ServerSays):
    """What lies above doesn't exist."""


@dataclass
class Session:
    """One client's session."""

    number: int
    timeout_s: float
    heard_at: float
    server: int
    live: bool = True


class Server:
    """What one server knows: the leader all, a follower some time later."""

    def __init__(self) -> None:
        self.znodes: dict[str, Znode] = {}
        self.applied = 0
        self.watches: dict[tuple[str, str], list[Callable[[str], None]]] = {}

    def apply(self, op: Op) -> None:
        """Take in a change, and tell who watches."""
        kind, path, znode = op
        if znode is not None:
            self.znodes[path] = znode
        else:
            del self.znodes[path]
        self.applied += 1
        self._fire(("data", path))
        if kind != "set":
            self._fire(("children", path.rpartition("/")[0]))

    def _fire(self, what: tuple[str, str]) -> None:
        for tell in self.watches.pop(what, ()):
            tell(what[1])


class Ensemble:
    """Two servers. Its methods are what requests do when they arrive.

    Args:
        scheduler: Of the world.
        rng: Decides lags.
    """

    def __init__(self, scheduler: Scheduler, rng: random.Random) -> None:
        self._scheduler = scheduler
        self._rng = rng
        self.servers = [Server(), Server()]
        self.lag_s = LAG_S
        self.sessions: dict[int, Session] = {}
        self._ops: list[Op] = []
        self._zxid = 100
        self._sessions_made = 0
        self._catch_up_at = 0.0
        self.changed: Callable[[Op], None] = lambda op: None
        """Told of every change."""

    # -- sessions

    def connect(self, number: int, timeout_s: float, server: int) -> Session:
        """A new session, or the old one by way of another server."""
        now = self._scheduler.now
        if number:
            session = self.sessions[number]
            if not session.live:
                raise Expired(f"session {number}")
            session.heard_at, session.server = now, server
        else:
            self._sessions_made += 1
            session = Session(0x1000 + self._sessions_made, timeout_s, now, server)
            self.sessions[session.number] = session
            self._scheduler.after(timeout_s, partial(self._look_after, session))
        # A client never sees a state older than one that it has seen.
        self._catch_up(self.servers[server])
        return session

    def ping(self, number: int) -> Session:
        """A sign of life."""
        session = self.sessions[number]
        if not session.live:
            raise Expired(f"session {number}")
        session.heard_at = self._scheduler.now
        return session

    def close(self, number: int) -> None:
        """End a session and what it owns."""
        session = self.sessions[number]
        if session.live:
            session.live = False
            leader = self.servers[0]
            for path in [path for path, znode in leader.znodes.items() if znode.session == number]:
                self._write(("delete", path, None))

    def _look_after(self, session: Session) -> None:
        if not session.live:
            return
        left = session.heard_at + session.timeout_s - self._scheduler.now
        if left > 0:
            self._scheduler.after(left, partial(self._look_after, session))
        else:
            self._scheduler.note("zookeeper", f"session {session.number:#x} expires")
            self.close(session.number)

    # -- reads, of the server that the session is connected to

    def get(self, number: int, path: str) -> Znode | None:
        """The znode as that server knows it."""
        return self._server(number).znodes.get(path)

    def watch(self, number: int, path: str, tell: Callable[[str], None]) -> Znode | None:
        """As `get`; ``tell`` hears of the next change."""
        server = self._server(number)
        server.watches.setdefault(("data", path), []).append(tell)
        return server.znodes.get(path)

    def children(self, number: int, path: str, tell: Callable[[str], None]) -> list[str] | None:
        """Names below; ``tell`` hears of the next change."""
        server = self._server(number)
        if path not in server.znodes:
            return None
        server.watches.setdefault(("children", path), []).append(tell)
        prefix = path + "/"
        return sorted(
            each[len(prefix) :]
            for each in server.znodes
            if each.startswith(prefix) and "/" not in each[len(prefix) :]
        )

    def sync(self, number: int) -> None:
        """The session's server learns all there is."""
        self._catch_up(self._server(number))

    # -- writes

    def create(self, number: int, path: str, data: bytes, ephemeral: bool) -> Znode | None:
        """The znode made, None where there is one."""
        session = self.ping(number)
        leader = self.servers[0]
        parent = path.rpartition("/")[0]
        if path in leader.znodes:
            self._catch_up(self.servers[session.server])
            return None
        if parent and parent not in leader.znodes:
            raise NoParent(path)
        self._zxid += 1
        znode = Znode(data, self._zxid, 0, number if ephemeral else 0)
        self._write(("put", path, znode))
        self._catch_up(self.servers[session.server])
        return znode

    def ensure(self, number: int, path: str) -> None:
        """Make ``path`` and what lies above."""
        parts = path.strip("/").split("/")
        for length in range(1, len(parts) + 1):
            self.create(number, "/" + "/".join(parts[:length]), b"", False)

    def delete(self, number: int, path: str, version: int) -> bool:
        """Whether it was there in that version, and isn't any more."""
        session = self.ping(number)
        found = self.servers[0].znodes.get(path)
        if found is None or found.version != version:
            self._catch_up(self.servers[session.server])
            return False
        self._write(("delete", path, None))
        self._catch_up(self.servers[session.server])
        return True

    def _write(self, op: Op) -> None:
        self._ops.append(op)
        self.servers[0].apply(op)
        self.changed(op)
        delay = self._rng.random() * self.lag_s
        # In order: a later change never overtakes an earlier one.
        self._catch_up_at = max(self._catch_up_at, self._scheduler.now + delay)
        self._scheduler.at(self._catch_up_at, partial(self._advance, len(self._ops)))

    def _advance(self, upto: int) -> None:
        follower = self.servers[1]
        while follower.applied < upto:
            follower.apply(self._ops[follower.applied])

    def _catch_up(self, server: Server) -> None:
        if server is self.servers[1]:
            self._advance(len(self._ops))

    def _server(self, number: int) -> Server:
        return self.servers[self.ping(number).server]
