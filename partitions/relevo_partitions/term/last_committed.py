"""What a node remembers of its terms in one partition: a log that is shorter than that has lost its tail."""

from __future__ import annotations

from relevo_partitions.statemachine import StateMachine


class LastCommitted:
    """The last event that Kafka has acknowledged to a term of this process. Used by one thread at a time.

    Brokers that lost acknowledged records, by an election of one that had fallen behind or by a disk, say so
    only to who had read that far. A leader reads nothing of its own log, and whoever reads it from the
    beginning finds nothing amiss in what is left.
    """

    def __init__(self) -> None:
        self.seq = 0
        """Its number; 0 where there was none."""

    def note(self, seq: int) -> None:
        """A transaction that ended with event ``seq`` has committed."""
        self.seq = seq

    def lost(self, machine: StateMachine) -> str | None:
        """What ``machine``, made of the whole log, lacks, for people; None where it lacks nothing."""
        if machine.last_seq >= self.seq:
            return None
        return (
            f"the log ends with event {machine.last_seq}, but this node has led up to event {self.seq}, and "
            "Kafka had acknowledged all of them: brokers have lost the rest. Commands from "
            f"{machine.position} on are decided anew; who has read the lost events has read what isn't so"
        )
