"""Where a term stands, for others to look at."""

from __future__ import annotations

from dataclasses import dataclass

from relevo_partitions.statemachine import StateMachine


@dataclass(slots=True)
class Progress:
    """Written by the term's thread, read by any."""

    epoch: int = 0
    position: int = 0
    end: int = -1
    """End of the commands partition as last heard, -1 where unknown."""
    led: bool = False
    """Whether the term ever got as far as leading."""

    def note(self, machine: StateMachine) -> None:
        """Take in where the machine stands."""
        self.epoch = machine.epoch
        self.position = machine.position
