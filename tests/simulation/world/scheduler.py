"""Virtual time, processes and fibers: one seed decides which of them runs next."""

from __future__ import annotations

import heapq
import random
import traceback
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from greenlet import GreenletExit, getcurrent, greenlet  # type: ignore[import-untyped,unused-ignore]

STEPS_AT_ONCE_MAX: Final = 50_000
"""More steps than that without time passing are an endless loop."""


class Stuck(AssertionError):  # noqa: N818 - named for what happened
    """The simulated code runs on without waiting for anything."""


class Process:
    """What lives and dies together; frozen, none of it runs, and everything else goes on."""

    def __init__(self, scheduler: Scheduler, name: str) -> None:
        self.scheduler = scheduler
        self.name = name
        self.alive = True
        self.frozen = False
        self.wall_offset = 0.0
        self.fibers: list[Fiber] = []
        self.held: list[Fiber] = []

    def spawn(self, name: str, target: Callable[[], None]) -> Fiber:
        """Run ``target`` beside the rest."""
        return self.scheduler.spawn(self, name, target)

    def kill(self) -> None:
        """End it here and now. What its code does while it is unwound reaches nobody: it is not alive."""
        self.alive = False
        fibers, self.fibers, self.held = self.fibers, [], []
        for fiber in fibers:
            if fiber.greenlet is not getcurrent():
                fiber.kill()

    def freeze(self) -> None:
        """Stop it where it stands."""
        self.frozen = True

    def thaw(self) -> None:
        """Let it go on, as if no time had passed."""
        self.frozen = False
        held, self.held = self.held, []
        self.scheduler.ready.extend(held)


class Fiber:
    """One thread of a process."""

    __slots__ = ("done", "ended", "greenlet", "name", "process", "turn", "waiting", "woken")

    def __init__(self, process: Process, name: str, target: Callable[[], None]) -> None:
        self.process = process
        self.name = name
        self.turn = 0
        self.waiting = False
        self.woken = False
        self.done = False
        self.ended: list[tuple[Fiber, int]] = []
        """Fibers that wait for this one's end."""

        def run() -> None:
            try:
                if process.alive:
                    target()
            finally:
                self.done = True
                for fiber, turn in self.ended:
                    process.scheduler.wake(fiber, turn)
                if self in process.fibers:
                    process.fibers.remove(self)

        self.greenlet = greenlet(run, parent=process.scheduler.hub)

    def where(self) -> str:
        """What it is at."""
        frame = self.greenlet.gr_frame
        lines = traceback.extract_stack(frame)[-6:] if frame is not None else []
        places = " < ".join(f"{line.name}:{line.lineno}" for line in reversed(lines))
        return f"{self.process.name} {self.name}: {places}"

    def kill(self) -> None:
        """Unwind it."""
        if self.greenlet and not self.greenlet.dead:
            self.greenlet.parent = getcurrent()
            self.greenlet.throw(GreenletExit)


class Scheduler:
    """Runs fibers one at a time, and time from one thing due to the next.

    Args:
        rng: Decides the order.
        trace: Told of every step: time, and what it was.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.hub = getcurrent()
        self.now = 0.0
        self.steps = 0
        self.ready: list[Fiber] = []
        self.current: Fiber | None = None
        self.failure: BaseException | None = None
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._tokens = 0
        self.trace: deque[tuple[float, str, str]] = deque(maxlen=400)
        self.digest: Any = None

    # -- for the world

    def note(self, who: str, what: str) -> None:
        """Write a line of the trace."""
        self.trace.append((self.now, who, what))
        if self.digest is not None:
            self.digest.update(f"{self.now:.9f} {who} {what}\n".encode())

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Do ``action`` at a time."""
        self._order += 1
        heapq.heappush(self._timers, (when, self._order, action))

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Do ``action`` after a while."""
        self.at(self.now + seconds, action)

    def token(self) -> str:
        """A text unlike any other, the same for the same seed."""
        self._tokens += 1
        return f"{self._tokens:04x}{self.rng.getrandbits(32):08x}"

    def spawn(self, process: Process, name: str, target: Callable[[], None]) -> Fiber:
        """A new fiber, ready to run."""
        fiber = Fiber(process, name, target)
        if process.alive:
            process.fibers.append(fiber)
            self.ready.append(fiber)
        return fiber

    def run(self, until: float, stop: Callable[[], bool]) -> None:
        """Run until a time, or until ``stop`` says so between two moments."""
        at_once = 0
        while self.failure is None:
            if self.ready:
                at_once += 1
                if at_once > STEPS_AT_ONCE_MAX:
                    raise Stuck(f"no time passes: {self.ready[0].where()}")
                self._step()
            elif self._timers and self._timers[0][0] <= until:
                when, _, action = heapq.heappop(self._timers)
                if when > self.now:
                    self.now = when
                    at_once = 0
                    if stop():
                        return
                action()
            else:
                self.now = max(self.now, until)
                return
        raise self.failure

    def _step(self) -> None:
        ready = self.ready
        index = int(self.rng.random() * len(ready))
        fiber = ready[index]
        ready[index] = ready[-1]
        ready.pop()
        process = fiber.process
        if not process.alive or fiber.done:
            return
        if process.frozen:
            process.held.append(fiber)
            return
        self.steps += 1
        self.current = fiber
        try:
            fiber.greenlet.switch()
        finally:
            self.current = None

    # -- for fibers

    def block(self, seconds: float | None) -> bool:
        """Wait until woken, for at most so long; whether it was."""
        fiber = self.current
        assert fiber is not None, "only a fiber can wait"
        if not fiber.process.alive:
            raise GreenletExit
        fiber.turn += 1
        fiber.waiting, fiber.woken = True, False
        if seconds is not None:
            self.after(seconds, partial(self._expire, fiber, fiber.turn))
        self.hub.switch()
        if not fiber.process.alive:
            raise GreenletExit
        return fiber.woken

    def ticket(self) -> tuple[Fiber, int]:
        """Wakes the current fiber out of the wait that it is about to begin, and no other."""
        fiber = self.current
        assert fiber is not None, "only a fiber can wait"
        return fiber, fiber.turn + 1

    def give_way(self) -> None:
        """Let others run first, perhaps."""
        fiber = self.current
        assert fiber is not None, "only a fiber can wait"
        if not fiber.process.alive:
            raise GreenletExit
        self.ready.append(fiber)
        self.hub.switch()
        if not fiber.process.alive:
            raise GreenletExit

    def wake(self, fiber: Fiber, turn: int | None = None) -> bool:
        """Let a fiber go on; False where it isn't waiting (any more)."""
        if not fiber.waiting or (turn is not None and turn != fiber.turn) or not fiber.process.alive:
            return False
        fiber.waiting, fiber.woken = False, True
        self.ready.append(fiber)
        return True

    def _expire(self, fiber: Fiber, turn: int) -> None:
        if fiber.waiting and fiber.turn == turn and fiber.process.alive:
            fiber.waiting = False
            self.ready.append(fiber)
