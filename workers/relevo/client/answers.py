"""Waiting for the engine's answers on the log: what it decided, and how a job ended."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Final

from relevo.client.receipts import OFFSET_UNKNOWN
from relevo.client.results import FINISHED_STATES, JobHandle, JobResult, finish_of
from relevo.errors import Rejected, RelevoError
from relevo_schemas import events
from relevo_schemas.records import Event

_ANSWERS: Final[Mapping[str, type[Event]]] = {
    "CreateJob": events.JobCreated,
    "CancelJob": events.JobCancelled,
    "RetryJob": events.JobRetried,
    "UpdateJob": events.JobUpdated,
}
"""What each command of a client leads to where it isn't refused."""


class Found:
    """What the engine decided."""

    __slots__ = ("at", "created", "state")

    def __init__(self, at: int, created: bool | None = None, state: str | None = None) -> None:
        self.at = at
        self.created = created
        self.state = state


class Decision:
    """Waits for the first event that names our command; it may come before we know the command's offset."""

    def __init__(self, key: str, kind: str) -> None:
        self.future: Future[Found] = Future()
        self.future.set_running_or_notify_cancel()
        self._key = key
        self._kind = kind
        self._lock = threading.Lock()
        self._offset: int | None = None
        self._early: deque[tuple[int, Event]] = deque(maxlen=256)

    def sent_as(self, offset: int) -> None:
        """The command stands at ``offset``; if that is unknown, the first answer to its kind counts."""
        with self._lock:
            self._offset = offset
            for position, event in self._early:
                self._look(position, event)
            self._early.clear()

    def heard(self, position: int, event: Event) -> None:
        """An event about the job."""
        with self._lock:
            if self._offset is None:
                self._early.append((position, event))
            else:
                self._look(position, event)

    def failed(self, error: RelevoError) -> None:
        """The log can't be followed on."""
        with self._lock:
            if not self.future.done():
                self.future.set_exception(error)

    def _is_ours(self, event: Event) -> bool:
        if self._offset != OFFSET_UNKNOWN:
            return event.source == self._offset
        refused = isinstance(event, events.CommandRejected) and event.command == self._kind
        return refused or isinstance(event, _ANSWERS.get(self._kind, ()))

    def _look(self, position: int, event: Event) -> None:
        if self.future.done() or not self._is_ours(event):
            return
        match event:
            case events.CommandRejected(reason="ALREADY_EXISTS"):
                self.future.set_result(Found(position, created=False, state=event.found))
            case events.CommandRejected():
                self.future.set_exception(
                    Rejected(event.key or self._key, self._kind, event.reason, event.expected, event.found)
                )
            case events.JobCreated():
                self.future.set_result(Found(position, created=True))
            case _:
                self.future.set_result(Found(position))


class Ending:
    """Waits for the event that ends a job."""

    def __init__(self, handle: JobHandle) -> None:
        self.future: Future[JobResult] = Future()
        self.future.set_running_or_notify_cancel()
        self.last = "nothing"
        self._handle = handle
        self._begun = False

    def heard(self, position: int, event: Event) -> None:
        """An event about the job, from the follower's thread only."""
        if self.future.done() or not self._is_of_ours(event):
            return
        self.last = _describe(event)
        result = finish_of(event)
        if result is not None:
            self.future.set_result(result)
        elif isinstance(event, events.CommandRejected) and event.source == self._handle.offset:
            self._refused(event)

    def _is_of_ours(self, event: Event) -> bool:
        """Whether it is not of an earlier job of the key, which may be used again once that one is forgotten.

        Commands of an earlier one stand before the one that made ours, and an event names its command.
        """
        if self._handle.offset == OFFSET_UNKNOWN:
            return True
        self._begun = self._begun or event.source >= self._handle.offset
        return self._begun and (event.source < 0 or event.source >= self._handle.offset)

    def _refused(self, event: events.CommandRejected) -> None:
        if event.reason != "ALREADY_EXISTS":
            self.future.set_exception(
                Rejected(self._handle.key, event.command, event.reason, event.expected, event.found)
            )
        elif event.found in FINISHED_STATES:
            # How it ended stands earlier in the log, before anything this handle knows of.
            self.future.set_result(JobResult(self._handle.key, event.found))

    def failed(self, error: RelevoError) -> None:
        """The log can't be followed on."""
        if not self.future.done():
            self.future.set_exception(error)


def _describe(event: Event) -> str:
    match event:
        case events.JobIncident():
            return f"an incident ({event.cause}: {event.message}), it waits for a person"
        case events.JobFailed():
            return f"attempt {event.attempt} failed: {event.error}"
        case _:
            return type(event).__name__
