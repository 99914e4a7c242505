"""Snapshots as Kafka records: what was damaged, swapped or cut is refused before anybody decodes it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from relevo_partitions.snapshots.ports import Manifest
from relevo_partitions.snapshots.records import (
    SnapshotKey,
    chunk_key,
    manifest_key,
    pack_chunk,
    pack_manifest,
    parse_key,
    unpack_chunk,
    unpack_manifest,
)
from relevo_partitions.statemachine import SnapshotUnfit

MANIFEST = Manifest(
    partition=3,
    generation=900,
    writer="ab12",
    log_topic_id="topic",
    log_offset=1_200,
    seq=900,
    epoch=4,
    position=700,
    count=12,
    state_hash="00ff",
    taken_at=1_700_000_000_000,
    node="n1",
    first_offset=40,
    chunks=2,
    size=600_000,
    digest="11aa",
)
KEY = manifest_key(3, 900, "ab12")


def test_keys_say_what_a_record_is() -> None:
    assert parse_key(3, chunk_key(3, 900, "ab12", 17)) == SnapshotKey(900, "ab12", 17)
    assert parse_key(3, KEY) == SnapshotKey(900, "ab12", None)
    for foreign in (
        None,
        b"",
        b"3/900-ab12",
        b"4/900-ab12/1",
        b"3/x-ab12/1",
        b"3/1-a/x",
        b"\xff",
        b"a/b/c/d",
    ):
        assert parse_key(3, foreign) is None


def test_a_manifest_is_read_as_it_was_written() -> None:
    assert unpack_manifest(KEY, pack_manifest(MANIFEST)) == MANIFEST


def test_a_flipped_byte_of_a_manifest_is_noticed() -> None:
    value = pack_manifest(MANIFEST)
    for at in range(len(value)):
        damaged = bytearray(value)
        damaged[at] ^= 1
        with pytest.raises(SnapshotUnfit):
            unpack_manifest(KEY, bytes(damaged))


def test_a_manifest_under_another_key_is_refused() -> None:
    with pytest.raises(SnapshotUnfit, match="holds the manifest of 901-ab12"):
        unpack_manifest(KEY, pack_manifest(replace(MANIFEST, generation=901)))


def test_a_manifest_of_a_newer_version_is_refused_in_words() -> None:
    said = json.loads(pack_manifest(MANIFEST)) | {"format": 2, "unheard_of": True}
    with pytest.raises(SnapshotUnfit, match="of format 2, but this version reads 1"):
        unpack_manifest(KEY, json.dumps(said).encode())


def test_a_chunk_is_read_as_it_was_written_and_nowhere_else() -> None:
    key = chunk_key(3, 900, "ab12", 0)
    value = pack_chunk(key, b"content")
    assert unpack_chunk(key, value) == b"content"
    with pytest.raises(SnapshotUnfit, match="is damaged"):
        unpack_chunk(chunk_key(3, 900, "ab12", 1), value)
    with pytest.raises(SnapshotUnfit, match="was removed"):
        unpack_chunk(key, None)
    for end in range(len(value)):
        with pytest.raises(SnapshotUnfit):
            unpack_chunk(key, value[:end])
    for at in range(len(value)):
        damaged = bytearray(value)
        damaged[at] ^= 0x80
        with pytest.raises(SnapshotUnfit):
            unpack_chunk(key, bytes(damaged))
