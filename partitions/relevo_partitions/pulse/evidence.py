"""What the answer of a pulse address says about the process that was there: here death is judged."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from relevo_partitions.pulse.wire import Greeting


@dataclass(frozen=True, slots=True)
class Peer:
    """A process to watch."""

    node: str
    incarnation: str
    """Tells it from other processes of the same node."""
    address: str
    """``host:port`` of its pulse; empty where it has none."""


class NoGreeting(Enum):
    """How an attempt to connect ended without a greeting."""

    REFUSED = auto()
    """The machine is there and says that nobody listens."""
    NOTHING_SURE = auto()
    """Silence, no way there, an end before the greeting, a stranger's bytes, no file left here."""


class Finding(Enum):
    """What is known of a peer."""

    ALIVE = auto()
    DEAD = auto()
    UNCLEAR = auto()


def judge(peer: Peer, answer: Greeting | NoGreeting, *, met: bool) -> Finding:
    """Weigh what was found at the address of ``peer``.

    Args:
        peer: The process in question; no connection to it is left.
        answer: What an attempt to connect led to.
        met: Whether this very process has greeted from this very address before. Without that nothing is
            proof: an address that is mistyped, translated or shut by a firewall refuses just the same.
    """
    if isinstance(answer, Greeting):
        if answer == Greeting(peer.node, peer.incarnation):
            return Finding.ALIVE
        # A later process of the same node. Another node there means an address that leads to several, or one
        # given to somebody else since.
        return Finding.DEAD if met and answer.node == peer.node else Finding.UNCLEAR
    return Finding.DEAD if met and answer is NoGreeting.REFUSED else Finding.UNCLEAR
