"""The cluster's topics: what they are called, how they must be set, and what is wrong with those that exist.

Pure: facts come in, findings go out. `topic_admin` asks Kafka for the facts and makes topics.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}\Z")
"""What clusters and nodes may be called: it becomes part of topics' names, and of paths in ZooKeeper."""
NAME_RULE: Final = "must be 1 to 100 letters, digits, '_' or '-', and begin with a letter or digit"
BROKERS_SAFE: Final = 3
"""Brokers from which on a record survives the loss of one."""
IN_SYNC_SAFE: Final = 2
BATCH_BYTES: Final = 1_200_000
"""What topics are made to take: a record of 1,000,000 bytes, and what an event and a batch add."""
BATCH_BYTES_MIN: Final = 1_048_576
_RETENTION_ACTIVATIONS_MS: Final = 7 * 24 * 3600 * 1000
_FOREVER: Final = -1
_COMPACTED: Final = {
    "cleanup.policy": "compact",
    # Kafka never clears away what stands in the newest segment; of the usual size, one would hold all.
    "segment.bytes": str(64 * 1024 * 1024),
    "min.cleanable.dirty.ratio": "0.1",
}


def commands_topic(cluster: str) -> str:
    """What clients and workers ask for."""
    return f"{cluster}.commands"


def log_topic(cluster: str) -> str:
    """What happened."""
    return f"{cluster}.log"


def snapshots_topic(cluster: str) -> str:
    """Copies of what the log has led to, for nodes that start cold."""
    return f"{cluster}.snapshots"


def engine_group(cluster: str) -> str:
    """Where leaders publish how far they have decided the commands; nobody joins it."""
    return f"{cluster}.engine"


def activations_topic(cluster: str, job_type: str) -> str:
    """What workers of a type are to do."""
    return activations_prefix(cluster) + job_type


def activations_prefix(cluster: str) -> str:
    """What the names of all activation topics begin with."""
    return f"{cluster}.activations."


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """How a topic is to be made."""

    name: str
    partitions: int
    replication: int
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """How a topic is.

    Attributes:
        name: The topic.
        partitions: How many it has.
        replication: Copies of its least copied partition.
        config: Settings in effect, by Kafka's names; those that couldn't be read are missing.
    """

    name: str
    partitions: int
    replication: int
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that isn't as it must be.

    Attributes:
        topic: The topic.
        setting: Kafka's name of the setting, or ``partitions``, ``replication``, ``existence``.
        found: What it is.
        wanted: What it must be.
        why: What goes wrong otherwise.
        remedy: A command, or what to do.
        unsafe_only: Records may be lost, but the engine can work: `allow_unsafe_topics` accepts it.
        slow_only: Nothing is lost and nodes work, but less well.
    """

    topic: str
    setting: str
    found: str
    wanted: str
    why: str
    remedy: str
    unsafe_only: bool
    slow_only: bool = False

    @property
    def is_absence(self) -> bool:
        """Whether the topic isn't there at all."""
        return self.setting == "existence"

    @property
    def type_only(self) -> bool:
        """Whether it holds up one job type and nothing else."""
        return ".activations." in self.topic and not self.unsafe_only

    def __str__(self) -> str:
        what = f"{self.topic}: {self.setting} is {self.found}, must be {self.wanted}"
        return f"{what}: {self.why}.\n      {self.remedy}"


def own_topics(cluster: str) -> tuple[str, ...]:
    """The topics that exist once per cluster."""
    return commands_topic(cluster), log_topic(cluster), snapshots_topic(cluster)


def plan(cluster: str, name: str, partitions: int, brokers: int) -> TopicPlan:
    """How a topic of the cluster is made where ``brokers`` brokers are alive."""
    replication = min(brokers, BROKERS_SAFE)
    retention = _RETENTION_ACTIVATIONS_MS if name.startswith(activations_prefix(cluster)) else _FOREVER
    config = {
        "cleanup.policy": "delete",
        "retention.ms": str(retention),
        "retention.bytes": str(_FOREVER),
        "min.insync.replicas": str(min(replication, IN_SYNC_SAFE)),
        "unclean.leader.election.enable": "false",
        "max.message.bytes": str(BATCH_BYTES),
    }
    if name == snapshots_topic(cluster):
        config |= _COMPACTED
    return TopicPlan(name, partitions, replication, config)


def judge(
    cluster: str, facts: Mapping[str, TopicFacts], partitions: int, *, kafka: str, brokers: int
) -> list[Finding]:
    """Everything that is wrong with the cluster's topics.

    Args:
        cluster: Name of the cluster.
        facts: The topics of the cluster that exist, by name.
        partitions: How many the cluster has.
        kafka: Bootstrap address, for the commands in the remedies.
        brokers: How many are alive.
    """
    findings: list[Finding] = []
    for name in own_topics(cluster):
        if name not in facts:
            remedy = f"relevo topics init --cluster {cluster} --kafka {kafka} --partitions {partitions}"
            slow_only = name == snapshots_topic(cluster)
            why = "nothing works without it"
            if slow_only:
                why = "without it every start reads the whole log, and nothing of that can be deleted"
            findings.append(Finding(name, "existence", "missing", "there", why, remedy, False, slow_only))
    for name in sorted(facts):
        is_activations = name.startswith(activations_prefix(cluster))
        judged = _Judge(facts[name], kafka)
        if name == snapshots_topic(cluster):
            findings += judged.compaction()
        else:
            findings += judged.retention(_RETENTION_ACTIVATIONS_MS if is_activations else _FOREVER)
        findings += judged.partitions(partitions, multiple=is_activations)
        findings += judged.copies(brokers)
        findings += judged.size()
    return findings


