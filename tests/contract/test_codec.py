"""The codec against fastavro and against bytes that are no records."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from relevo_schemas import codec as codec_module
from relevo_schemas import commands as cmd
from relevo_schemas import events as ev
from relevo_schemas.codec import (
    HEADER_LENGTH,
    MARKER,
    RECORD_BYTES_MAX,
    Codec,
    canonical,
    decode,
    decode_job,
    default_codec,
    encode,
    encode_about,
    encode_json,
    fingerprint,
    job_spec,
    record_classes,
)
from relevo_schemas.delivery import Activation
from relevo_schemas.errors import RecordError, RecordFault
from relevo_schemas.files import load_current
from relevo_schemas.records import Command, Record
from tests.contract.samples import EARLIER, JOB, KEY, SAMPLES, SEQ
from tests.contract.test_golden_records import GOLDEN, plain

SCHEMAS = {cls: load_current(cls.__name__) for cls in record_classes()}
text = st.text(st.characters(codec="utf-8"), max_size=40)


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Values of an Avro type."""
    match kind:
        case "int":
            return st.integers(-(1 << 31), (1 << 31) - 1)
        case "long":
            return st.integers(-(1 << 63), (1 << 63) - 1)
        case "boolean":
            return st.booleans()
        case "string":
            return text
        case "bytes":
            return st.binary(max_size=60)
        case ["null", inner]:
            return st.none() | values_of(inner)
        case {"type": "map", "values": inner}:
            return st.dictionaries(text, values_of(inner), max_size=4)
        case {"type": "array", "items": inner}:
            return st.lists(values_of(inner), max_size=4)
        case {"type": "record", "fields": fields}:
            return st.fixed_dictionaries({field["name"]: values_of(field["type"]) for field in fields})
    raise TypeError(kind)


@st.composite
def any_datum(draw: st.DrawFn) -> tuple[type[Record], dict[str, Any]]:
    cls = draw(st.sampled_from(sorted(SCHEMAS, key=lambda each: each.__name__)))
    return cls, draw(values_of(SCHEMAS[cls]))


def by_fastavro(schema: Any, datum: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    stream.write(MARKER + fingerprint(schema))
    fastavro.schemaless_writer(stream, schema, datum)
    return stream.getvalue()


@given(any_datum())
def test_it_reads_and_writes_what_fastavro_does(sample: tuple[type[Record], dict[str, Any]]) -> None:
    """Whoever reads the log uses a library of Avro, not ours."""
    cls, datum = sample
    value = by_fastavro(SCHEMAS[cls], datum)
    record = decode(value)
    assert type(record) is cls
    assert plain(record) == datum
    assert encode(record) == value


@given(values_of(load_current("JobSpec")))
def test_a_job_is_written_as_fastavro_writes_it(datum: dict[str, Any]) -> None:
    job = job_spec(**datum)
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, load_current("JobSpec"), datum)
    assert job.body == stream.getvalue()
    assert decode_job(job.body) == job
    assert plain(decode_job(job.body)) == datum
    assert (job.variables, job.variables_size) == (datum["variables"], len(datum["variables"]))
    assert canonical(job) is job


def test_the_bytes_of_a_job_are_copied() -> None:
    """Encoding it anew at every hand-over costs a leader 40 % of its rate."""
    for value in (encode(cmd.CreateJob(JOB)), encode(ev.JobCreated(1, 1, 1, 1, JOB))):
        assert value.endswith(JOB.body)
    activation = Activation(3, 4, 5, 6, 7, 8, 9, b"10", JOB)
    fields = (3, 4, 5, 6, 7, 8, 9, b"10")
    assert default_codec().encode_carrying(Activation, fields, JOB.body) == encode(activation)


def test_maps_and_arrays_may_come_in_blocks_with_their_size() -> None:
    """Other libraries write them so."""
    prefix = MARKER + fingerprint(SCHEMAS[cmd.StartJobs])
    item = b"\x02k\x52\x02\x00"
    value = prefix + b"\x02w" + b"\x01\x0a" + item + b"\x02" + item + b"\x00"
    assert decode(value) == cmd.StartJobs("w", (cmd.LeaseRef("k", 41, 1, 0), cmd.LeaseRef("k", 41, 1, 0)))


# --- Bytes that are no records ---


def read_or_refuse(value: bytes) -> RecordFault | None:
    """Decodes; any error but the promised one fails the test."""
    try:
        record = decode(value)
    except RecordError as error:
        return error.fault
    assert decode(encode(record)) == record
    return None


