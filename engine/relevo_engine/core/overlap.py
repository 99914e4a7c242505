"""Events that a restored state holds already: the log is read from somewhat before its end."""

from __future__ import annotations

from relevo_engine.core.errors import OutOfOrder
from relevo_engine.core.state import State
from relevo_schemas.records import Event


class Overlap:
    """Tells the events of the log that a state holds from those that come after.

    Args:
        state: As it was restored; nothing has been applied to it since.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._next = 0

    def holds(self, event: Event) -> bool:
        """Whether the state holds ``event``, the next one of the log.

        Raises:
            OutOfOrder: It doesn't follow the one before, or isn't the one that the state knows by its number.
        """
        state = self._state
        if self._next and event.seq != self._next:
            raise OutOfOrder(f"seq {self._next}", f"seq {event.seq}")
        if event.seq > state.last_seq:
            return False
        self._next = event.seq + 1
        if event.epoch > state.epoch:
            raise OutOfOrder(f"an epoch up to {state.epoch} at seq {event.seq}", f"epoch {event.epoch}")
        known = (state.epoch, state.last_at, state.last_source)
        if event.seq == state.last_seq and (event.epoch, event.at, event.source) != known:
            raise OutOfOrder(
                f"the event that the snapshot ends with: seq {event.seq}, epoch {known[0]}, at {known[1]}, "
                f"source {known[2]}",
                f"epoch {event.epoch}, at {event.at}, source {event.source}",
            )
        return True
