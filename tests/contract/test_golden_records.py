"""The bytes of every kind of record, pinned: what was written once must stay readable.

Where a schema has to change, its old form goes to ``avro/retired/`` and its bytes here get a new entry beside
the old one. ``python -m tests.contract.test_golden_records`` writes the entries that are missing, no others.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pytest

from relevo_schemas import files
from relevo_schemas.codec import (
    HEADER_LENGTH,
    MARKER,
    decode,
    default_codec,
    encode,
    fingerprint,
    record_classes,
)
from relevo_schemas.files import load_current
from relevo_schemas.job import JobSpec
from relevo_schemas.records import Event, Record
from tests.contract.samples import EARLIER, SAMPLES

GOLDEN_FILE = Path(__file__).parent / "golden_records.json"
GOLDEN: dict[str, str] = json.loads(GOLDEN_FILE.read_text()) if GOLDEN_FILE.exists() else {}
KINDS = {cls.__name__: cls for cls in record_classes()}
RETIRED = sorted((Path(files.__file__).parent / "avro" / "retired").glob("*.avsc"))


def plain(record: Record | JobSpec) -> dict[str, Any]:
    """A record as plain fastavro gives it."""
    names = [field["name"] for field in load_current(type(record).__name__)["fields"]]
    found: dict[str, Any] = {}
    for name in names:
        value = getattr(record, name)
        if isinstance(value, Record | JobSpec):
            value = plain(value)
        elif isinstance(value, tuple):
            value = [plain_item(item) for item in value]
        found[name] = value
    return found


def plain_item(item: Any) -> Any:
    """What an array holds: parts of records, or plain values."""
    if isinstance(item, Record):
        return {part: getattr(item, part) for part in item.FIELDS}
    return item


def says_no_more(found: Any, expected: Any) -> bool:
    """Whether ``found`` holds nothing that ``expected`` doesn't, in its parts as well."""
    if isinstance(found, dict):
        return all(name in expected and says_no_more(found[name], expected[name]) for name in found)
    if isinstance(found, list):
        return len(found) == len(expected) and all(map(says_no_more, found, expected))
    return bool(found == expected)


def test_every_kind_has_its_bytes_here() -> None:
    assert {name.split()[0] for name in SAMPLES} == KINDS.keys()
    assert GOLDEN.keys() == SAMPLES.keys() | EARLIER.keys()


@pytest.mark.parametrize("name", SAMPLES)
def test_a_record_is_written_as_it_always_was(name: str) -> None:
    assert encode(SAMPLES[name]).hex() == GOLDEN[name]


@pytest.mark.parametrize("name", GOLDEN)
def test_a_record_that_was_written_once_is_read(name: str) -> None:
    """Those of retired schemas too: topics hold them long after an upgrade."""
    value = bytes.fromhex(GOLDEN[name])
    expected = (SAMPLES | EARLIER)[name]
    assert decode(value) == expected
    assert default_codec().kind_of(value) is type(expected)


def test_a_retired_schema_stands_under_its_fingerprint_and_has_its_bytes_here() -> None:
    """The fingerprint is all that a record says of its schema: by that name people find it."""
    retired = {path.stem: fastavro.parse_schema(json.loads(path.read_text())) for path in RETIRED}
    assert retired
    written = {value[4 : 2 * HEADER_LENGTH] for name, value in GOLDEN.items() if name in EARLIER}
    assert written == {fingerprint(dict(schema)).hex() for schema in retired.values()}  # type: ignore[arg-type]
    for name, schema in retired.items():
        kind, mark = name.split("-")
        assert (f"relevo.{kind}", mark) == (schema["name"], fingerprint(dict(schema)).hex())  # type: ignore[call-overload, index, arg-type]


def test_a_retired_record_is_read_with_nothing_but_fastavro_and_the_schema_file() -> None:
    for path in RETIRED:
        schema = fastavro.parse_schema(json.loads(path.read_text()))
        mark = path.stem.split("-")[1]
        for name in EARLIER:
            value = bytes.fromhex(GOLDEN[name])
            if value[2:HEADER_LENGTH].hex() == mark:
                datum = fastavro.schemaless_reader(io.BytesIO(value[HEADER_LENGTH:]), schema, None)
                assert isinstance(datum, dict)
                assert says_no_more(datum, plain(EARLIER[name]))


@pytest.mark.parametrize("name", SAMPLES)
def test_a_record_is_read_whole_with_nothing_but_fastavro_and_the_schema_file(name: str) -> None:
    """The log is for the public: whoever has the ``.avsc`` files needs nothing of ours."""
    value = bytes.fromhex(GOLDEN[name])
    schema = load_current(name.split()[0])
    assert value[:HEADER_LENGTH] == MARKER + fingerprint(schema)
    stream = io.BytesIO(value[HEADER_LENGTH:])
    assert fastavro.schemaless_reader(stream, schema, None) == plain(SAMPLES[name])
    assert not stream.read()


@pytest.mark.parametrize("name", KINDS)
def test_class_and_schema_have_the_same_fields(name: str) -> None:
    schema = load_current(name)
    assert KINDS[name].__slots__ == KINDS[name].FIELDS == tuple(field["name"] for field in schema["fields"])
    assert (schema["name"], schema["type"]) == (f"relevo.{name}", "record")
    assert schema["doc"]
    assert all(field["doc"] for field in schema["fields"])


@pytest.mark.parametrize("name", ["CreateJob", "JobCreated", "Activation"])
def test_the_job_is_nested_last_and_is_the_same_everywhere(name: str) -> None:
    """Its bytes are copied from one to the other: a difference would go unnoticed until somebody decodes."""
    last = load_current(name)["fields"][-1]
    job = load_current("JobSpec")
    assert last["name"] == "job"
    for part in ("type", "doc", "fields"):
        assert last["type"][part] == job[part]
    assert job["fields"][-1]["name"] == "variables"


def test_every_event_begins_with_the_same_four_fields() -> None:
    """A reader of the log can check order and terms without knowing the kinds."""
    heads = {name: load_current(name)["fields"][:4] for name, cls in KINDS.items() if issubclass(cls, Event)}
    assert len(heads) == 16
    assert all(head == heads["JobCreated"] for head in heads.values())
    assert [(field["name"], field["type"]) for field in heads["JobCreated"]] == [
        ("seq", "long"), ("epoch", "long"), ("at", "long"), ("source", "long"),
    ]  # fmt: skip


def write_missing() -> None:
    """Add the bytes of samples that have none yet."""
    added = {name: encode(record).hex() for name, record in SAMPLES.items()} | GOLDEN
    GOLDEN_FILE.write_text(json.dumps(added, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    write_missing()
