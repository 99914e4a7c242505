"""What the engine answers to many creates, as the job log tells it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from relevo import JobEvent, JobEvents, JobHandle
from relevo.results import FINISHED_STATES, finish_of
from relevo_schemas.events import CommandRejected

_READ_S: Final = 0.2


class Answer(NamedTuple):
    """What became of one line's job.

    Attributes:
        number: The line.
        key: The job's key.
        trouble: Why it didn't go well; empty where it did.
    """

    number: int
    key: str
    trouble: str


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
        self._open: dict[str, list[int]] = {}
        self._left = 0

    @property
    def pending(self) -> int:
        """How many jobs are not answered yet."""
        return self._left

    def expect(self, number: int, handle: JobHandle) -> None:
        """Waits for the answer to this command, too."""
        self._commands[handle.partition, handle.offset] = (number, handle.key)
        self._left += 1

    def read(self) -> Iterator[Answer]:
        """Takes in what the log has, waiting a moment for more, and gives out the answers in it."""
        for event in self._events.read(_READ_S):
            yield from self._decided(event)
            yield from self._ended(event)

    def unanswered(self) -> Iterator[tuple[int, str]]:
        """Lines and keys of jobs of which nothing more was heard."""
        yield from self._commands.values()
        for key, numbers in self._open.items():
            for number in numbers:
                yield number, key

    def _decided(self, event: JobEvent) -> Iterator[Answer]:
        found = self._commands.pop((event.partition, event.event.source), None)
        if found is None:
            return
        number, key = found
        refusal = event.event if isinstance(event.event, CommandRejected) else None
        if refusal is not None and refusal.reason != "ALREADY_EXISTS":
            trouble = f"refused, {refusal.reason}: expected {refusal.expected}, found {refusal.found}"
            yield self._answer(number, key, trouble)
        elif self._decided_is_enough:
            yield self._answer(number, key, "")
        elif refusal is not None and refusal.found in FINISHED_STATES:
            yield self._answer(number, key, _trouble(refusal.found, ""))
        else:
            self._open.setdefault(key, []).append(number)

    def _ended(self, event: JobEvent) -> Iterator[Answer]:
        result = finish_of(event.event)
        if result is None:
            return
        detail = ": ".join(part for part in (result.code, result.message) if part)
        for number in self._open.pop(result.key, ()):
            yield self._answer(number, result.key, _trouble(result.state, detail))

    def _answer(self, number: int, key: str, trouble: str) -> Answer:
        self._left -= 1
        return Answer(number, key, trouble)


def _trouble(state: str, detail: str) -> str:
    return "" if state == "COMPLETED" else f"ended as {state} {detail}".rstrip()
