"""`verify_log`: from a cluster's name to a report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from relevo_engine.topics import commands_topic, log_topic
from relevo_engine.verify.checks import LogRecord, LogVerifier
from relevo_engine.verify.reader import Bounds, TopicReader
from relevo_engine.verify.report import VerifyReport
from relevo_engine.verify.stories import Remembered
from relevo_schemas import codec
from relevo_schemas.commands import CreateJob
from relevo_schemas.errors import RecordError

Progress = Callable[[int, int], None]
"""Told how many offsets were read, and how many there are."""


def verify_log(
    kafka: str,
    cluster: str,
    *,
    kafka_options: Mapping[str, str] | None = None,
    partitions: Iterable[int] | None = None,
    expected_keys: Iterable[str] | None = None,
    remembered: Remembered | None = None,
    progress: Progress | None = None,
) -> VerifyReport:
    """Read the job log of a cluster up to its end as of now, and check all that it promises.

    Needs Kafka and nothing else: the nodes and ZooKeeper may be down, or at work. What is written meanwhile
    isn't read. Memory doesn't grow with the log; about 40 bytes per job go to a temporary file.

    Args:
        kafka: Bootstrap address, ``host:port[,host:port…]``.
        cluster: Name of the cluster.
        kafka_options: More librdkafka options.
        partitions: Those to be read; None: all.
        expected_keys: Keys of jobs that Kafka acknowledged: each must be on the log, or still wait in the
            commands topic. Iterated once, in small pieces, after the log was read.
        remembered: The cluster's ``finished_window_s`` and ``finished_count_max``, where they were changed.
        progress: Told now and then how far it is.

    Raises:
        UnreachableError: Kafka doesn't answer.
        TopicsError: There is no such cluster.
        SettingsError: There is no such partition, or an option isn't allowed.
        VerifyError: There is no room for the temporary file, or the log was trimmed while it was read.
    """
    log = log_topic(cluster)
    chosen = set(partitions) if partitions is not None else None
    reader = TopicReader(kafka, kafka_options)
    count, bounds = reader.bounds(log, chosen)
    with LogVerifier(log, count, remembered=remembered) as verifier:
        for number, each in bounds.items():
            verifier.begin(number, each.start, each.end, each.high)
        _read_log(reader, log, bounds, verifier, progress)
        if expected_keys is not None:
            _read_undecided(reader, commands_topic(cluster), bounds, verifier)
            verifier.expect(expected_keys)
        return verifier.report()


def _read_log(
    reader: TopicReader,
    topic: str,
    bounds: Mapping[int, Bounds],
    verifier: LogVerifier,
    progress: Progress | None,
) -> None:
    total = sum(each.end - each.start for each in bounds.values())
    reached = {number: each.start for number, each in bounds.items()}
    for batch in reader.read(topic, {number: (each.start, each.end) for number, each in bounds.items()}):
        verifier.take([each for each in batch if isinstance(each, LogRecord)])
        for each in batch:
            if not isinstance(each, LogRecord):
                verifier.fault(each.partition, each.offset, each.fault)
            reached[each.partition] = max(reached[each.partition], each.offset + 1)
        if progress is not None:
            progress(sum(reached.values()) - sum(each.start for each in bounds.values()), total)
    if progress is not None:
        progress(total, total)


def _read_undecided(
    reader: TopicReader, topic: str, log: Mapping[int, Bounds], verifier: LogVerifier
) -> None:
    """Find the jobs whose creation the engine hasn't come to yet."""
    _, bounds = reader.bounds(topic, log.keys())
    spans = {
        number: (max(verifier.position(number), each.start), each.end) for number, each in bounds.items()
    }
    for batch in reader.read(topic, spans):
        created: dict[int, set[str]] = {}
        for each in batch:
            if isinstance(each, LogRecord) and codec.default_codec().kind_of(each.value) is CreateJob:
                try:
                    record = codec.decode(each.value)
                except RecordError:
                    continue  # the engine will refuse it: it creates no job
                if isinstance(record, CreateJob):
                    created.setdefault(each.partition, set()).add(record.job.key)
        for number, keys in created.items():
            verifier.pending(number, keys)
