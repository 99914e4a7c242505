"""One watched process: the idle connection to it, and the attempts to get one."""

from __future__ import annotations

import errno
import logging
import selectors
import socket
from collections.abc import Callable
from enum import Enum, auto
from typing import Final

from relevo_partitions.pulse.evidence import Finding, NoGreeting, Peer, judge
from relevo_partitions.pulse.listener import keep_alive
from relevo_partitions.pulse.lookup import Lookups, Target
from relevo_partitions.pulse.wire import GREETING_BYTES_MAX, Greeting, split_address

log: Final = logging.getLogger(__name__)

ANSWER_LIMIT_S: Final = 1.0
"""An attempt that led to neither greeting nor refusal by then is given up."""
RETRY_FIRST_S: Final = 0.002
"""A dying process may close its connections a moment before the socket it listens with."""
RETRY_MAX_S: Final = 5.0
STEADY_S: Final = 10.0
"""A connection that has lasted so long is followed by an attempt at once, another by the next longer wait."""
_WARN_AFTER: Final = 13
"""Attempts in vain: by now the longest wait is reached."""


class State(Enum):
    """What a contact is about to do."""

    RESTING = auto()
    """Waits for its next attempt."""
    LOOKING_UP = auto()
    CONNECTING = auto()
    LISTENING = auto()
    """Connected, not greeted yet."""
    HELD = auto()
    """Greeted: the connection lies idle until it ends."""
    CLOSED = auto()


