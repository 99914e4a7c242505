"""Many creates at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, Message

from relevo.client.core import Core
from relevo.client.many import check_in_flight
from relevo.client.receipts import Receipt
from relevo.client.requests import NewJob
from relevo.client.results import BulkResult, JobHandle
from relevo.errors import InvalidRequest, OutcomeUnknown, RelevoError
from relevo.sender import Sender

IN_FLIGHT_MAX: Final = 5_000


class Bulk:
    """Many creates under way at once, answered in their order.

    Bounded: `offer` takes no more than it has room for.

    Used by one thread; delivery reports come from the sender's.
    """

    def __init__(self, core: Core, in_flight: int) -> None:
        core.sender.check()
        self._core = core
        self._in_flight = check_in_flight(in_flight)
        self._slots: deque[_Slot] = deque()
        self._index = 0

    def offer(self, job: NewJob | Mapping[str, Any]) -> bool:
        """Send one more; False: no room, neither here nor in the send queue, so try again after an answer."""
        if len(self._slots) >= self._in_flight:
            return False
        slot = _Slot(self._index)
        core = self._core
        try:
            core.sender.check()
            slot.key, value = core.creation(_new_job(job))
            if not core.sender.try_send(core.topic, slot.key.encode(), value, slot.reported):
                return False
        except RelevoError as error:
            slot.error = error
            slot.ready = True
        self._index += 1
        self._slots.append(slot)
        return True

    def answers(self) -> list[BulkResult]:
        """What has been answered, in order, up to the first that hasn't."""
        found = []
        while self._slots and self._slots[0].ready:
            found.append(self._slots.popleft().result(self._core.sender))
        return found

    def give_up(self) -> list[BulkResult]:
        """What is known of all the others, in order: of most, that they may still get to Kafka."""
        left, self._slots = self._slots, deque()
        return [slot.result(self._core.sender) for slot in left]

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

    def result(self, sender: Sender) -> BulkResult:
        """What became of it, as far as it is known by now."""
        if self.error is not None:
            return BulkResult(self.index, self.key, error=self.error)
        if self._report is None or self.key is None:
            unknown = OutcomeUnknown(
                f"no acknowledgement from Kafka for job {self.key!r} in time. It may be there, or may still "
                f"get there: send it again with the same key{sender.last_error}"
            )
            return BulkResult(self.index, self.key, error=unknown)
        error, message = self._report
        if error is not None:
            return BulkResult(self.index, self.key, error=sender.failure(error, message))
        receipt = Receipt(message)
        return BulkResult(
            self.index, self.key, handle=JobHandle(self.key, receipt.partition, receipt.offset, receipt.at)
        )


def _new_job(job: NewJob | Mapping[str, Any]) -> NewJob:
    if isinstance(job, NewJob):
        return job
    try:
        return NewJob(**job)
    except TypeError as error:
        raise InvalidRequest(f"not a job: {str(error).replace('NewJob.__init__() ', '')}") from error
