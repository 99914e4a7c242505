"""A record that a leader writes to the log to find its end, and to prove that it may still write."""

from __future__ import annotations

from relevo_partitions.statemachine import Incoming, Write
from relevo_schemas import codec
from relevo_schemas.delivery import Barrier

_PREFIX = codec.encode(Barrier("", "", ""))[: codec.HEADER_LENGTH]


def make_barrier(topic: str, partition: int, node: str, incarnation: str, nonce: str) -> Write:
    """A barrier; ``nonce`` tells it from any other."""
    return Write(topic, partition, b"", codec.encode(Barrier(node, incarnation, nonce)))


def is_barrier(value: bytes | None) -> bool:
    """Whether a log record is a barrier, whoever wrote it."""
    return value is not None and value.startswith(_PREFIX)


def find_barrier(records: list[Incoming], nonce: str) -> int | None:
    """Index of the barrier with ``nonce``, None where it isn't there."""
    for index, record in enumerate(records):
        if is_barrier(record.value):
            barrier = codec.decode(record.value)
            if isinstance(barrier, Barrier) and barrier.nonce == nonce:
                return index
    return None