class Contact:
    """Used by the pulse's thread alone.

    Args:
        peer: The process to watch.
        selector: Where `ready` is registered as the ``data`` of a key.
        lookups: For the name of its host.
        on_death: Called once, when the process is proven dead; the contact is closed by then.

    Raises:
        ValueError: The peer's address isn't ``host:port``.
    """

    def __init__(
        self,
        peer: Peer,
        selector: selectors.BaseSelector,
        lookups: Lookups,
        on_death: Callable[[Peer], None],
    ) -> None:
        self.peer = peer
        self.state = State.RESTING
        self.due: float | None = 0.0
        """When `act` wants to be called, by the monotonic clock; None while it needn't."""
        self.lost_at = 0.0
        """When the connection to it last ended, by the monotonic clock: its last sign of life."""
        self._host, self._port = split_address(peer.address)
        self._selector = selector
        self._lookups = lookups
        self._on_death = on_death
        self._socket: socket.socket | None = None
        self._target: Target | None = None
        self._untried: list[Target] = []
        self._met_at: Target | None = None
        self._met_since = 0.0
        self._greeting = b""
        self._attempts = 0
        self._problem = ""

    def close(self) -> None:
        """Forget the peer."""
        self._hang_up()
        self.state, self.due = State.CLOSED, None

    def act(self, now: float) -> None:
        """Begin the attempt that is due, or give up the one that takes too long."""
        self.due = None
        if self.state is State.RESTING:
            self._begin(now)
        elif self.state in (State.CONNECTING, State.LISTENING):
            self._problem = "no answer" if self.state is State.CONNECTING else "no greeting"
            self._answered(NoGreeting.NOTHING_SURE, now)

    def looked_up(self, targets: list[Target], now: float) -> None:
        """The addresses of the host's name are known."""
        if self.state is State.LOOKING_UP:
            self._untried = targets
            self._problem = "the host's name isn't known"
            self._try_next(now)

    def ready(self, now: float) -> None:
        """Something happened on the socket."""
        if self.state is State.CONNECTING:
            self._connected(now)
        elif self.state is State.LISTENING:
            self._heard(now)
        elif self.state is State.HELD:
            self._ended(now)

    def _begin(self, now: float) -> None:
        # Whoever was met is looked for where it was met, and nowhere else: a name may lead to several hosts,
        # and that another one refuses proves nothing. It also spares the lookup when time matters.
        targets = [self._met_at] if self._met_at else self._lookups.literal(self._host, self._port)
        if targets is not None:
            self._untried = targets
            self._try_next(now)
        elif self._lookups.begin(self, self._host, self._port):
            self.state = State.LOOKING_UP
        else:
            self._problem = "too many names are being looked up"
            self._rest(now)

    def _try_next(self, now: float) -> None:
        if not self._untried:
            self._rest(now)
            return
        self._target = self._untried.pop(0)
        try:
            self._socket = socket.socket(self._target.family, socket.SOCK_STREAM)
            self._socket.setblocking(False)
            keep_alive(self._socket)
            code = self._socket.connect_ex(self._target.address)
        except OSError as error:
            code = error.errno or errno.EIO
        if code not in (0, errno.EINPROGRESS):
            self._failed(code, now)
            return
        self.state, self.due = State.CONNECTING, now + ANSWER_LIMIT_S
        self._register(selectors.EVENT_WRITE)

    def _connected(self, now: float) -> None:
        connection = self._require()
        code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code != 0:
            self._failed(code, now)
            return
        try:
            alone = connection.getsockname() == connection.getpeername()
        except OSError as error:
            self._failed(error.errno or errno.EIO, now)
            return
        if alone:
            # On one machine an attempt can be given the very port it aims at, and meets itself. That happens
            # only where nobody listens.
            self._failed(errno.ECONNREFUSED, now)
            return
        self.state, self._greeting = State.LISTENING, b""
        self._register(selectors.EVENT_READ)

    def _heard(self, now: float) -> None:
        try:
            data = self._require().recv(GREETING_BYTES_MAX + 1 - len(self._greeting))
        except BlockingIOError:
            return
        except OSError as error:
            self._failed(error.errno or errno.EIO, now)
            return
        self._greeting += data
        if data and b"\n" not in self._greeting and len(self._greeting) <= GREETING_BYTES_MAX:
            return
        greeting = Greeting.parse(self._greeting)
        if greeting is None:
            self._problem = "something else listens there" if data else "the connection was closed at once"
        else:
            self._problem = f"node {greeting.node!r} of incarnation {greeting.incarnation!r} listens there"
        self._answered(greeting or NoGreeting.NOTHING_SURE, now)

    def _ended(self, now: float) -> None:
        try:
            data = self._require().recv(1)
            self._problem = "the connection brought what isn't a greeting" if data else "the connection ended"
        except BlockingIOError:
            return
        except OSError as error:
            self._problem = errno.errorcode.get(error.errno or 0, str(error))
        self.lost_at = now
        log.debug("Lost touch with the pulse of node %r: %s", self.peer.node, self._problem)
        self._hang_up()
        if now - self._met_since >= STEADY_S:
            self._attempts = 0
        if self._attempts:
            self._rest(now)
        else:
            self._attempts = 1
            self._begin(now)

    def _failed(self, code: int, now: float) -> None:
        self._problem = errno.errorcode.get(code, str(code))
        # This code answers a connect and nothing else. A reset may come from a listener that lives and has
        # more connections than it can hold.
        refused = code == errno.ECONNREFUSED
        self._answered(NoGreeting.REFUSED if refused else NoGreeting.NOTHING_SURE, now)

    def _answered(self, answer: Greeting | NoGreeting, now: float) -> None:
        finding = judge(self.peer, answer, met=self._met_at is not None)
        if finding is Finding.ALIVE:
            if self._met_at is None:
                self._attempts = 0
            self._met_at, self._met_since = self._target, now
            self.state, self.due = State.HELD, None
            log.debug("Watching the pulse of node %r at %s", self.peer.node, self.peer.address)
            return
        self._hang_up()
        if finding is Finding.DEAD:
            self.close()
            self._on_death(self.peer)
        else:
            self._try_next(now)

    def _rest(self, now: float) -> None:
        self.state = State.RESTING
        self.due = now + min(RETRY_FIRST_S * 2 ** min(self._attempts, 20), RETRY_MAX_S)
        self._attempts += 1
        log.debug("The pulse of node %r is unclear: %s", self.peer.node, self._problem)
        if self._attempts == _WARN_AFTER:
            log.warning(
                "The pulse of node %r can't be reached at %s (%s): its death would be noticed only when its "
                "ZooKeeper session ends",
                self.peer.node,
                self.peer.address,
                self._problem,
            )

    def _register(self, events: int) -> None:
        connection = self._require()
        if connection in self._selector.get_map():
            self._selector.unregister(connection)
        self._selector.register(connection, events, self.ready)

    def _require(self) -> socket.socket:
        if self._socket is None:
            raise RuntimeError(f"no connection in state {self.state}")
        return self._socket

    def _hang_up(self) -> None:
        if self._socket is not None:
            if self._socket in self._selector.get_map():
                self._selector.unregister(self._socket)
            self._socket.close()
            self._socket = None