@pytest.mark.parametrize("name", SAMPLES)
def test_a_record_cut_short_anywhere_is_damaged(name: str) -> None:
    value = encode(SAMPLES[name])
    for length in range(HEADER_LENGTH, len(value)):
        assert read_or_refuse(value[:length]) is RecordFault.DAMAGED
    for length in range(1, HEADER_LENGTH):
        assert read_or_refuse(value[:length]) is not None


@pytest.mark.parametrize("name", SAMPLES)
def test_bytes_behind_a_record_are_damage(name: str) -> None:
    value = encode(SAMPLES[name])
    assert read_or_refuse(value + b"\x00") is RecordFault.DAMAGED
    assert read_or_refuse(value + value) is RecordFault.DAMAGED


@given(st.sampled_from(sorted(SAMPLES)), st.data())
def test_a_record_with_other_bytes_is_read_or_refused(name: str, data: st.DataObject) -> None:
    value = bytearray(encode(SAMPLES[name]))
    for _ in range(data.draw(st.integers(1, 4))):
        value[data.draw(st.integers(HEADER_LENGTH, len(value) - 1))] = data.draw(st.integers(0, 255))
    read_or_refuse(bytes(value))


@given(st.sampled_from(sorted(SAMPLES)), st.binary(max_size=200))
def test_a_record_with_any_body_is_read_or_refused(name: str, body: bytes) -> None:
    read_or_refuse(encode(SAMPLES[name])[:HEADER_LENGTH] + body)


@given(st.binary(max_size=100))
def test_any_bytes_are_refused(value: bytes) -> None:
    assume(value[:2] != MARKER)
    with pytest.raises(RecordError) as caught:
        decode(value)
    assert caught.value.fault is RecordFault.NOT_A_RECORD


def test_each_fault_has_its_name() -> None:
    unknown = MARKER + b"\x01\x02\x03\x04\x05\x06\x07\x08"
    for value, fault, message in (
        (None, RecordFault.NOT_A_RECORD, "single-object encoding"),
        (b"", RecordFault.NOT_A_RECORD, "single-object encoding"),
        (b'{"key":"k"}', RecordFault.NOT_A_RECORD, "single-object encoding"),
        (unknown, RecordFault.UNKNOWN_SCHEMA, "0102030405060708"),
        (unknown + bytes(RECORD_BYTES_MAX), RecordFault.OVERSIZED, "1000010 bytes, 1000000 are allowed"),
        (encode(SAMPLES["JobDue"])[:-1], RecordFault.DAMAGED, "damaged JobDue"),
    ):
        with pytest.raises(RecordError, match=message) as caught:
            decode(value)
        assert caught.value.fault is fault
        assert default_codec().kind_of(value) is (ev.JobDue if fault is RecordFault.DAMAGED else None)


@pytest.mark.parametrize(
    "body",
    [
        b"\x02w" + b"\xff" * 9 + b"\x01",  # more items than any record holds
        b"\x02w" + b"\xff" * 11,  # a number without an end
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f",  # a number of more than 64 bits
        b"\x01",  # a text of -1 bytes
        b"\x04\xff\xfe\x00",  # a text that is none
        b"\xfe\xff\xff\xff\x0f",  # a text longer than the record
        b"\x02w\x02\x02k\x00\x80\x80\x80\x80\x80\x01\x00",  # an attempt of more than 32 bits
    ],
)
def test_numbers_that_lie_are_damage(body: bytes) -> None:
    """A length from a damaged record must cost neither memory nor time."""
    assert read_or_refuse(MARKER + fingerprint(SCHEMAS[cmd.StartJobs]) + body) is RecordFault.DAMAGED


def _ints(schema: Any) -> list[str]:
    return [each["name"] for each in schema["fields"] if each["type"] in ("int", ["null", "int"])]


@pytest.mark.parametrize(
    ("kind", "within", "name"),
    [
        *((kind, "", name) for kind, record in SAMPLES.items() for name in _ints(SCHEMAS[type(record)])),
        *(
            (kind, "job", name)
            for kind, record in SAMPLES.items()
            if hasattr(record, "job")
            for name in _ints(load_current("JobSpec"))
        ),
    ],
)
def test_every_int_is_held_to_32_bits(kind: str, within: str, name: str) -> None:
    """Fastavro reads longer ones; who else reads the log refuses them, and with them all that follows."""
    record = SAMPLES[kind]
    schema, value = SCHEMAS[type(record)], encode(record)
    datum: Any = fastavro.schemaless_reader(io.BytesIO(value[HEADER_LENGTH:]), schema, None)
    form = fastavro.schema.to_parsing_canonical_form(schema)
    longer = json.loads(form.replace('"int"', '"long"'))  # the same bytes, for numbers that have them
    for number in (-(1 << 31) - 1, -(1 << 31), (1 << 31) - 1, 1 << 31):
        (datum[within] if within else datum)[name] = number
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, longer, datum)
        fits = -(1 << 31) <= number < 1 << 31
        assert read_or_refuse(value[:HEADER_LENGTH] + stream.getvalue()) is (
            None if fits else RecordFault.DAMAGED
        )


