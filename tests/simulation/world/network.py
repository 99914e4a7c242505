"""Calls from processes to servers: late, lost on the way there or back, or cut off."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from tests.simulation.world.scheduler import Fiber, Process, Scheduler

FAST_S: Final = (0.0002, 0.002)
"""How long a message usually takes."""


class NoAnswer(Exception):  # noqa: N818 - named for what happened
    """None came in time: what was asked for was done, wasn't, or will be."""


@dataclass
class Fate:
    """What becomes of one call."""

    lose_request: bool = False
    lose_reply: bool = False
    delay_s: float = 0.0
    fail_at_once: bool = False
    """The caller hears at once that the connection broke."""


@dataclass
class Link:
    """The way between one process and one server."""

    cut: bool = False
    slow_s: float = 0.0
    """Added to each message, up to so much."""
    slow_fetch_s: float = 0.0
    """Added to each fetch of records, up to so much."""
    stuck: list[Callable[[], None]] = field(default_factory=list)
    readers_stuck_at: dict[str, float] = field(default_factory=dict)
    """Readers of a topic that were made before then get nothing any more, and are told nothing."""


class Network:
    """All links.

    Args:
        scheduler: Of the world.
        rng: Decides delays and losses.
    """

    def __init__(self, scheduler: Scheduler, rng: random.Random) -> None:
        self._scheduler = scheduler
        self._rng = rng
        self._links: dict[tuple[str, str], Link] = {}
        self._fates: dict[tuple[str, str], list[Fate]] = {}
        self.calls: Counter[str] = Counter()
        self.on_step: Callable[[str, str], None] = lambda who, what: None
        """Told who does what: when a request has arrived and was carried out, before its answer is sent."""

    def link(self, process: str, server: str) -> Link:
        """The link of a process of that name, whichever incarnation."""
        link = self._links.get((process, server))
        if link is None:
            link = self._links[process, server] = Link()
        return link

    def cut(self, process: str, server: str) -> None:
        """Nothing passes from now on."""
        self.link(process, server).cut = True

    def heal(self, process: str, server: str) -> None:
        """The link works again; of what was under way, some arrives late and some never."""
        link = self.link(process, server)
        link.cut = False
        stuck, link.stuck = link.stuck, []
        for arrive in stuck:
            if self._rng.random() < 0.5:
                self._scheduler.after(self.delay(link), arrive)

    def doom(self, process: str, what: str, fate: Fate) -> None:
        """The next call of this kind by that process meets this fate."""
        self._fates.setdefault((process, what), []).append(fate)

    def clear(self) -> None:
        """All is well from now on."""
        self._fates.clear()
        for process, server in list(self._links):
            self.link(process, server).slow_s = self.link(process, server).slow_fetch_s = 0.0
            self.heal(process, server)

    def delay(self, link: Link) -> float:
        """How long a message takes now."""
        low, high = FAST_S
        spread = self._rng.random()
        return low + (high - low) * spread * spread + link.slow_s * self._rng.random()

    def call(
        self, process: Process, server: str, what: str, handler: Callable[[], Any], timeout: float
    ) -> Any:
        """Run ``handler`` at ``server``; its result or exception.

        Raises:
            NoAnswer: No reply came within ``timeout`` seconds.
        """
        fiber = self._scheduler.current
        assert fiber is not None
        call = _Call(self, process, self.link(process.name, server), server, what, handler, fiber)
        fates = self._fates.get((process.name, what))
        if fates:
            call.fate = fates.pop(0)
            self._scheduler.note(process.name, f"{what}: {call.fate}")
        self.calls[what] += 1
        self._scheduler.after(self.delay(call.link) + call.fate.delay_s, call.arrive)
        wait_s = 0.001 if call.fate.fail_at_once else timeout
        if not self._scheduler.block(wait_s) or not call.answered:
            raise NoAnswer(what)
        if call.error is not None:
            raise call.error
        return call.result


class _Call:
    def __init__(
        self, network: Network, process: Process, link: Link, server: str, what: str,
        handler: Callable[[], Any], fiber: Fiber,
    ) -> None:  # fmt: skip
        self.network = network
        self.scheduler = process.scheduler
        self.process = process
        self.link = link
        self.server = server
        self.what = what
        self.handler = handler
        self.fiber = fiber
        self.turn = fiber.turn + 1
        self.fate = Fate()
        self.answered = False
        self.result: Any = None
        self.error: Exception | None = None

    def arrive(self) -> None:
        """The request is at the server."""
        if self.fate.lose_request:
            return
        if self.link.cut:
            if self.process.alive:
                self.link.stuck.append(self.arrive)
            return
        try:
            result, error = self.handler(), None
        except Later as later:
            later.request.reply = self._reply
            return
        except ServerSays as refusal:
            result, error = None, refusal
        self._reply(result, error)

    def _reply(self, result: Any, error: Exception | None) -> None:
        self.scheduler.note(self.process.name, f"{self.what} -> {error if error is not None else 'ok'}")
        if self.process.alive:
            self.network.on_step(self.process.name, self.what)
        if self.fate.lose_reply:
            return
        self.scheduler.after(self.network.delay(self.link), partial(self._return, result, error))

    def _return(self, result: Any, error: Exception | None) -> None:
        if self.link.cut:
            self.link.stuck.append(partial(self._return, result, error))
            return
        if self.fiber.waiting and self.fiber.turn == self.turn:
            self.answered, self.result, self.error = True, result, error
            self.scheduler.wake(self.fiber, self.turn)


class ServerSays(Exception):  # noqa: N818 - an answer
    """A server's refusal; travels like any answer."""


@dataclass
class Pending:
    """A request whose answer comes later."""

    reply: Callable[[Any, Exception | None], None] | None = None

    def answer(self, result: Any, error: Exception | None = None) -> None:
        """Answer it now."""
        if self.reply is not None:
            self.reply(result, error)


class Later(Exception):  # noqa: N818 - a way of answering
    """Raised by a handler that will answer through ``request``."""

    def __init__(self, request: Pending) -> None:
        self.request = request
