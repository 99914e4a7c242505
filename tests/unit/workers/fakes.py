"""Stand-ins for what surrounds a worker's parts: sender, store and runner that do what the test says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from relevo.consumer.offsets import Ownership
from relevo.dedup.memory import MemoryDedupStore
from relevo.dedup.store import Answer, Claim, Finish, Unknown
from relevo.worker.item import Item
from relevo_schemas.codec import decode, encode, job_spec
from relevo_schemas.delivery import Activation
from relevo_schemas.records import Record

MSG_SIZE_TOO_LARGE = 10


CREATED = 41
"""Number of the event that created the jobs of `activation`."""


def activation(
    key: str,
    *,
    created_seq: int = CREATED,
    attempt: int = 1,
    retries: int = 3,
    expiries: int = 0,
    partition: int = 0,
    lease_ms: int = 30_000,
    variables: bytes = b"{}",
    correlation_id: str | None = None,
    headers: Mapping[str, str] | None = None,
    priority: int = 0,
    at: int = 1_700_000_000_000,
    checkpoint: bytes = b"",
) -> Activation:
    spec = job_spec(
        key=key,
        type="send-email",
        variables=variables,
        lease_ms=lease_ms,
        correlation_id=correlation_id,
        headers=headers,
        priority=priority,
    )
    return Activation(partition, 1, at, created_seq, attempt, retries, expiries, checkpoint, spec)


def item(key: str) -> Item:
    """A job that has arrived in a worker, and waits."""
    entry = Ownership("t", 0, 1, 0).begin(0)
    assert entry is not None
    return Item(entry, activation(key), "token")


def activation_bytes(key: str, **fields: Any) -> bytes:
    return encode(activation(key, **fields))


class FakeSender:
    """Keeps what is sent; the test acknowledges it."""

    def __init__(self) -> None:
        self.hooks: list[Callable[[], None]] = []
        self.unacknowledged: list[dict[str, Any]] = []
        self.sent: list[Record] = []
        self.room = 1_000_000
        self.most = 1_000_000
        """Bytes of the largest record that the client takes."""

    def after_reports(self, hook: Callable[[], None]) -> None:
        self.hooks.append(hook)

    def send_batch(
        self, topic: str, messages: list[dict[str, Any]]
    ) -> tuple[list[dict[str, Any]], list[tuple[dict[str, Any], Any]]]:
        large = [each for each in messages if len(each["value"]) > self.most]
        refused = [(each, FakeError(MSG_SIZE_TOO_LARGE)) for each in large]
        messages = [each for each in messages if len(each["value"]) <= self.most]
        taken, left = messages[: self.room], messages[self.room :]
        self.room -= len(taken)
        self.unacknowledged += taken
        self.sent += [decode(each["value"]) for each in taken]
        return left, refused

    def try_send(
        self, topic: str, key: bytes, value: bytes, report: Callable[..., None], partition: int = -1
    ) -> bool:
        if self.room <= 0:
            return False
        self.sent.append(decode(value))
        self.unacknowledged.append({"callback": report})
        return True

    def acknowledge(self, error: object = None) -> None:
        """Kafka answers all of it."""
        waiting, self.unacknowledged = self.unacknowledged, []
        for message in waiting:
            message["callback"](error, FakeMessage())
        for hook in self.hooks:
            hook()


class FakeError:
    """What librdkafka says of a record."""

    def __init__(self, code: int = -192) -> None:
        self._code = code

    def code(self) -> int:
        return self._code

    def str(self) -> str:
        return "Local: Message timed out"


class FakeMessage:
    def offset(self) -> int:
        return 7


class FakeStore(MemoryDedupStore):
    """A memory store that can fall silent, and remembers what it was asked."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(clock=lambda: self.now)
        self.silent: str | None = None
        self.raises: Exception | None = None
        self.calls: list[tuple[str, list[str]]] = []

    def _hear(self, name: str, keys: list[str]) -> list[Answer] | None:
        self.calls.append((name, keys))
        if self.raises is not None:
            raise self.raises
        return [Unknown(self.silent)] * len(keys) if self.silent is not None else None

    def claim(self, claims: Sequence[Claim]) -> list[Answer]:
        return self._hear("claim", [each.key for each in claims]) or super().claim(claims)

    def renew(self, claims: Sequence[Claim]) -> list[Answer]:
        return self._hear("renew", [each.key for each in claims]) or super().claim(claims)

    def done(self, finishes: Sequence[Finish]) -> list[Answer]:
        return self._hear("done", [each.key for each in finishes]) or super().done(finishes)

    def release(self, claims: Sequence[Claim]) -> list[Answer]:
        return self._hear("release", [each.key for each in claims]) or super().release(claims)


class FakeRunner:
    """Keeps what is to run; the test ends it."""

    def __init__(self) -> None:
        self.running: list[Item] = []
        self.started: list[str] = []
        self.cancelled: list[Item] = []

    def submit(self, items: Sequence[Item]) -> None:
        self.running += items
        self.started += [item.key for item in items]

    def cancel(self, item: Item) -> None:
        self.cancelled.append(item)

    def close(self) -> None:
        pass
