"""Prints each event of a cluster's log: python examples/read_job_log.py localhost:9092 relevo."""

from __future__ import annotations

import io
import sys
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition
from fastavro import schema, schemaless_reader

topic, schemas = f"{sys.argv[2]}.log", {}
for file in Path(__file__).parents[1].glob("schemas/relevo_schemas/avro/**/*.avsc"):
    parsed = schema.load_schema(str(file))
    schemas[schema.fingerprint(schema.to_parsing_canonical_form(parsed), "CRC-64-AVRO")] = file.stem, parsed
options = {"group.id": "log-reader", "isolation.level": "read_committed", "auto.offset.reset": "error"}
consumer = Consumer({"bootstrap.servers": sys.argv[1], **options})
partitions = consumer.list_topics(topic).topics[topic].partitions
consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
for message in iter(lambda: consumer.poll(5), None):  # ends when nothing has come for five seconds
    if message.error():
        raise KafkaException(message.error())
    kind, written_as = schemas[(value := message.value() or b"")[2:10].hex()]
    print(message.offset(), kind, schemaless_reader(io.BytesIO(value[10:]), written_as, None))
