"""The mirror's records and registry calls, beside those of Confluent's own client.

`GOLDEN_FILE` was written by Confluent's `AvroSerializer`, and its `AvroDeserializer` has read what we write.
To make it anew: ``pip install 'confluent-kafka[avro]' orjson`` into an environment of its own, and there
``PYTHONPATH=.:schemas:partitions:engine:workers python -m tests.contract.test_confluent_wire``.
"""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

from relevo.events.event_choice import KINDS
from relevo.events.mirror import wire_value
from relevo.events.registry import SchemaRegistry
from relevo_schemas.files import load_current
from relevo_schemas.job import JobSpec
from relevo_schemas.records import Event, Record
from tests.contract.samples import SAMPLES
from tests.support.schema_registry import SchemaRegistryServer, decode

GOLDEN_FILE = Path(__file__).parent / "golden_confluent.json"
TOPIC = "orders/open"
EVENTS = {name: sample for name, sample in SAMPLES.items() if isinstance(sample, Event) and name in KINDS}


def golden() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(GOLDEN_FILE.read_text())
    return found


def schema_text(name: str) -> str:
    """As the mirror registers it."""
    return (resources.files("relevo_schemas") / "avro" / f"{name}.avsc").read_text()


def fields_of(record: Record | JobSpec) -> dict[str, Any]:
    """As plain Avro has them."""
    name = "JobSpec" if isinstance(record, JobSpec) else type(record).__name__
    values = {field["name"]: getattr(record, field["name"]) for field in load_current(name)["fields"]}
    return {name: fields_of(value) if isinstance(value, JobSpec) else value for name, value in values.items()}


def test_every_kind_of_event_has_its_bytes_here() -> None:
    assert EVENTS.keys() == KINDS == golden()["records"].keys()


def test_our_records_are_those_of_confluents_serializer_byte_by_byte() -> None:
    for name, event in EVENTS.items():
        theirs = golden()["records"][name]
        assert wire_value(theirs["id"], event).hex() == theirs["value"], name


def test_our_registry_calls_are_those_of_confluents_client() -> None:
    """A registry takes the same schema under the same subject, and so gives the same id."""
    with SchemaRegistryServer() as registry:
        ours = SchemaRegistry(registry.url)
        for name in EVENTS:
            ours.register(f"{TOPIC}-relevo.{name}", schema_text(name))
            path, body = registry.posted[-1]
            theirs = golden()["records"][name]
            assert path == theirs["path"].partition("?")[0]
            assert {**body, "references": []} == {**theirs["body"], "schema": schema_text(name)}


def test_our_decoder_reads_what_confluents_serializer_wrote() -> None:
    with SchemaRegistryServer() as registry:
        for name, event in EVENTS.items():
            theirs = golden()["records"][name]
            registry.schemas[theirs["id"]] = schema_text(name)
            assert decode(registry.url, bytes.fromhex(theirs["value"])) == (
                f"relevo.{name}",
                fields_of(event),
            )


def make() -> None:
    """Write the file, and have Confluent's client read our records."""
    from confluent_kafka.schema_registry import SchemaRegistryClient, topic_record_subject_name_strategy
    from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    context = SerializationContext(TOPIC, MessageField.VALUE)
    records = {}
    with SchemaRegistryServer() as registry:
        client: Any = SchemaRegistryClient({"url": registry.url})
        for name, event in EVENTS.items():
            options = {"subject.name.strategy": topic_record_subject_name_strategy}
            write: Any = AvroSerializer(client, schema_text(name), conf=options)
            value = write(fields_of(event), context)
            path, body = registry.posted[-1]
            assert json.loads(body.pop("schema")) == json.loads(schema_text(name))
            number = registry.subjects[f"{TOPIC}-relevo.{name}"]
            records[name] = {"id": number, "path": path, "body": body, "value": value.hex()}
        for name, event in EVENTS.items():
            # Another client, that knows no schema yet.
            read: Any = AvroDeserializer(SchemaRegistryClient({"url": registry.url}))
            assert read(wire_value(records[name]["id"], event), context) == fields_of(event), name
    GOLDEN_FILE.write_text(json.dumps({"records": records}, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    make()
