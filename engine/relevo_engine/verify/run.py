"""`verify_log`: from a cluster's name to a report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

from relevo_engine.topics import commands_topic, log_topic
from relevo_engine.verify.checks import LogRecord, LogVerifier
from relevo_engine.verify.findings import VerifyError
from relevo_engine.verify.reader import Bounds, TopicReader, TrimmedError
from relevo_engine.verify.report import VerifyReport
from relevo_engine.verify.stories import Remembered
from relevo_schemas import codec
from relevo_schemas.commands import CreateJob
from relevo_schemas.errors import RecordError

ROUNDS_MAX: Final = 10
"""So often the commands are looked at again, where an engine deletes them meanwhile."""
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
    isn't read, but for what tells of commands that were deleted meanwhile. Memory doesn't grow with the log;
    about 40 bytes per job go to a temporary file.

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
        VerifyError: There is no room for the temporary file, or the log was trimmed while it was read, or the
            commands were so time and again.
    """
    log = log_topic(cluster)
    chosen = set(partitions) if partitions is not None else None
    reader = TopicReader(kafka, kafka_options)
    # Asked for before the log's end: that moves, and a cluster at work must never seem to have lost anything.
    witnesses = reader.witnesses(cluster, chosen)
    count, bounds = reader.bounds(log, chosen)
    with LogVerifier(log, count, remembered=remembered) as verifier:
        for number, each in bounds.items():
            verifier.begin(number, each.start, each.end, each.high, witnesses.of.get(number, ()))
        spans = {number: (each.start, each.end) for number, each in bounds.items()}
        damaged = _read_log(reader, log, spans, verifier, progress)
        ends = {number: each.end for number, each in bounds.items()}
        _look_for_the_tail(reader, log, bounds, ends, damaged, verifier)
        if expected_keys is not None:
            _read_undecided(reader, cluster, ends, damaged, verifier)
            verifier.expect(expected_keys)
        return replace(verifier.report(), unheard=witnesses.unheard)


def _read_log(
    reader: TopicReader,
    topic: str,
    spans: Mapping[int, tuple[int, int]],
    verifier: LogVerifier,
    progress: Progress | None = None,
) -> set[int]:
    """Check each partition from an offset up to another; those that can't be read, as a batch is damaged."""
    total = sum(end - start for start, end in spans.values())
    reached = {number: start for number, (start, _) in spans.items()}
    damaged = set()
    for batch in reader.read(topic, spans):
        verifier.take([each for each in batch if isinstance(each, LogRecord)])
        for each in batch:
            if not isinstance(each, LogRecord):
                verifier.fault(each.partition, each.offset, each.fault)
                damaged.add(each.partition)
            reached[each.partition] = max(reached[each.partition], each.offset + 1)
        if progress is not None:
            progress(sum(reached.values()) - sum(start for start, _ in spans.values()), total)
    if progress is not None:
        progress(total, total)
    return damaged


def _look_for_the_tail(
    reader: TopicReader,
    topic: str,
    bounds: Mapping[int, Bounds],
    ends: dict[int, int],
    damaged: set[int],
    verifier: LogVerifier,
) -> None:
    """Note where something is missing that is known to have been committed.

    It may stand behind a transaction that was open when the end was asked for: such a partition is read on,
    and where that transaction is still open nothing is said but that the log is held back.

    Args:
        reader: Reads.
        topic: The log.
        bounds: Of the partitions, as they were first asked for.
        ends: Up to where each was read; moves on.
        damaged: Partitions that can't be read on.
        verifier: Is told.
    """
    short = verifier.short() - damaged
    held = {number for number in short if bounds[number].end < bounds[number].high}
    if held:
        _read_on(reader, topic, held, ends, damaged, verifier)
        held = {number for number in held if ends[number] < bounds[number].high}
    verifier.truncated(short - held - damaged)


def _read_on(
    reader: TopicReader,
    topic: str,
    numbers: set[int],
    ends: dict[int, int],
    damaged: set[int],
    verifier: LogVerifier,
) -> None:
    """Read partitions of the log to where they end by now; ``ends`` moves on, ``damaged`` may grow."""
    _, grown = reader.bounds(topic, numbers)
    for number, each in grown.items():
        verifier.extend(number, each.end, each.high)
    spans = {number: (ends[number], each.end) for number, each in grown.items()}
    damaged |= _read_log(reader, topic, spans, verifier)
    ends |= {number: max(ends[number], each.end) for number, each in grown.items()}


def _read_undecided(
    reader: TopicReader, cluster: str, ends: dict[int, int], damaged: set[int], verifier: LogVerifier
) -> None:
    """Find the jobs whose creation the engine hasn't come to yet.

    An engine at work deletes commands whose outcome is on the log: those that are gone although the log was
    not read so far are spoken of further on in it.

    Args:
        reader: Reads.
        cluster: Name of the cluster.
        ends: Up to where each partition of the log was read; moves on.
        damaged: Partitions of the log that can't be read on.
        verifier: Is told.

    Raises:
        VerifyError: Commands are deleted faster than they can be read.
    """
    commands, log = commands_topic(cluster), log_topic(cluster)
    for _ in range(ROUNDS_MAX):
        _, bounds = reader.bounds(commands, ends.keys())
        behind = {n for n, each in bounds.items() if each.start > verifier.position(n)} - damaged
        if behind:
            # Asked for after the commands' start: it covers whatever was deleted by then.
            _read_on(reader, log, behind, ends, damaged, verifier)
        try:
            _read_commands(
                reader,
                commands,
                {n: (max(verifier.position(n), each.start), each.end) for n, each in bounds.items()},
                verifier,
            )
        except TrimmedError:
            continue
        return
    raise VerifyError(
        f"{commands} was trimmed {ROUNDS_MAX} times while it was read: run it again when less is going on"
    )


def _read_commands(
    reader: TopicReader, topic: str, spans: Mapping[int, tuple[int, int]], verifier: LogVerifier
) -> None:
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
