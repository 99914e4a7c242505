"""What a test wants to go wrong, and where."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final, Literal, get_args

from relevo.errors import InvalidRequest

Step = Literal["read", "claim", "start", "effect", "done", "complete", "commit"]
STEPS: Final[tuple[Step, ...]] = get_args(Step)
"""A worker's seven steps for an activation, in order: it is read; claimed in the dedup store; started and
reported as running; its handler has returned; marked as done; its completion is acknowledged by Kafka; its
offset is committed."""

Action = Literal["die", "freeze"]
FREEZABLE: Final[tuple[Step, ...]] = ("start", "effect")


class WorkerDied(BaseException):
    """Raise it inside a handler, or in what it calls, to let the worker process die right there.

    A fake payment provider that raises it after it has noted the payment is the crash between an effect and
    everything that follows it.
    """


class ProcessEnded(BaseException):
    """Leaves the worker's own code at the step where its process dies."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that happens to the next worker that gets to a step."""

    step: Step
    action: Action


class Faults:
    """What is planned. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._planned: list[Fault] = []
        self.happened: list[Fault] = []
        #: Completions that Kafka will lose after it has acknowledged them.
        self.completions_to_lose = 0
        #: The dedup store gives no answer before this time, in virtual seconds.
        self.store_silent_until = 0.0

    @property
    def planned(self) -> tuple[Fault, ...]:
        """What has not happened yet."""
        with self._lock:
            return tuple(self._planned)

    def plan(self, step: str, action: Action, allowed: tuple[Step, ...] = STEPS) -> None:
        """Let it happen to the next worker that gets to ``step``.

        Raises:
            InvalidRequest: There is no such step.
        """
        known: Step | None = next((each for each in allowed if each == step), None)
        if known is None:
            raise InvalidRequest(f"after={step!r}: a worker's steps are {', '.join(map(repr, allowed))}")
        with self._lock:
            self._planned.append(Fault(known, action))

    def take(self, step: Step) -> Action | None:
        """What happens to a worker that has got to ``step``; it happens once."""
        with self._lock:
            found = next((fault for fault in self._planned if fault.step == step), None)
            if found is None:
                return None
            self._planned.remove(found)
            self.happened.append(found)
            return found.action

    def pass_by(self, step: Step) -> None:
        """A worker has got to ``step``.

        Raises:
            ProcessEnded: It dies here.
        """
        if self.take(step) == "die":
            raise ProcessEnded(step)

    def lose_a_completion(self) -> bool:
        """Whether the completion that is being sent is one of those that get lost."""
        with self._lock:
            if self.completions_to_lose == 0:
                return False
            self.completions_to_lose -= 1
            return True