def test_the_job_must_end_where_the_record_ends() -> None:
    """A body that is damaged must not reach the log: nobody could read that event, and no node could lead."""
    body = JOB.body[: -JOB.variables_size - 1]
    prefix = encode(cmd.CreateJob(JOB))[:HEADER_LENGTH]
    for tail in (b"\x02", b"\x04x", b"\x02xx", b"\x01x", b"\x00x", b"", b"\x80"):
        assert read_or_refuse(prefix + body + tail) is RecordFault.DAMAGED
        with pytest.raises(RecordError, match="damaged JobSpec"):
            decode_job(body + tail)
    assert read_or_refuse(prefix + body + b"\x02x") is None


# --- Values that are none ---


@pytest.mark.parametrize(
    "record",
    [
        cmd.CancelJob(None, ""),  # type: ignore[arg-type]
        cmd.CancelJob(b"k", ""),  # type: ignore[arg-type]
        cmd.CancelJob("\ud800", ""),
        cmd.CompleteJob("k", 0, 1, "text"),  # type: ignore[arg-type]
        cmd.CompleteJob("k", 1 << 63, 1, b""),
        cmd.CompleteJob("k", 0, 1 << 31, b""),
        cmd.CompleteJob("k", 0, -(1 << 31) - 1, b""),
        cmd.CompleteJob("k", 0, 1.5, b""),  # type: ignore[arg-type]
        cmd.CompleteJob("k", 0, "1", b""),  # type: ignore[arg-type]
        cmd.FailJob("k", 0, 1, "", 1 << 63, True),
        cmd.FailJob("k", 0, 1, "", -(1 << 63) - 1, True),
        cmd.UpdateJob("k", 1 << 31, None),
        cmd.StartJobs("w", ("k",)),  # type: ignore[arg-type]
        ev.JobCreated(1, 1, 1, 1, None),  # type: ignore[arg-type]
    ],
    ids=repr,
)
def test_a_value_that_does_not_fit_is_an_error_by_name(record: Record) -> None:
    with pytest.raises(RecordError, match=f"{type(record).__name__} can't be encoded"):
        encode(record)


@pytest.mark.parametrize(
    "fields",
    [{"priority": 1 << 31}, {"headers": {"a": 1}}, {"variables": "text"}, {"key": None}, {"run_at": 1 << 63}],
    ids=repr,
)
def test_a_job_that_does_not_fit_is_an_error(fields: dict[str, Any]) -> None:
    with pytest.raises(RecordError, match="JobSpec can't be encoded"):
        job_spec(**{"key": "k", "type": "t", **fields})


def test_a_record_that_is_too_long_is_an_error_when_written() -> None:
    with pytest.raises(RecordError, match="CompleteJob has 1000017 bytes") as caught:
        encode(cmd.CompleteJob("k", 0, 1, bytes(1_000_000)))
    assert caught.value.fault is RecordFault.OVERSIZED
    with pytest.raises(RecordError, match="Activation has"):
        default_codec().encode_carrying(Activation, (1, 1, 1, 1, 1, 1, 1, b""), bytes(1_000_000))


@pytest.mark.parametrize(
    "name", ["StartJobs", "ExtendJobs", "CheckpointJob", "CompleteJob", "FailJob", "ThrowError"]
)
def test_a_command_about_an_unknown_job_is_one_that_nodes_of_the_version_before_read(name: str) -> None:
    """Older nodes than workers: one that can't read a completion refuses it, and the job runs again."""
    unknown = EARLIER[f"{name} without created_seq"]
    assert isinstance(unknown, Command)
    assert encode_about(0, unknown).hex() == GOLDEN[f"{name} without created_seq"]
    known = SAMPLES[name]
    assert isinstance(known, Command)
    assert encode_about(SEQ, known) == encode(known)


