"""What the engine answers to many creates, as the job log tells it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from relevo import JobEvent, JobEvents, JobHandle, Outcome
from relevo.cli.refusals import why
from relevo.client.receipts import OFFSET_UNKNOWN
from relevo.client.results import FINISHED_STATES, finish_of
from relevo_schemas.events import CommandRejected, JobCreated, JobFailed, JobIncident

_READ_S: Final = 0.2


class Answer(NamedTuple):
    """What became of one line's job.

    Attributes:
        number: The line.
        key: The job's key.
        trouble: Why it didn't go well; empty where it did.
        there: Whether a job with this key existed, so that none was made.
        outcome: Whether the job was made.
    """

    number: int
    key: str
    trouble: str
    there: bool = False
    outcome: Outcome = Outcome.DONE


class Answers:
    """Matches events with the commands they answer.

    Args:
        events: Reads the log, from before the first command was sent.
        decided_is_enough: Whether a job counts as answered when the engine took it; else when it has ended.
    """

    def __init__(self, events: JobEvents, *, decided_is_enough: bool) -> None:
        self._events = events
        self._decided_is_enough = decided_is_enough
        # By partition and offset of the command; dictionaries keep the order of the lines.
        self._commands: dict[tuple[int, int], tuple[int, str]] = {}
        # By key, where a command's offset isn't known, as after a repeat that Kafka recognised.
        self._unplaced: dict[str, deque[int]] = {}
        self._open: dict[str, list[int]] = {}
        self._there: set[int] = set()
        # By key, of open jobs only.
        self._last: dict[str, str] = {}
        self._left = 0

    @property
    def pending(self) -> int:
        """How many jobs are not answered yet."""
        return self._left

    def expect(self, number: int, handle: JobHandle) -> None:
        """Waits for the answer to this command, too."""
        if handle.offset == OFFSET_UNKNOWN:
            self._unplaced.setdefault(handle.key, deque()).append(number)
        else:
            self._commands[handle.partition, handle.offset] = (number, handle.key)
        self._left += 1

    def read(self) -> Iterator[Answer]:
        """Takes in what the log has, waiting a moment for more, and gives out the answers in it."""
        for event in self._events.read(_READ_S):
            yield from self._decided(event)
            yield from self._ended(event)

    def unanswered(self) -> Iterator[Answer]:
        """Lines and keys of jobs that were not answered; as their trouble, what was heard of each last."""
        unplaced = [(number, key) for key, numbers in self._unplaced.items() for number in numbers]
        for number, key in [*self._commands.values(), *unplaced]:
            yield Answer(number, key, "nothing", outcome=Outcome.UNKNOWN)
        for key, numbers in self._open.items():
            for number in numbers:
                yield Answer(number, key, self._last.get(key, "nothing"))

    def _decided(self, event: JobEvent) -> Iterator[Answer]:
        found = self._commands.pop((event.partition, event.event.source), None) or self._by_key(event)
        if found is None:
            return
        number, key = found
        refusal = event.event if isinstance(event.event, CommandRejected) else None
        if refusal is not None and refusal.reason != "ALREADY_EXISTS":
            trouble = f"refused: {why(refusal.reason, refusal.expected, refusal.found)}"
            yield self._answer(number, key, trouble)._replace(outcome=Outcome.NOT_DONE)
            return
        if refusal is not None:
            self._there.add(number)
        if self._decided_is_enough:
            yield self._answer(number, key, "")
        elif refusal is not None and refusal.found in FINISHED_STATES:
            yield self._answer(number, key, _trouble(refusal.found, ""))
        else:
            self._open.setdefault(key, []).append(number)
            # A job that existed may have become what it is before anything that is read here.
            self._last[key] = f"it was there already, {refusal.found}" if refusal else "it was created"

    def _by_key(self, event: JobEvent) -> tuple[int, str] | None:
        """The command without a known offset that an event answers: the first of its key."""
        match event.event:
            case JobCreated() | CommandRejected(command="CreateJob"):
                numbers = self._unplaced.get(event.key)
            case _:
                return None
        if not numbers:
            return None
        number = numbers.popleft()
        if not numbers:
            del self._unplaced[event.key]
        return number, event.key

    def _ended(self, event: JobEvent) -> Iterator[Answer]:
        result = finish_of(event.event)
        if result is None:
            if event.key in self._open:
                self._last[event.key] = _described(event) or self._last[event.key]
            return
        self._last.pop(result.key, None)
        detail = ": ".join(part for part in (result.code, result.message) if part)
        for number in self._open.pop(result.key, ()):
            yield self._answer(number, result.key, _trouble(result.state, detail))

    def _answer(self, number: int, key: str, trouble: str) -> Answer:
        self._left -= 1
        there = number in self._there
        self._there.discard(number)
        return Answer(number, key, trouble, there)


def _described(event: JobEvent) -> str:
    """What an event about an open job says of why it hasn't ended; empty: nothing."""
    match event.event:
        case JobIncident(cause=cause, message=message):
            return f"an incident ({cause}: {message}), it waits for a person"
        case JobFailed(attempt=attempt, error=error):
            return f"attempt {attempt} failed: {error}"
        case JobCreated() | CommandRejected():
            return ""
        case other:
            return type(other).__name__


def _trouble(state: str, detail: str) -> str:
    return "" if state == "COMPLETED" else f"ended as {state} {detail}".rstrip()
