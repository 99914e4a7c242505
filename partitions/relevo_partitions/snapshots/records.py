"""Snapshots as records of a compacted topic: their keys, their checksums, the manifest's form. Pure."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from relevo_partitions.snapshots.ports import Manifest
from relevo_partitions.statemachine import SnapshotUnfit

CHUNK_BYTES: Final = 512 * 1024
"""Longest content of a record: well below what brokers take."""
FORMAT: Final = 1
"""Version of chunks and manifests; the content has its own."""
CHECK_BYTES: Final = 16
_MANIFEST: Final = "manifest"


class SnapshotKey(NamedTuple):
    """What the key of a record says."""

    generation: int
    writer: str
    chunk: int | None
    """None: it is the manifest."""


def chunk_key(partition: int, generation: int, writer: str, chunk: int) -> bytes:
    """Key of one chunk, from 0."""
    return f"{partition}/{generation}-{writer}/{chunk}".encode()


def manifest_key(partition: int, generation: int, writer: str) -> bytes:
    """Key of the record that makes the chunks before it a snapshot."""
    return f"{partition}/{generation}-{writer}/{_MANIFEST}".encode()


def parse_key(partition: int, key: bytes | None) -> SnapshotKey | None:
    """What ``key`` says; None where it isn't one of this partition's."""
    try:
        owner, name, last = (key or b"").decode().split("/")
        generation, writer = name.split("-")
        chunk = None if last == _MANIFEST else int(last)
        return SnapshotKey(int(generation), writer, chunk) if int(owner) == partition else None
    except ValueError:
        return None


def pack_chunk(key: bytes, content: bytes) -> bytes:
    """The value of a chunk: a checksum over key and content, then the content."""
    return _check(key, content) + content


def unpack_chunk(key: bytes, value: bytes | None) -> bytes:
    """The content of a chunk.

    Raises:
        SnapshotUnfit: It was removed, or damaged, or is another's.
    """
    if value is None:
        raise SnapshotUnfit(f"{key.decode()} was removed")
    check, content = value[:CHECK_BYTES], value[CHECK_BYTES:]
    if check != _check(key, content):
        raise SnapshotUnfit(f"{key.decode()} is damaged: its checksum doesn't fit its {len(content)} bytes")
    return content


def pack_manifest(manifest: Manifest) -> bytes:
    """The value of a manifest: JSON, with a checksum over key and fields."""
    said = asdict(manifest) | {"format": FORMAT}
    return json.dumps(said | {"check": _check_of(manifest, said)}).encode()


def unpack_manifest(key: bytes, value: bytes) -> Manifest:
    """The manifest in a record.

    Raises:
        SnapshotUnfit: It is damaged, another's, or of a newer version.
    """
    try:
        said: dict[str, Any] = json.loads(value)
        check = said.pop("check")
        if said["format"] != FORMAT:
            raise SnapshotUnfit(
                f"{key.decode()} is of format {said['format']}, but this version reads {FORMAT}"
            )
        manifest = Manifest(**{field.name: said[field.name] for field in fields(Manifest)})
        if check != _check_of(manifest, said):
            raise SnapshotUnfit(f"{key.decode()} is damaged: its checksum doesn't fit")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SnapshotUnfit(f"{key.decode()} can't be read: {error!r}") from error
    if key != manifest_key(manifest.partition, manifest.generation, manifest.writer):
        raise SnapshotUnfit(f"{key.decode()} holds the manifest of {manifest.name}")
    return manifest


def _check(key: bytes, content: bytes) -> bytes:
    digest = blake2b(key, digest_size=CHECK_BYTES)
    digest.update(content)
    return digest.digest()


def _check_of(manifest: Manifest, said: dict[str, Any]) -> str:
    key = manifest_key(manifest.partition, manifest.generation, manifest.writer)
    return _check(key, json.dumps(said, sort_keys=True).encode()).hex()
