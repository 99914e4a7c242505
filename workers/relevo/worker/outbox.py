"""Tells the engine how attempts ended, and hears of the acknowledgements."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from confluent_kafka import KafkaError, Message

from relevo.sender import Sender
from relevo.worker.item import Item
from relevo.worker.outcomes import Failed, Outcome, acceptable, command_for
from relevo_schemas.codec import encode_about
from relevo_schemas.commands import CheckpointJob
from relevo_schemas.errors import RecordError

Acknowledged: TypeAlias = list[tuple[Item, KafkaError | None]]


class Outbox:
    """Commands on their way to Kafka. `add` and `send` belong to the gate's thread.

    Args:
        topic: The commands topic.
        sender: The producer.
        acknowledged: Called from the sender's thread with what was acknowledged or failed, many at a time.
    """

    def __init__(self, topic: str, sender: Sender, acknowledged: Callable[[Acknowledged], None]) -> None:
        self._topic = topic
        self._sender = sender
        self._acknowledged = acknowledged
        self._unsent: list[dict[str, Any]] = []
        self._reports: Acknowledged = []
        sender.after_reports(self._hand_in)

    @property
    def waiting(self) -> bool:
        """Whether commands wait to be sent, as the producer's queue is full."""
        return bool(self._unsent)

    def add(self, item: Item, outcome: Outcome) -> None:
        """Take the command for an item's outcome, behind what its handler has said last of its progress."""
        item.outcome = outcome = acceptable(outcome)
        item.told = True
        seq = item.created_seq
        note = item.job._note
        left = note.close() if note is not None else None
        if left is not None and isinstance(outcome, Failed):
            # Whatever else ends an attempt ends the job: nobody goes on with it.
            self._unsent.append(
                {
                    "key": item.key.encode(),
                    "value": encode_about(seq, CheckpointJob(item.key, seq, item.attempt, left)),
                    "partition": item.partition,
                    "callback": _no_matter,
                }
            )
        try:
            value = encode_about(seq, command_for(item.key, seq, item.attempt, outcome))
        except RecordError as error:
            item.outcome = Failed(f"the outcome can't be reported: {error}", retriable=False)
            value = encode_about(seq, command_for(item.key, seq, item.attempt, item.outcome))
        self._unsent.append(
            {
                "key": item.key.encode(),
                "value": value,
                "partition": item.partition,
                "callback": partial(self._report, item),
            }
        )

    def send(self) -> None:
        """Send what was taken; what the producer has no room for stays."""
        if not self._unsent:
            return
        self._unsent, refused = self._sender.send_batch(self._topic, self._unsent)
        reports: Acknowledged = [
            (report.args[0], error)
            for message, error in refused
            if isinstance(report := message["callback"], partial)  # else it doesn't matter
        ]
        if reports:
            self._acknowledged(reports)

    def _report(self, item: Item, error: KafkaError | None, message: Message) -> None:
        self._reports.append((item, error))

    def _hand_in(self) -> None:
        if self._reports:
            reports, self._reports = self._reports, []
            self._acknowledged(reports)


def _no_matter(error: KafkaError | None, message: Message) -> None:
    """A checkpoint that gets lost is a hint that the next attempt has to do without."""
