"""Whether a worker process lives, and whether it is of use: with reasons, for probes and for people."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final

from relevo.dedup.store import Claim, Unknown
from relevo.errors import RelevoError
from relevo.names import commands_topic

if TYPE_CHECKING:
    from relevo.worker.worker import Shared, TypeWorker, Workers

STUCK_S: Final = 60.0
"""A thread that hasn't come round for so long is stuck: each of its own waits is far shorter."""
PATIENCE_S: Final = 3.0
FRESH_S: Final = 2.0
_ASK_KAFKA_S: Final = 2.5


class Probe:
    """Asks what may hang, in a thread of its own, one at a time; a fresh answer is given again.

    Args:
        ask: Returns what is wrong, or None.
        name: What is asked, for the thread and for the answer that there is none.
    """

    def __init__(self, ask: Callable[[], str | None], name: str) -> None:
        self._ask = ask
        self._name = name
        self._asking: Future[str | None] | None = None
        self._stale_at = 0.0

    async def reason(self) -> str | None:
        """What is wrong; None: nothing."""
        asking = self._asking
        if asking is None or (asking.done() and time.monotonic() >= self._stale_at):
            asking = self._asking = self._begin()
        done, _ = await asyncio.wait([asyncio.wrap_future(asking)], timeout=PATIENCE_S)
        return asking.result() if done else f"{self._name} gives no answer in {PATIENCE_S:g} s"

    def _begin(self) -> Future[str | None]:
        future: Future[str | None] = Future()
        future.set_running_or_notify_cancel()

        def run() -> None:
            try:
                found = self._ask()
            except Exception as error:
                found = f"{self._name}: {error if isinstance(error, RelevoError) else type(error).__name__}"
            self._stale_at = time.monotonic() + FRESH_S
            future.set_result(found)

        # A daemon: one that hangs must not keep the process from ending.
        threading.Thread(target=run, name="relevo-probe", daemon=True).start()
        return future


class Health:
    """Judges the workers of one process.

    Args:
        workers: The workers.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._kafka = Probe(self._ask_kafka, "Kafka")
        self._store = Probe(self._ask_store, "the dedup store")

    def ailments(self) -> list[str]:
        """Why the process should be replaced; none while every thread lives and comes round.

        A process that was not started yet, or is draining, needs no replacement.
        """
        workers, shared = self._workers.workers, self._workers.shared
        if shared is None or self._workers.stopping:
            return []
        now = time.monotonic()
        since = self._workers.started_at
        found = [reason for each in workers for reason in _of_type(each, shared, now, since)]
        if not shared.leases.alive:
            found.append("the thread that renews leases has ended")
        elif (age := now - max(shared.leases.turned_at, since)) > STUCK_S:
            found.append(f"the thread that renews leases hasn't come round for {age:.0f} s")
        if not shared.claims.alive:
            found.append("the thread that renews claims has ended")
        elif (age := now - max(shared.claims.turned_at, since)) > STUCK_S:
            found.append(f"the thread that renews claims hasn't come round for {age:.0f} s")
        if not shared.sender.alive:
            found.append("the thread that hears of Kafka's acknowledgements has ended")
        if shared.sender.fault is not None:
            found.append(f"nothing can be reported to the engine any more: {shared.sender.fault.text}")
        return found

    async def hindrances(self) -> list[str]:
        """Why no work is to be expected of the process; none while it is in its groups and all answers."""
        if self._workers.stopping:
            return ["it is stopping"]
        if self._workers.shared is None:
            return ["it was not started yet"]
        found = self.ailments()
        for each in self._workers.workers:
            if not each.consumer.subscribed.is_set():
                found.append(f"{each.spec.type}: waits for Kafka, or for its topic to be made")
            elif not each.consumer.reading.member:
                found.append(f"{each.spec.type}: is not in its consumer group yet")
        answers = await asyncio.gather(self._kafka.reason(), self._store.reason())
        return found + [reason for reason in answers if reason is not None]

    def _ask_kafka(self) -> str | None:
        shared = self._workers.shared
        if shared is not None:
            shared.sender.partitions(commands_topic(shared.cluster), _ASK_KAFKA_S)
        return None

    def _ask_store(self) -> str | None:
        shared = self._workers.shared
        if shared is None or all(each.spec.delivery == "at-most-once" for each in self._workers.workers):
            return None
        # Giving back a claim that nobody has: the one question that leaves no trace in any store.
        nobodys = Claim(f"{shared.cluster}:dedup::probe:{shared.identity}", shared.identity, 1.0)
        answer = shared.store.release([nobodys])[0]
        return f"the dedup store gives no answer: {answer.reason}" if isinstance(answer, Unknown) else None


def _of_type(worker: TypeWorker, shared: Shared, now: float, since: float) -> list[str]:
    kind, fault = worker.spec.type, worker.gate.fault
    if fault is not None:
        text = str(fault) if isinstance(fault, RelevoError) else type(fault).__name__
        return [f"{kind}: can't go on: {text}"]
    found = []
    if not worker.consumer.thread.is_alive():
        found.append(f"{kind}: the thread that reads Kafka has ended")
    # Before that it waits for its topic; while it hands partitions over, for as long as handlers may finish.
    elif worker.consumer.subscribed.is_set():
        age = now - max(worker.consumer.reading.turned_at, since)
        if age > STUCK_S + shared.drain_s:
            found.append(f"{kind}: the thread that reads Kafka hasn't come round for {age:.0f} s")
    if not worker.gate.thread.is_alive():
        found.append(f"{kind}: the thread that starts handlers has ended")
    elif (age := now - max(worker.gate.turned_at, since)) > STUCK_S:
        found.append(f"{kind}: the thread that starts handlers hasn't come round for {age:.0f} s")
    return found


__all__ = ["STUCK_S", "Health", "Probe"]
