"""What a partition's owner drives: a deterministic state machine fed by a log. Of jobs it knows nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Incoming(NamedTuple):
    """One record as read from Kafka: of the log in replay, of the commands partition while leading."""

    offset: int
    key: bytes | None
    value: bytes | None


class Write(NamedTuple):
    """One record to be written in the current transaction."""

    topic: str
    partition: int
    key: bytes
    value: bytes


class Heard(NamedTuple):
    """What silence means to a leader: only from whoever it could have heard does it mean anything.

    Times in milliseconds since the Unix epoch, by the leader's clock.
    """

    since: int
    """From then on it has listened without a break."""
    until: int
    """Whatever was sent until then is among the commands that it was given."""


@dataclass(frozen=True, slots=True)
class Term:
    """Who leads from here on."""

    node: str
    incarnation: str


class LogDamaged(Exception):  # noqa: N818 - named for what happened
    """The log can't be replayed: a hole, a repeat, an unreadable record, an epoch that goes back.

    The message names partition, offset, what was expected and what was found. Nobody may lead on such a log.
    """


class SnapshotUnfit(Exception):  # noqa: N818 - named for what happened
    """A snapshot can't be used: incomplete, damaged, of another format, or of another log.

    The message says what was expected and what was found. Whoever reads it takes an older one, or the log.
    """


@dataclass(frozen=True, slots=True)
class SnapshotFacts:
    """What a copy of a machine's state says of itself, once it was read to its end."""

    seq: int
    """Number of the last event in it."""
    epoch: int
    """Its epoch."""
    position: int
    """`StateMachine.position` of the copy."""
    count: int
    """Items (open jobs) in it."""
    state_hash: str
    """`StateMachine.state_hash` of the copy, made anew from what was read."""


class Frozen(Protocol):
    """A consistent copy of a machine's state, taken piece by piece while the machine goes on.

    A part of the state that is about to change is copied first, so that pieces taken later still show it as
    it was. One at a time per machine, on the machine's thread.
    """

    @property
    def seq(self) -> int:
        """Number of the last event that the copy holds."""

    @property
    def epoch(self) -> int:
        """Its epoch."""

    @property
    def position(self) -> int:
        """`StateMachine.position` of the copy."""

    @property
    def count(self) -> int:
        """Items (open jobs) in the copy."""

    def next(self, items_max: int) -> bytes | None:
        """The next piece of the encoded copy, of about ``items_max`` items; None once it is complete."""

    def state_hash(self) -> str:
        """`StateMachine.state_hash` of the copy; known once it is complete.

        Raises:
            RuntimeError: It isn't complete.
        """

    def cancel(self) -> None:
        """Give the copy up, if it isn't complete: the machine need not keep anything for it any more."""


class StateMachine(Protocol):
    """One partition's state. Used by one thread at a time; made anew for every term.

    A call that returns writes has applied their events already. If the transaction with them doesn't commit,
    the machine is thrown away and another one is rebuilt from the log.
    """

    @property
    def position(self) -> int:
        """Offset of the first command that no event of the log speaks of."""

    @property
    def epoch(self) -> int:
        """Number of the last term in the log, 0 before the first."""

    @property
    def last_seq(self) -> int:
        """Number of the last event applied, 0 before the first."""

    @property
    def last_at(self) -> int:
        """Time of the last event in milliseconds since the Unix epoch; the leader's clock starts there."""

    @property
    def count(self) -> int:
        """Items (open jobs) that the state holds."""

    def state_hash(self) -> str:
        """A digest of all that the events determine: the same for live, replayed and restored state."""

    def freeze(self) -> Frozen:
        """Begin a copy of the state as it is now. Ends with its last piece, or by `Frozen.cancel`."""

    def restore(self, pieces: Iterable[bytes]) -> None:
        """Fill an empty machine from the pieces of a copy. Afterwards `replay` goes on from there.

        The first records replayed may be older than the copy: events that it holds already are left out.

        Raises:
            SnapshotUnfit: The pieces aren't a complete copy. The machine must be thrown away.
        """

    def examine(self, pieces: Iterable[bytes]) -> SnapshotFacts:
        """Read a copy to its end without keeping it; the machine stays as it is. From any thread.

        Raises:
            SnapshotUnfit: The pieces aren't a complete copy.
        """

    def reread(self) -> None:
        """The next records replayed may be older, as after `restore`: those it holds are left out."""

    def replay(self, records: Sequence[Incoming]) -> None:
        """Apply committed records of the log, in order and without a gap; barriers are left out.

        Raises:
            LogDamaged: A record doesn't follow the ones before.
        """

    def lead(self, term: Term, now: int) -> Sequence[Write]:
        """Begin a term, once, after replay: the writes hold the announcement, of the next epoch."""

    def step(self, commands: Sequence[Incoming], now: int, heard: Heard | None = None) -> Sequence[Write]:
        """Decide ``commands`` in order, then what time and free capacity allow at ``now``; bounded.

        What ends by silence ends by ``heard``, None where everything sent before ``now`` was heard.

        Bad input becomes a refusal among the writes, never an exception.
        """

    def silent_at(self) -> int | None:
        """When the next of those who must give signs of life counts as silent; None: nobody must."""

    def wait_ms(self, now: int) -> int | None:
        """Milliseconds until `step` has something to do without commands; 0: at once; None: never."""


MachineFactory = Callable[[int], StateMachine]
"""Makes an empty machine for a partition."""
