"""A state machine that adds numbers: all that a partition's owner needs, without any jobs.

Commands and events are JSON. A command is ``{"id": …, "add": n}``, with ``"to": topic`` for a record on
another topic, or ``{"id": …, "remind_ms": n}`` for an event by the clock. Each id counts once; what can't be
read is refused.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Any

from relevo_partitions.statemachine import (
    Heard,
    Incoming,
    LogDamaged,
    SnapshotFacts,
    SnapshotUnfit,
    Term,
    Write,
)


class FrozenCounter:
    """A copy as lines of JSON: the numbers, then the ids, some in each piece, then a hash of all of it."""

    def __init__(self, machine: CounterMachine) -> None:
        self.seq, self.epoch, self.position = machine.seq, machine.epoch, machine.position
        self.count = machine.count
        self._hash = machine.state_hash()
        self._numbers = [machine.numbers()]
        self._ids = sorted(machine.seen)
        self._over = False

    def next(self, items_max: int) -> bytes | None:
        if self._over:
            return None
        line: Any
        if self._numbers:
            line = self._numbers.pop()
        elif self._ids:
            line, self._ids = self._ids[:items_max], self._ids[items_max:]
        else:
            self._over, line = True, self._hash
        return json.dumps(line).encode() + b"\n"

    def state_hash(self) -> str:
        if not self._over:
            raise RuntimeError("the copy isn't complete")
        return self._hash

    def cancel(self) -> None:
        self._over = True


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
        self._read_from: int | None = None

    # -- snapshots
    # ----------------------------------------------------------------------------------------------

    @property
    def last_seq(self) -> int:
        return self.seq

    @property
    def count(self) -> int:
        return len(self.seen)

    def numbers(self) -> list[Any]:
        where = [self.seq, self.position, self.epoch, self.last_at]
        return [self.total, *where, sorted(self._reminders), self.count]

    def state_hash(self) -> str:
        state = json.dumps([self.numbers(), sorted(self.seen)])
        return blake2b(state.encode(), digest_size=16).hexdigest()

    def freeze(self) -> FrozenCounter:
        return FrozenCounter(self)

    def restore(self, pieces: Iterable[bytes]) -> None:
        try:
            numbers, *ids, expected = [json.loads(line) for line in b"".join(pieces).splitlines()]
            self.total, self.seq, self.position, self.epoch, self.last_at, reminders, _ = numbers
            self._reminders = [(due, name) for due, name in reminders]
            self.seen = {name for some in ids for name in some}
        except (ValueError, TypeError) as error:
            raise SnapshotUnfit(f"not a whole copy of a counter: {error}") from error
        if self.state_hash() != expected:
            raise SnapshotUnfit(f"expected state hash {expected}, found {self.state_hash()}")
        self.reread()

    def examine(self, pieces: Iterable[bytes]) -> SnapshotFacts:
        read = CounterMachine(self.partition, "")
        read.restore(pieces)
        return SnapshotFacts(read.seq, read.epoch, read.position, read.count, read.state_hash())

    def reread(self) -> None:
        self._read_from = 0

    def _holds(self, event: dict[str, Any]) -> bool:
        """Whether an event that is read again is one that the state holds."""
        seq = event["seq"]
        if self._read_from is None or seq > self.seq or (self._read_from and seq != self._read_from + 1):
            self._read_from = None
            return False
        self._read_from = seq
        found = (event["epoch"], event["at"])
        if seq == self.seq and found != (self.epoch, self.last_at):
            raise LogDamaged(f"expected seq {seq} of {(self.epoch, self.last_at)}, found one of {found}")
        return True

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
            if self._holds(event):
                continue
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

    def step(self, commands: Sequence[Incoming], now: int, heard: Heard | None = None) -> Sequence[Write]:
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

    def silent_at(self) -> int | None:
        return None

    def wait_ms(self, now: int) -> int | None:
        return max(0, self._reminders[0][0] - now) if self._reminders else None
