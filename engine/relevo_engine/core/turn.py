"""`Turn`: what the decision on one command or one moment may look at."""

from __future__ import annotations

from relevo_engine.core.channels import Channels
from relevo_engine.core.checks import Fault, cut
from relevo_engine.core.readers import Readers
from relevo_engine.core.rules import Rules
from relevo_engine.core.state import State
from relevo_engine.core.timers import Leases
from relevo_schemas.events import CommandRejected
from relevo_schemas.records import Record


class Turn:
    """One machine's view for decisions; `at` and `source` are set anew for each.

    Attributes:
        state: Read only.
        rules: The partition's rules.
        channels: Where activations can go.
        leases: The leader's memory of leases.
        readers: Its memory of who reads which slot.
        heard_since: From then on it has listened without a break.
        heard_until: Whatever was sent until then has been decided on; None: everything.
        at: Time of the decision; never before the last event.
        source: Offset of the command, -1 where time decides.
    """

    __slots__ = (
        "at", "channels", "heard_since", "heard_until", "leases", "readers", "rules", "source", "state",
    )  # fmt: skip

    def __init__(self, state: State, rules: Rules, channels: Channels, leases: Leases) -> None:
        self.state = state
        self.rules = rules
        self.channels = channels
        self.leases = leases
        self.readers = Readers()
        self.heard_since = 0
        self.heard_until: int | None = None
        self.at = 0
        self.source = -1

    def begin(self, now: int, source: int) -> None:
        """Turn to the next decision."""
        last_at = self.state.last_at
        self.at = now if now > last_at else last_at
        self.source = source

    def head(self, nth: int = 0) -> tuple[int, int, int, int]:
        """seq, epoch, at and source of the ``nth`` event of this turn."""
        state = self.state
        return state.last_seq + 1 + nth, state.epoch, self.at, self.source

    def refuse(self, command: Record, key: str, fault: Fault, nth: int = 0) -> CommandRejected:
        """The event that says why ``command`` has no effect."""
        text = cut(key, self.rules.key_bytes_max)
        return CommandRejected(
            *self.head(nth), text, type(command).__name__, str(fault.reason), fault.expected, fault.found
        )
