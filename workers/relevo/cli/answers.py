"""What the engine answers to many creates, as the job log tells it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from relevo import JobEvent, JobEvents, JobHandle, JobResult, Outcome
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
        partition: The job's partition.
        trouble: Why it didn't go well; empty where it did.
        outcome: Whether the job was made.
        created: Whether this line made the job; False: one with its key existed. None: no job is known.
        state: State of the job that was found, where one existed.
        result: How the job ended, where that was waited for and heard.
    """

    number: int
    key: str
    partition: int
    trouble: str = ""
    outcome: Outcome = Outcome.DONE
    created: bool | None = None
    state: str | None = None
    result: JobResult | None = None


class _Line(NamedTuple):
    """A command that waits for its answer; the first fields of an `Answer`."""

    number: int
    key: str
    partition: int


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
        self._commands: dict[tuple[int, int], _Line] = {}
        # By key, where a command's offset isn't known, as after a repeat that Kafka recognised.
        self._unplaced: dict[str, deque[_Line]] = {}
        # By key, the answers as far as they are known.
        self._open: dict[str, list[Answer]] = {}
        # By key, of open jobs only.
        self._last: dict[str, str] = {}
        self._left = 0

    @property
    def pending(self) -> int:
        """How many jobs are not answered yet."""
        return self._left

    def expect(self, number: int, handle: JobHandle) -> None:
        """Waits for the answer to this command, too."""
        line = _Line(number, handle.key, handle.partition)
        if handle.offset == OFFSET_UNKNOWN:
            self._unplaced.setdefault(handle.key, deque()).append(line)
        else:
            self._commands[handle.partition, handle.offset] = line
        self._left += 1

    def read(self) -> Iterator[Answer]:
        """Takes in what the log has, waiting a moment for more, and gives out the answers in it."""
        for event in self._events.read(_READ_S):
            for answer in (*self._decided(event), *self._ended(event)):
                self._left -= 1
                yield answer

    def unanswered(self) -> Iterator[Answer]:
        """What is known of jobs that were not answered; as their trouble, what was heard of each last."""
        unplaced = [line for lines in self._unplaced.values() for line in lines]
        for line in [*self._commands.values(), *unplaced]:
            yield Answer(*line, "nothing", Outcome.UNKNOWN)
        for key, answers in self._open.items():
            for answer in answers:
                yield answer._replace(trouble=self._last.get(key, "nothing"))

    def _decided(self, event: JobEvent) -> Iterator[Answer]:
        line = self._commands.pop((event.partition, event.event.source), None) or self._by_key(event)
        if line is None:
            return
        refusal = event.event if isinstance(event.event, CommandRejected) else None
        if refusal is not None and refusal.reason != "ALREADY_EXISTS":
            trouble = f"refused: {why(refusal.reason, refusal.expected, refusal.found)}"
            yield Answer(*line, trouble, Outcome.NOT_DONE)
            return
        answer = Answer(*line, created=refusal is None, state=refusal.found if refusal else None)
        if self._decided_is_enough:
            yield answer
        elif refusal is not None and refusal.found in FINISHED_STATES:
            yield _with_result(answer, JobResult(line.key, refusal.found))
        else:
            self._open.setdefault(line.key, []).append(answer)
            # A job that existed may have become what it is before anything that is read here.
            self._last[line.key] = f"it was there already, {refusal.found}" if refusal else "it was created"

    def _by_key(self, event: JobEvent) -> _Line | None:
        """The command without a known offset that an event answers: the first of its key."""
        match event.event:
            case JobCreated() | CommandRejected(command="CreateJob"):
                lines = self._unplaced.get(event.key)
            case _:
                return None
        if not lines:
            return None
        line = lines.popleft()
        if not lines:
            del self._unplaced[event.key]
        return line

    def _ended(self, event: JobEvent) -> Iterator[Answer]:
        result = finish_of(event.event)
        if result is None:
            if event.key in self._open:
                self._last[event.key] = _described(event) or self._last[event.key]
            return
        self._last.pop(result.key, None)
        for answer in self._open.pop(result.key, ()):
            yield _with_result(answer, result)


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


def _with_result(answer: Answer, result: JobResult) -> Answer:
    detail = ": ".join(part for part in (result.code, result.message) if part)
    trouble = "" if result.state == "COMPLETED" else f"ended as {result.state} {detail}".rstrip()
    return answer._replace(trouble=trouble, result=result)
