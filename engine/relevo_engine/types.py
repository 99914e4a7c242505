"""Which job types have a topic: looked up, made on first use, and set aside while they can't be written."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from relevo_engine.core.channels import MISSING, Channel, ChannelState
from relevo_engine.errors import EngineError
from relevo_engine.topics import activations_prefix
from relevo_schemas.job import TYPE_PATTERN

REFRESH_S: Final = 10.0
"""How often Kafka is asked which types there are."""
ASK_AGAIN_S: Final = 1.0
"""Shortest pause between two questions, however many unknown types are asked for."""
BLOCK_MIN_S: Final = 1.0
BLOCK_MAX_S: Final = 60.0
BLOCK_REMEMBERED_S: Final = 2 * BLOCK_MAX_S
"""A type that fails again so soon after its last try has not recovered, and its pause grows. A failure may
take long to be known: librdkafka tries for 8 s, and the state is made anew before the next try."""


class TopicSource(Protocol):
    """What the directory needs of Kafka."""

    def slots(self) -> dict[str, int]:
        """The partition count of each activation topic, by job type; raises `EngineError`."""

    def create_type(self, job_type: str, partitions: int) -> None:
        """Makes the topic of a type, if it is missing; raises `EngineError`."""


@dataclass(slots=True)
class _Block:
    """Why a type is set aside, until when, and for how long the next time."""

    reason: str
    until: float
    pause_s: float


class TypeDirectory:
    """`Channels` for every partition of a node. Answers from memory; a thread of its own talks to Kafka.

    Args:
        source: Asks Kafka and makes topics.
        cluster: Name of the cluster.
        partitions: How many it has.
        types_max: Types up to which an undeclared one is made on first use.
        note: Told what happened, as an event's name and fields.
        clock: Seconds that only go forward.
    """

    def __init__(
        self,
        source: TopicSource,
        cluster: str,
        partitions: int,
        types_max: int,
        *,
        note: Callable[..., None] = lambda _event, **_fields: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._prefix = activations_prefix(cluster)
        self._partitions = partitions
        self._types_max = types_max
        self._note = note
        self._clock = clock
        self._lock = threading.Lock()
        # Replaced as a whole, so that the hot path reads it without the lock.
        self._channels: Mapping[str, Channel] = {}
        self._slots: dict[str, int] = {}
        self._blocks: dict[str, _Block] = {}
        self._wanted: set[str] = set()
        self._asked_at = float("-inf")
        self._trouble: str | None = None
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Asks Kafka once, then goes on in the background.

        Raises:
            EngineError: Kafka didn't answer.
        """
        self.refresh()
        self._thread = threading.Thread(target=self._run, name="relevo-types", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> bool:
        """Ends the thread. Says whether it ended in time; it may be waiting for Kafka."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout_s)
            return not self._thread.is_alive()
        return True

    def channel(self, job_type: str) -> Channel:
        """The channel of a type; asks for a missing one to be made, if it may."""
        found = self._channels.get(job_type)
        if found is not None:
            return found
        self.may_create(job_type)
        return MISSING

    def slots(self) -> Mapping[str, int]:
        """The partition count of each activation topic, by job type, as Kafka said last."""
        with self._lock:
            return dict(self._slots)

    def may_create(self, job_type: str) -> bool:
        """Whether a topic may be made for a type that has none, which is then begun."""
        if not TYPE_PATTERN.match(job_type):
            return False
        if job_type in self._wanted:
            return True
        with self._lock:
            # Even where it may not: somebody else may have declared it since Kafka was last asked.
            self._wake.set()
            if len(self._slots.keys() | self._wanted) >= self._types_max:
                return False
            self._wanted.add(job_type)
            return True

    def on_topic_failure(self, topic: str, reason: str) -> None:
        """Sets a type aside because its topic can't be written; it is tried again after a growing pause.

        Several of which one is to blame are tried one after the other: the first that fails alone is it.
        """
        if not topic.startswith(self._prefix):
            return
        job_type = topic.removeprefix(self._prefix)
        with self._lock:
            before = self._blocks.get(job_type)
            now = self._clock()
            recently = before is not None and now < before.until + BLOCK_REMEMBERED_S
            pause_s = min(BLOCK_MAX_S, before.pause_s * 2) if before is not None and recently else BLOCK_MIN_S
            others = (
                each.until
                for name, each in self._blocks.items()
                if name != job_type and each.reason == reason
            )
            self._blocks[job_type] = _Block(reason, max(now, max(others, default=now)) + pause_s, pause_s)
            self._publish()
        self._note("type set aside", type=job_type, reason=reason, again_in_s=pause_s)

    def blocked(self) -> dict[str, str]:
        """The types that can't be written now, and why."""
        channels = self._channels
        return {name: each.reason for name, each in channels.items() if each.state is ChannelState.BLOCKED}

    def trouble(self) -> str | None:
        """Why Kafka could not be asked the last time; None where it could."""
        return self._trouble

    def refresh(self) -> None:
        """One round: asks Kafka, makes what is wanted, gives those set aside another try when it is time.

        Raises:
            EngineError: Kafka didn't answer.
        """
        self._asked_at = self._clock()
        try:
            slots = self._source.slots()
        except EngineError as error:
            self._trouble = str(error)
            raise
        self._trouble = None
        with self._lock:
            self._slots = slots
            wanted = sorted(self._wanted - slots.keys())
            self._wanted.intersection_update(wanted)
        for job_type in wanted:
            self._make(job_type)
        with self._lock:
            self._publish()

    def _make(self, job_type: str) -> None:
        try:
            self._source.create_type(job_type, self._partitions)
        except EngineError as error:
            self.on_topic_failure(self._prefix + job_type, f"its topic could not be made: {error}")
            return
        with self._lock:
            self._wanted.discard(job_type)
            self._slots.setdefault(job_type, self._partitions)
        self._note("type made", type=job_type, partitions=self._partitions)

    def _publish(self) -> None:
        """Works out every channel anew. The lock is held."""
        now = self._clock()
        channels: dict[str, Channel] = {}
        for job_type, slots in self._slots.items():
            if slots % self._partitions:
                reason = f"its topic has {slots} partitions, which is no multiple of {self._partitions}"
                channels[job_type] = Channel(ChannelState.BLOCKED, 0, reason)
            else:
                channels[job_type] = Channel(ChannelState.OPEN, slots)
        for job_type, block in list(self._blocks.items()):
            if now < block.until:
                channels[job_type] = Channel(ChannelState.BLOCKED, 0, block.reason)
            elif now > block.until + BLOCK_REMEMBERED_S:
                del self._blocks[job_type]
        self._channels = channels

    def _run(self) -> None:
        while True:
            self._wake.wait(self._pause_s())
            # However often unknown types are asked for, Kafka is spared.
            since = self._clock() - self._asked_at
            if self._stop.wait(max(0.0, ASK_AGAIN_S - since)):
                return
            self._wake.clear()
            try:
                self.refresh()
            except EngineError as error:
                self._note("types not looked up", reason=str(error))
            except Exception as error:  # whatever it is: without this thread no type is ever found again
                self._trouble = f"{type(error).__name__}: {error}"
                self._note("types not looked up", reason=self._trouble)

    def _pause_s(self) -> float:
        """Until the next round: the usual time, or sooner where a type gets its next try."""
        with self._lock:
            now = self._clock()
            ends = [block.until - now for block in self._blocks.values() if block.until > now]
            return max(0.05, min([REFRESH_S, *ends]))

    def describe(self) -> dict[str, Any]:
        """Types and what they are, for people."""
        return {name: {"state": each.state.value, "slots": each.slots, "reason": each.reason}
                for name, each in sorted(self._channels.items())}  # fmt: skip
