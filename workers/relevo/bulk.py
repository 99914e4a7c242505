"""Many creates at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, Message

from relevo.core import Core
from relevo.errors import InvalidRequest, RelevoError
from relevo.receipts import Receipt, encode_command
from relevo.requests import NewJob
from relevo.results import CreateResult, JobHandle
from relevo.sender import delivery_error
from relevo_schemas import commands

IN_FLIGHT_MAX: Final = 5_000


class Bulk:
    """Many creates under way at once, answered in their order.

    Bounded: `offer` takes no more than it has room for.

    Used by one thread; delivery reports come from the sender's.
    """

    def __init__(self, core: Core, in_flight: int) -> None:
        if in_flight < 1:
            raise InvalidRequest(f"in_flight must be at least 1, not {in_flight!r}")
        core.sender.check()
        self._core = core
        self._in_flight = in_flight
        self._slots: deque[_Slot] = deque()
        self._index = 0

    @property
    def full(self) -> bool:
        """Whether an answer has to come before the next can be offered."""
        return len(self._slots) >= self._in_flight

    def offer(self, job: NewJob | Mapping[str, Any]) -> bool:
        """Send one more; False: the send queue is full, try again when there is room."""
        slot = _Slot(self._index)
        try:
            spec = _new_job(job).spec()
            slot.key = spec.key
            value = encode_command(commands.CreateJob(spec))
            if not self._core.sender.try_send(self._core.topic, spec.key.encode(), value, slot.reported):
                return False
        except RelevoError as error:
            slot.error = error
            slot.ready = True
        self._index += 1
        self._slots.append(slot)
        return True

    def answers(self) -> list[CreateResult]:
        """What has been answered, in order, up to the first that hasn't."""
        found = []
        while self._slots and self._slots[0].ready:
            found.append(self._slots.popleft().result(self._core.topic))
        return found

    def pending(self) -> bool:
        """Whether answers are still to come."""
        return bool(self._slots)


class _Slot:
    __slots__ = ("_report", "error", "index", "key", "ready")

    def __init__(self, index: int) -> None:
        self.index = index
        self.key: str | None = None
        self.error: RelevoError | None = None
        self.ready = False
        self._report: tuple[KafkaError | None, Message] | None = None

    def reported(self, error: KafkaError | None, message: Message) -> None:
        """From the sender's thread."""
        self._report = (error, message)
        self.ready = True

    def result(self, topic: str) -> CreateResult:
        """What became of it."""
        if self._report is None or self.key is None:
            return CreateResult(self.index, self.key, error=self.error)
        error, message = self._report
        if error is not None:
            return CreateResult(self.index, self.key, error=delivery_error(error, topic))
        receipt = Receipt(message)
        return CreateResult(
            self.index, self.key, handle=JobHandle(self.key, receipt.partition, receipt.offset, receipt.at)
        )


def _new_job(job: NewJob | Mapping[str, Any]) -> NewJob:
    if isinstance(job, NewJob):
        return job
    try:
        return NewJob(**job)
    except TypeError as error:
        raise InvalidRequest(f"not a job: {str(error).replace('NewJob.__init__() ', '')}") from error
