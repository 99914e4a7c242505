"""The pulse: nodes notice a killed one at once, by the connections that its kernel closes.

Every node listens on its pulse port, and keeps one idle connection to the pulse port of each other live
node. Nothing is sent over it but one line at the beginning, in which the listener says which node it is and
of which incarnation. When a process is killed, its kernel closes its sockets.

**What proves a death.** All of these together: this very incarnation has greeted from this very address
before; the connection to it has ended, whether closed or reset; and a new attempt to connect to that address
was refused, or was greeted by a later incarnation of the same node. A node listens from before it registers
until it has left, so a refusal means that the process is gone.

**What proves nothing.** A time-out, a host without a route, a connection that ends and is accepted anew (a
firewall that forgets connections), an accepted connection without a greeting (a frozen process, whose kernel
goes on accepting; one that is dying and hasn't closed everything; one without a file left; a stranger at the
port), a listener with more connections waiting than it can hold, another node at the address, a reset before
the greeting, a want of files or ports on this side. These are tried again, after 2 ms at first and every 5 s
in the end, for as long as the peer is on the list. A refusal by an address where the incarnation has never
been met proves nothing either, though a registered node always listens: an address may be mistyped or
translated, or a firewall may refuse in its place. A healthy node with such an address loses nothing but the
early notice of its death.

**What comes later, by the end of the ZooKeeper session.** A freeze, a cut network, a host that lost its
power, a process that is killed before it was met, one whose sockets are held by a forked child, one that is
writing a core dump. The kernel takes down a process's memory before its files: with gigabytes of it the
connections end some tenths of a second after the kill.

**When the proof is wrong.** Something between the nodes can end a connection and refuse the next while the
process lives: a proxy that dies, a firewall that begins to reject, an address shared by several nodes.
Whoever hears of a death may therefore take no more from it than to look again and to let others claim. The
node loses its partitions, as if it had been asked to hand them over, and Kafka's fence keeps the log right.
Each pulse reports an incarnation once at most, so an address that lies costs a node its partitions once per
observer, not for ever. Advertise an address of the process itself, not of a load balancer.

A node that stops in order closes its pulse as its last act, and others may take that for the death it is.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterable
from typing import Final

from relevo_partitions.fork import ForkGuard
from relevo_partitions.pulse.evidence import Peer
from relevo_partitions.pulse.listener import PulseUnavailable
from relevo_partitions.pulse.watch import PulseWatch
from relevo_partitions.pulse.wire import Greeting, join_address, split_address

__all__ = ["Peer", "Pulse", "PulseUnavailable"]

log: Final = logging.getLogger(__name__)

STOP_LIMIT_S: Final = 2.0
_WILDCARDS: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared with, not bound to


class Pulse:
    """One listener and one watcher thread for all peers, asleep while nothing happens.

    Methods may be called from any thread. They don't survive a fork.

    Args:
        node: Id of this node.
        incarnation: Of this process.
        host: Address or name to listen on; empty for all of this machine's.
        port: Port to listen on; 0 for a free one.
        advertise: ``host:port`` that others reach the listener at; empty for where it listens.
        on_death: Called with node and incarnation of a process proven dead, and with the moment that the
            connection to it ended, by the monotonic clock; at most once for each, on the pulse's thread: it
            should do no more than to hand that on.

    Raises:
        ValueError: ``node``, ``incarnation`` or ``advertise`` can't be used.
    """

    def __init__(
        self,
        node: str,
        incarnation: str,
        *,
        host: str,
        port: int = 0,
        advertise: str = "",
        on_death: Callable[[str, str, float], None],
    ) -> None:
        self._greeting = Greeting(node, incarnation)
        self._greeting.encode()
        if advertise:
            split_address(advertise)
        self._host, self._port, self._address = host, port, advertise
        self._on_death = on_death
        self._fork = ForkGuard("a Pulse")
        self._lock = threading.Lock()
        self._wanted: frozenset[Peer] = frozenset()
        self._watch: PulseWatch | None = None
        self._thread: threading.Thread | None = None
        self._stopping = False

    @property
    def address(self) -> str:
        """``host:port`` that others reach the listener at.

        Raises:
            RuntimeError: It isn't known before `start`.
        """
        if not self._address:
            raise RuntimeError("the address of a pulse is known once it was started")
        return self._address

    def start(self) -> None:
        """Listen. May be called once, and before this node registers.

        Raises:
            PulseUnavailable: The address can't be listened on.
        """
        self._fork.check()
        if self._watch is not None or self._stopping:
            raise RuntimeError("a pulse can be started once")
        watch = PulseWatch(self._greeting, self._on_death)
        try:
            found, port = watch.listener.open(self._host, self._port)
        except PulseUnavailable:
            watch.close()
            raise
        if not self._address:
            # A wildcard tells others nothing. A name is kept: it may mean this machine elsewhere too.
            host = socket.gethostname() if found in _WILDCARDS else self._host
            self._address = join_address(host, port)
        with self._lock:
            self._watch = watch
            watch.want(self._wanted)
        self._thread = threading.Thread(target=self._run, args=(watch,), name="relevo-pulse", daemon=True)
        self._thread.start()

    def watch(self, peers: Iterable[Peer]) -> None:
        """Watch these and no others. Returns at once.

        Args:
            peers: All live nodes; this one itself and any without an address are left out.
        """
        self._fork.check()
        wanted = frozenset(peer for peer in peers if peer.node != self._greeting.node and peer.address)
        with self._lock:
            self._wanted = wanted
            if self._watch is not None:
                self._watch.want(wanted)

    def stop(self) -> None:
        """Close everything, within 2 s; others take it for this process's death. Twice does no harm.

        To be called when this node has given up its partitions.
        """
        self._fork.check()
        with self._lock:
            self._stopping = True
            watch = self._watch
        if watch is None or self._thread is None:
            return
        watch.wake()
        self._thread.join(STOP_LIMIT_S)
        if self._thread.is_alive():
            log.warning("The pulse didn't stop in %g s: its callback doesn't return", STOP_LIMIT_S)
            return
        watch.close()

    def _run(self, watch: PulseWatch) -> None:
        try:
            while not self._stopping:
                watch.turn()
        except Exception:
            # The sockets stay open on purpose: closed, they would tell everybody that this process is dead.
            log.exception("The pulse failed: deaths are noticed by the end of ZooKeeper sessions only")
        else:
            watch.close()
