"""How far an attempt has come, as its handler says: the latest only, and never on the handler's time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

from relevo.errors import InvalidRequest
from relevo_schemas.codec import encode_json
from relevo_schemas.job import CHECKPOINT_BYTES_MAX

INTERVAL_S: Final = 0.2
"""A job's checkpoints are sent so far apart at least; of those in between only the latest is."""


def detail_of(key: str, detail: Any) -> bytes:
    """A checkpoint's detail as the engine stores it; empty for None.

    Raises:
        InvalidRequest: It isn't JSON, or is too large.
    """
    if detail is None:
        return b""
    try:
        encoded = encode_json(detail)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(
            f"the checkpoint of job {key!r} is not JSON: {error} ({type(detail).__name__})"
        ) from error
    if len(encoded) > CHECKPOINT_BYTES_MAX:
        raise InvalidRequest(
            f"the checkpoint of job {key!r} has {len(encoded)} bytes, {CHECKPOINT_BYTES_MAX} are allowed: "
            f"store it elsewhere and say where"
        )
    return encoded


class Note:
    """The checkpoint of one attempt that is to be sent. Safe to use from several threads."""

    __slots__ = ("_closed", "_detail", "_lock", "_not_before")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._detail: bytes | None = None
        self._not_before = 0.0
        self._closed = False

    @property
    def due_at(self) -> float | None:
        """When it is to be sent, in monotonic seconds; None: there is nothing to send."""
        return self._not_before if self._detail is not None and not self._closed else None

    def due(self, now: float) -> bool:
        """Whether something is to be sent at ``now``."""
        due_at = self.due_at
        return due_at is not None and due_at <= now

    def put(self, detail: bytes) -> None:
        """Instead of what has not been sent yet, send ``detail``."""
        with self._lock:
            self._detail = detail

    def send(self, now: float, send: Callable[[bytes], bool]) -> None:
        """Give what is there to ``send``, which says whether it was taken; nothing once it is closed.

        A handler's end waits for a ``send`` under way, so that what follows it stands behind it in Kafka.
        """
        with self._lock:
            if self._closed or self._detail is None or not send(self._detail):
                return
            self._detail = None
            self._not_before = now + INTERVAL_S

    def close(self) -> bytes | None:
        """The handler has ended: what is left, which whoever asks may send; nothing is sent from here on."""
        with self._lock:
            self._closed = True
            left, self._detail = self._detail, None
            return left
