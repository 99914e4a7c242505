"""A copy of a state as bytes: an Avro object container, compressed with Zstandard, made piece by piece.

Readable with plain fastavro: its schema is a union of ``SnapshotHeader`` and the other ``Snapshot*.avsc``.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from hashlib import blake2b
from typing import Any, Final

import fastavro
from fastavro.write import Writer

from relevo_engine.core.errors import CopyUnfit
from relevo_engine.core.machine import JobMachine
from relevo_engine.core.restore import CopyReader
from relevo_engine.core.snapshot import (
    ATTEMPTS,
    BATCH,
    CHECKPOINTS,
    END,
    FINISHED,
    HEADER,
    JOBS,
    StateCopy,
    StateRecord,
)
from relevo_partitions.statemachine import SnapshotFacts, SnapshotUnfit
from relevo_schemas.files import load_current

CODEC: Final = "zstandard"
_BLOCK_BYTES: Final = 1 << 30
"""Blocks end where pieces do, not by themselves."""
_SYNC_BYTES: Final = 16
_Writer: Final[Any] = Writer
_reader: Final[Any] = fastavro.reader
_NAMESPACE: Final = "relevo."
_MISFITS: Final = (KeyError, TypeError, ValueError, IndexError, struct.error)
"""What records of another kind than ours lead to."""


@cache
def schema() -> Any:
    """The container's schema, parsed."""
    names = (HEADER, JOBS, ATTEMPTS, CHECKPOINTS, FINISHED, END)
    return fastavro.parse_schema([_plain(load_current(name)) for name in names])


def _plain(parsed: dict[str, Any]) -> dict[str, Any]:
    """A schema without the marks of one that is parsed already, and without what only people read."""
    fields = [{"name": field["name"], "type": field["type"]} for field in parsed["fields"]]
    return {"type": "record", "name": parsed["name"], "fields": fields}


class FrozenState:
    """A state's copy as the pieces of a container; see `relevo_partitions.statemachine.Frozen`.

    Args:
        copy: The copy.
        release: Called once nothing need be kept for it any more.
    """

    def __init__(self, copy: StateCopy, release: Callable[[], None]) -> None:
        self._copy = copy
        self._release = release
        self._records = copy.records()
        self._hash = ""
        self._over = False
        self._out = io.BytesIO()
        # Not random, so that equal copies are equal bytes.
        mark = blake2b(f"{copy.seq}/{copy.epoch}".encode(), digest_size=_SYNC_BYTES).digest()
        self._writer = _Writer(self._out, schema(), CODEC, sync_interval=_BLOCK_BYTES, sync_marker=mark)

    @property
    def seq(self) -> int:
        """Number of the last event in the copy."""
        return self._copy.seq

    @property
    def epoch(self) -> int:
        """Its epoch."""
        return self._copy.epoch

    @property
    def position(self) -> int:
        """Offset of the first command that no event in it speaks of."""
        return self._copy.position

    @property
    def count(self) -> int:
        """Open jobs in it."""
        return self._copy.count

    def next(self, items_max: int) -> bytes | None:
        """The next piece; of at least one record of 256 jobs."""
        if self._over:
            return None
        for _ in range(max(1, items_max // BATCH)):
            found = next(self._records, None)
            if found is None:
                self._end()
                break
            name, record = found
            if name == END:
                self._hash = record["state_hash"]
            self._writer.write((_NAMESPACE + name, record))
        self._writer.flush()
        piece = self._out.getvalue()
        self._out.seek(0)
        self._out.truncate()
        return piece or None

    def state_hash(self) -> str:
        """Of the copy.

        Raises:
            RuntimeError: It isn't complete.
        """
        if not self._hash:
            raise RuntimeError("the copy isn't complete")
        return self._hash

    def cancel(self) -> None:
        """Give the copy up."""
        self._end()

    def _end(self) -> None:
        if not self._over:
            self._over = True
            self._release()


def read_records(pieces: Iterable[bytes]) -> Iterator[StateRecord]:
    """The records in a container, as they were written.

    Raises:
        SnapshotUnfit: The bytes aren't a container, or are damaged.
    """
    stream = _Pieces(pieces)
    try:
        for name, record in _reader(stream, return_record_name=True):
            yield name.removeprefix(_NAMESPACE), record
    except Exception as error:  # damaged bytes make all kinds of errors of fastavro and of Zstandard
        if stream.failure is not None:
            raise stream.failure from None
        raise SnapshotUnfit(f"the snapshot's container is damaged: {error!r}") from error


def restore(machine: JobMachine, pieces: Iterable[bytes]) -> None:
    """Fill an empty machine from a container.

    Raises:
        SnapshotUnfit: It isn't a whole copy of a state. The machine must be thrown away.
    """
    with _damage_told():
        machine.restore(read_records(pieces))


def examine(pieces: Iterable[bytes]) -> SnapshotFacts:
    """Read a container to its end without keeping it.

    Raises:
        SnapshotUnfit: It isn't a whole copy of a state.
    """
    reader = CopyReader()
    with _damage_told():
        for name, record in read_records(pieces):
            reader.take(name, record)
        reader.finish()
    header = reader.header
    return SnapshotFacts(
        header["seq"], header["epoch"], header["position"], header["count"], reader.state_hash
    )


@contextmanager
def _damage_told() -> Iterator[None]:
    """Puts what damaged bytes lead to into one error."""
    try:
        yield
    except CopyUnfit as error:
        raise SnapshotUnfit(f"the snapshot isn't a copy that can be used: {error}") from error
    except _MISFITS as error:
        raise SnapshotUnfit(f"the snapshot holds other records than it should: {error!r}") from error


class _Pieces(io.RawIOBase):
    """Pieces as a stream.

    Attributes:
        failure: What whoever gives the pieces has raised: not damage, or damage that is told better there.
    """

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._held = io.BytesIO()
        self.failure: Exception | None = None

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        parts = [self._held.read(size)]
        missing = size - len(parts[0])
        while size < 0 or missing > 0:
            try:
                piece = next(self._pieces, None)
            except Exception as error:
                self.failure = error
                raise
            if piece is None:
                break
            self._held = io.BytesIO(piece)
            parts.append(self._held.read(missing if size >= 0 else -1))
            missing -= len(parts[-1])
        return b"".join(parts)