def test_a_command_in_its_earlier_form_is_held_to_the_same() -> None:
    with pytest.raises(RecordError, match="CompleteJob has 1000016 bytes"):
        encode_about(0, cmd.CompleteJob("k", 0, 1, bytes(1_000_000)))
    with pytest.raises(RecordError, match="FailJob can't be encoded"):
        encode_about(0, cmd.FailJob("k", 0, 1 << 31, "", 0, True))


def test_json_is_written_plainly() -> None:
    assert encode_json({"to": "ü"}) == '{"to":"ü"}'.encode()
    with pytest.raises(TypeError):
        encode_json({"to": object()})


# --- Records of earlier versions ---


def earlier(name: str, *, without: str = "", **changes: Any) -> dict[str, Any]:
    """The schema of a kind as an earlier version may have had it: a field more or less, a shorter number."""
    schema = load_current(name)
    fields = [{**field, "type": changes.get(field["name"], field["type"])} for field in schema["fields"]]
    fields = [field for field in fields if field["name"] != without]
    fields.insert(0, {"name": "shard", "type": "int"})
    parsed: Any = fastavro.parse_schema({"type": "record", "name": schema["name"], "fields": fields})
    return dict(parsed)


def test_a_record_of_an_earlier_version_is_read_as_the_current_kind() -> None:
    """A log outlives the version that wrote it."""
    old = earlier("JobFailed", retry_at="int")
    value = by_fastavro(old, {"shard": 4, **plain(SAMPLES["JobFailed"]), "retry_at": 77})
    with pytest.raises(RecordError) as caught:
        decode(value)
    assert caught.value.fault is RecordFault.UNKNOWN_SCHEMA
    record = Codec(record_classes(), retired=[old]).decode(value)
    assert isinstance(record, ev.JobFailed)
    assert (record.key, record.retry_at, record.error) == (KEY, 77, "connection refused")


@pytest.mark.parametrize("name", ["CreateJob", "JobCreated", "Activation", "StartJobs", "ExtendJobs"])
def test_nested_records_of_an_earlier_version_are_read_too(name: str) -> None:
    old = earlier(name)
    codec = Codec(record_classes(), retired=[old])
    value = by_fastavro(old, {"shard": 4, **plain(SAMPLES[name])})
    record = codec.decode(value)
    assert record == SAMPLES[name]
    assert codec.encode(record) == encode(SAMPLES[name]), "and is written as a current one"


@pytest.mark.parametrize(("name", "field"), [("Activation", "expiries"), ("Activation", "created_seq")])
def test_a_field_that_an_earlier_version_lacked_has_its_default(name: str, field: str) -> None:
    """Wherever it stands among the others, each must get its own value."""
    old = earlier(name, without=field)
    sample = {**plain(SAMPLES[name]), field: 0}
    datum = {"shard": 4, **sample}
    del datum[field]
    record = Codec(record_classes(), retired=[old]).decode(by_fastavro(old, datum))
    assert plain(record) == sample


def test_a_lacking_field_in_the_middle_moves_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fastavro gives defaults last, and values handed on in that order would all be one place off."""
    current = load_current("FailJob")
    fields = [dict(field, default=7) if field["name"] == "attempt" else field for field in current["fields"]]
    defaulting: Any = fastavro.parse_schema({"type": "record", "name": "relevo.FailJob", "fields": fields})
    monkeypatch.setattr(codec_module, "load_current", lambda name: defaulting)
    old = earlier("FailJob", without="attempt")
    datum = {"shard": 4, **plain(SAMPLES["FailJob"])}
    del datum["attempt"]
    record = Codec([cmd.FailJob], retired=[old]).decode(by_fastavro(old, datum))
    assert record == cmd.FailJob(KEY, SEQ, 7, "connection refused", 1_500, True)


def test_a_damaged_record_of_an_earlier_version_is_damaged() -> None:
    old = earlier("CreateJob")
    codec = Codec(record_classes(), retired=[old])
    value = by_fastavro(old, {"shard": 4, **plain(SAMPLES["CreateJob"])})
    for damaged in (value + b"x", *(value[:length] for length in range(HEADER_LENGTH, len(value)))):
        with pytest.raises(RecordError) as caught:
            codec.decode(damaged)
        assert caught.value.fault is RecordFault.DAMAGED


def test_an_earlier_schema_that_lacks_a_field_without_default_is_damage_not_a_crash() -> None:
    old = earlier("JobFailed", without="retry_at")
    datum = {"shard": 4, **plain(SAMPLES["JobFailed"])}
    del datum["retry_at"]
    with pytest.raises(RecordError) as caught:
        Codec(record_classes(), retired=[old]).decode(by_fastavro(old, datum))
    assert caught.value.fault is RecordFault.DAMAGED
