"""What a failing disk, or a stale replica that became leader, makes of a partition's files."""

from __future__ import annotations

import struct

from relevo_engine.local.brokers import LocalBrokers

_HEADER = struct.Struct(">qi")
"""Of a batch: its first offset, and the bytes that follow."""


def lose_tail(brokers: LocalBrokers, topic: str, end: int, partition: int = 0) -> None:
    """End a partition at ``end``: kills the one broker, cuts whole batches off its segment, starts it again.

    Kafka finds the log shorter, as after an election that a replica won that had missed the rest.
    """
    (server,) = brokers.kafka_servers
    server.kill()
    cut_tail(brokers, server.number, topic, end, partition)
    server.restart()
    brokers.await_brokers()


def cut_tail(brokers: LocalBrokers, broker: int, topic: str, end: int, partition: int = 0) -> None:
    """Cut all batches from offset ``end`` on off one replica's segment, while its broker doesn't run."""
    (folder,) = (brokers.home / f"kafka-{broker}").rglob(f"{topic}-{partition}")
    (segment,) = folder.glob("*.log")
    data = segment.read_bytes()
    at = 0
    while at < len(data):
        first, length = _HEADER.unpack_from(data, at)
        if first >= end:
            break
        at += _HEADER.size + length
    assert 0 < at < len(data), f"nothing lies behind offset {end}"
    segment.write_bytes(data[:at])
    for pattern in ("*.index", "*.timeindex", "*.txnindex", "*.snapshot"):  # made anew from the segment
        for derived in folder.glob(pattern):
            derived.unlink()
    for checkpoint in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        (folder.parent / checkpoint).unlink(missing_ok=True)
