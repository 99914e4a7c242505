"""The pulse's loop: one selector for the listener and for all watched processes."""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from relevo_partitions.pulse.contact import Contact
from relevo_partitions.pulse.evidence import Peer
from relevo_partitions.pulse.listener import PulseListener
from relevo_partitions.pulse.lookup import Lookups
from relevo_partitions.pulse.wire import Greeting

log: Final = logging.getLogger(__name__)

PEERS_MAX: Final = 512
_REPORTED_MAX: Final = 1_024


class PulseWatch:
    """`want` and `wake` may be called from any thread, everything else from one at a time.

    Args:
        greeting: Of this process.
        on_death: Called once for each process proven dead, with its node, its incarnation, and when the
            connection to it ended, by the monotonic clock.
    """

    def __init__(self, greeting: Greeting, on_death: Callable[[str, str, float], None]) -> None:
        self._on_death = on_death
        self._selector = selectors.DefaultSelector()
        self.listener = PulseListener(greeting, self._selector)
        self._lookups = Lookups(self.wake)
        self._contacts: dict[Peer, Contact] = {}
        self._unusable: set[Peer] = set()
        self._reported: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._lock = threading.Lock()
        self._wanted: frozenset[Peer] | None = None
        self._closed = False
        self._wake_in, self._wake_out = socket.socketpair()
        for end in (self._wake_in, self._wake_out):
            end.setblocking(False)
        self._selector.register(self._wake_in, selectors.EVENT_READ, self._woken)

    def want(self, peers: frozenset[Peer]) -> None:
        """Watch these and no others, from the next turn on."""
        with self._lock:
            self._wanted = peers
        self.wake()

    def wake(self) -> None:
        """Let the turn end that is waiting, or the next one at once."""
        with self._lock:
            if not self._closed:
                with contextlib.suppress(BlockingIOError):  # full: it will wake up all the same
                    self._wake_out.send(b"!")

    def turn(self) -> None:
        """Do what is due, wait until something happens, and take it in."""
        self._follow()
        now = time.monotonic()
        self.listener.resume(now)
        for who, targets in self._lookups.finished():
            if isinstance(who, Contact):
                who.looked_up(targets, now)
        for contact in list(self._contacts.values()):
            if contact.due is not None and contact.due <= now:
                contact.act(now)
        times = [contact.due for contact in self._contacts.values() if contact.due is not None]
        if self.listener.due is not None:
            times.append(self.listener.due)
        happened = self._selector.select(max(0.0, min(times) - time.monotonic()) if times else None)
        now = time.monotonic()
        for key, _ in happened:
            # What an earlier one of these closed isn't in the map any more.
            if self._selector.get_map().get(key.fd) is key:
                key.data(now)

    def close(self) -> None:
        """Close all sockets. Twice does no harm."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._wake_out.close()
        self.listener.close()
        for contact in self._contacts.values():
            contact.close()
        self._contacts.clear()
        self._selector.close()
        self._wake_in.close()

    def _follow(self) -> None:
        """Take over the newest list, if there is one."""
        with self._lock:
            wanted, self._wanted = self._wanted, None
        if wanted is None:
            return
        for peer in [peer for peer in self._contacts if peer not in wanted]:
            self._contacts.pop(peer).close()
        self._unusable &= wanted
        for peer in sorted(wanted - self._contacts.keys() - self._unusable, key=lambda peer: peer.node):
            if (peer.node, peer.incarnation) in self._reported:
                continue
            if len(self._contacts) >= PEERS_MAX:
                log.warning("The pulse watches %d nodes and no more: not %r", PEERS_MAX, peer.node)
                break
            self._meet(peer)

    def _meet(self, peer: Peer) -> None:
        try:
            self._contacts[peer] = Contact(peer, self._selector, self._lookups, self._died)
        except ValueError as error:
            self._unusable.add(peer)
            log.warning("The pulse of node %r can't be watched: %s", peer.node, error)

    def _died(self, peer: Peer) -> None:
        contact = self._contacts.pop(peer, None)
        who = (peer.node, peer.incarnation)
        if who in self._reported:
            return
        self._reported[who] = None
        if len(self._reported) > _REPORTED_MAX:
            self._reported.popitem(last=False)
        log.info("Node %r is dead: its connection ended and it is gone from %s", peer.node, peer.address)
        try:
            self._on_death(*who, contact.lost_at if contact is not None else time.monotonic())
        except Exception:
            log.exception("Telling of the death of node %r failed", peer.node)

    def _woken(self, _: float) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake_in.recv(4_096)
