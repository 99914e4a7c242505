"""Tells leaders which partitions of the activation topic are ours, and so where others read."""

from __future__ import annotations

from typing import Final

from confluent_kafka import KafkaError, Message

from relevo.consumer.offsets import OffsetTracker
from relevo.sender import Sender
from relevo_schemas.codec import encode
from relevo_schemas.commands import ReportSlots

AGAIN_S: Final = 2.0
"""A leader that is new knows nothing of it: it is told so often, while it is sent something anyway."""


class SlotReports:
    """One job type's reports. Used by the thread that reports what runs, right before it does.

    If this process dies, what it ran goes to a partition of the topic that isn't among those it named last;
    else it might wait there until Kafka has noticed the death as well.

    Args:
        commands: The commands topic.
        identity: Names this worker process.
        job_type: The job type.
        tracker: Knows what was assigned.
        sender: Sends the commands.
    """

    def __init__(
        self, commands: str, identity: str, job_type: str, tracker: OffsetTracker, sender: Sender
    ) -> None:
        self._commands = commands
        self._identity = identity
        self._job_type = job_type
        self._tracker = tracker
        self._sender = sender
        self._told: dict[int, tuple[tuple[int, ...], float]] = {}

    def tell(self, partition: int, key: bytes, now: float) -> None:
        """Tell the leader of ``partition``, unless it was told lately; ``key`` is of one of its jobs."""
        slots = tuple(sorted(owned.partition for owned in self._tracker.owned()))
        told, at = self._told.get(partition, ((), -AGAIN_S))
        if told == slots and now < at + AGAIN_S:
            return
        value = encode(ReportSlots(self._identity, self._job_type, slots))
        if self._sender.try_send(self._commands, key, value, _sent, partition):
            self._told[partition] = slots, now


def _sent(error: KafkaError | None, message: Message) -> None:
    """A report that gets lost is followed by another one."""