class _Judge:
    """Looks at one topic."""

    def __init__(self, topic: TopicFacts, kafka: str) -> None:
        self._topic = topic
        self._kafka = kafka

    def partitions(self, count: int, *, multiple: bool) -> Iterable[Finding]:
        topic = self._topic
        if topic.partitions == count or (multiple and topic.partitions % count == 0):
            return
        wanted = f"a multiple of {count}" if multiple else str(count)
        if multiple:
            more = count * -(-topic.partitions // count)
            remedy = (
                f"kafka-topics.sh --bootstrap-server {self._kafka} --alter --topic {topic.name}"
                f" --partitions {more}"
            )
        else:
            remedy = (
                f"Set partitions = {topic.partitions} (RELEVO_PARTITIONS) if the topic is right, else use"
                " another --cluster name. Never change the count of a topic that is in use."
            )
        why = "keys would be looked for in the wrong partition"
        yield Finding(topic.name, "partitions", str(topic.partitions), wanted, why, remedy, False)

    def copies(self, brokers: int) -> Iterable[Finding]:
        topic = self._topic
        if topic.replication < BROKERS_SAFE:
            remedy = f"Only {brokers} broker(s) are alive: run three, then give the topic three copies."
            if brokers >= BROKERS_SAFE:
                remedy = (
                    f"kafka-reassign-partitions.sh --bootstrap-server {self._kafka} --execute"
                    " --reassignment-json-file FILE (FILE lists three brokers for each partition)"
                )
            why = "losing one broker can lose jobs"
            wanted = f"at least {BROKERS_SAFE}"
            yield Finding(topic.name, "replication", str(topic.replication), wanted, why, remedy, True)
        in_sync = self._number("min.insync.replicas")
        if in_sync is not None and in_sync < IN_SYNC_SAFE:
            why = "a record acknowledged by one broker dies with it"
            yield self._wrong(
                "min.insync.replicas", IN_SYNC_SAFE, f"at least {IN_SYNC_SAFE}", why, unsafe_only=True
            )
        elif in_sync is not None and in_sync > topic.replication:
            wanted = f"at most {topic.replication}, the number of copies"
            value = min(IN_SYNC_SAFE, topic.replication)
            yield self._wrong(
                "min.insync.replicas", value, wanted, "nothing could be written", unsafe_only=False
            )
        if topic.config.get("unclean.leader.election.enable", "false") != "false":
            why = "a broker that fell behind could take over and drop records"
            yield self._wrong("unclean.leader.election.enable", "false", "false", why, unsafe_only=True)

    def retention(self, least_ms: int) -> Iterable[Finding]:
        if self._topic.config.get("cleanup.policy", "delete") != "delete":
            why = "compaction removes records that are still needed"
            yield self._wrong("cleanup.policy", "delete", "delete", why, unsafe_only=False)
        why = "Kafka would delete records that are still needed"
        retention = self._number("retention.ms")
        if retention not in (None, _FOREVER) and (least_ms == _FOREVER or int(retention or 0) < least_ms):
            wanted = f"{_FOREVER} (for ever)" if least_ms == _FOREVER else f"at least {least_ms} (7 days)"
            yield self._wrong("retention.ms", least_ms, wanted, why, unsafe_only=True)
        if self._number("retention.bytes") not in (None, _FOREVER):
            yield self._wrong("retention.bytes", _FOREVER, f"{_FOREVER} (no bound)", why, unsafe_only=True)

    def compaction(self) -> Iterable[Finding]:
        if self._topic.config.get("cleanup.policy", "compact") != "compact":
            why = "snapshots would be deleted by their age, or never cleared away"
            yield self._wrong("cleanup.policy", "compact", "compact", why, unsafe_only=False)

    def size(self) -> Iterable[Finding]:
        size = self._number("max.message.bytes")
        if size is not None and size < BATCH_BYTES_MIN:
            why = "a large job would stop its partition"
            wanted = f"at least {BATCH_BYTES_MIN}"
            yield self._wrong("max.message.bytes", BATCH_BYTES, wanted, why, unsafe_only=False)

    def _number(self, name: str) -> int | None:
        value = self._topic.config.get(name)
        return int(value) if value is not None else None

    def _wrong(self, name: str, value: object, wanted: str, why: str, *, unsafe_only: bool) -> Finding:
        remedy = (
            f"kafka-configs.sh --bootstrap-server {self._kafka} --alter --entity-type topics"
            f" --entity-name {self._topic.name} --add-config {name}={value}"
        )
        found = self._topic.config[name]
        return Finding(self._topic.name, name, found, wanted, why, remedy, unsafe_only)
