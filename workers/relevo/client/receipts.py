"""From a command to bytes, and from Kafka's acknowledgement to a position."""

from __future__ import annotations

from typing import Final

from confluent_kafka import Message

from relevo.errors import InvalidRequest
from relevo_schemas.codec import encode
from relevo_schemas.errors import RecordError
from relevo_schemas.records import Command

OFFSET_UNKNOWN: Final = -1
"""Kafka has the record, and doesn't say where: so it is after a retry that it recognised as a repeat."""


class Receipt:
    """Where Kafka put a record."""

    __slots__ = ("at", "offset", "partition")

    def __init__(self, message: Message) -> None:
        offset = message.offset()
        self.partition: int = message.partition() or 0
        self.offset: int = offset if offset is not None and offset >= 0 else OFFSET_UNKNOWN
        self.at: int = message.timestamp()[1]


def encode_command(command: Command) -> bytes:
    """The command's bytes.

    Raises:
        InvalidRequest: It doesn't fit into a record.
    """
    try:
        return encode(command)
    except RecordError as error:
        raise InvalidRequest(str(error)) from error
