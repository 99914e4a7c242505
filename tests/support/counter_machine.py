"""A state machine that adds numbers: all that a partition's owner needs, without any jobs.

Commands and events are JSON. A command is ``{"id": …, "add": n}``, with ``"to": topic`` for a record on
another topic, or ``{"id": …, "remind_ms": n}`` for an event by the clock. Each id counts once; what can't be
read is refused.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from relevo_partitions.statemachine import Incoming, LogDamaged, Term, Write


class CounterMachine:
    """Sums up. The log topic is ``<cluster>.log``."""

    def __init__(self, partition: int, cluster: str, blocked: Callable[[], Iterable[str]] = tuple) -> None:
        self.partition = partition
        self.total = 0
        self.seen: set[str] = set()
        self.seq = 0
        self.position = 0
        self.epoch = 0
        self.last_at = 0
        self._log = f"{cluster}.log"
        self._blocked = blocked
        self._reminders: list[tuple[int, str]] = []

    # -- log
    # ----------------------------------------------------------------------------------------------------

    def replay(self, records: Sequence[Incoming]) -> None:
        for record in records:
            try:
                event = json.loads(record.value or b"")
                seq, epoch = event["seq"], event["epoch"]
            except (ValueError, KeyError, TypeError) as error:
                raise LogDamaged(
                    f"partition {self.partition}, offset {record.offset}: unreadable ({error})"
                ) from None
            rises = event["kind"] == "elected"
            if seq != self.seq + 1 or epoch != self.epoch + rises:
                raise LogDamaged(
                    f"partition {self.partition}, offset {record.offset}: expected seq {self.seq + 1} of "
                    f"epoch {self.epoch + rises}, found seq {seq} of epoch {epoch}"
                )
            self._apply(event)

    def _apply(self, event: dict[str, Any]) -> None:
        self.seq, self.epoch, self.last_at = event["seq"], event["epoch"], event["at"]
        self.position = max(self.position, event["source"] + 1)
        kind = event["kind"]
        if kind == "added":
            self.total += event["add"]
            self.seen.add(event["id"])
        elif kind == "noted":
            self.seen.add(event["id"])
            heapq.heappush(self._reminders, (event["due"], event["id"]))
        elif kind == "rang":
            self._reminders = [entry for entry in self._reminders if entry[1] != event["id"]]
            heapq.heapify(self._reminders)

    def _event(self, now: int, source: int, kind: str, **fields: Any) -> Write:
        epoch = self.epoch + (kind == "elected")
        event = {"seq": self.seq + 1, "epoch": epoch, "at": now, "source": source, "kind": kind, **fields}
        self._apply(event)
        return Write(self._log, self.partition, b"", json.dumps(event).encode())

    # -- leading
    # ------------------------------------------------------------------------------------------------

    def lead(self, term: Term, now: int) -> Sequence[Write]:
        return [self._event(now, -1, "elected", node=term.node, incarnation=term.incarnation)]

    def step(self, commands: Sequence[Incoming], now: int) -> Sequence[Write]:
        writes: list[Write] = []
        for command in commands:
            writes += self._decide(command, now)
        while self._reminders and self._reminders[0][0] <= now:
            writes.append(self._event(now, -1, "rang", id=self._reminders[0][1]))
        return writes

    def _decide(self, command: Incoming, now: int) -> list[Write]:
        try:
            asked = json.loads(command.value or b"")
            name = str(asked["id"])
            if name in self.seen:
                return [self._event(now, command.offset, "refused", id=name, reason="ALREADY_EXISTS")]
            if "remind_ms" in asked:
                return [self._event(now, command.offset, "noted", id=name, due=now + int(asked["remind_ms"]))]
            writes = [self._event(now, command.offset, "added", id=name, add=int(asked["add"]))]
        except (ValueError, KeyError, TypeError) as error:
            return [self._event(now, command.offset, "refused", id="", reason=f"INVALID {error}")]
        topic = asked.get("to")
        if topic is not None and topic not in self._blocked():
            writes.append(Write(topic, self.partition, name.encode(), command.value or b""))
        return writes

    def wait_ms(self, now: int) -> int | None:
        return max(0, self._reminders[0][0] - now) if self._reminders else None
