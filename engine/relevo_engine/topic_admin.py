"""Asks Kafka how the cluster's topics are, makes them, and refuses those that are unsafe."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined] # its stubs re-export without saying so
    AdminClient,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
    TopicMetadata,
)

from relevo_engine.errors import TopicsError, UnreachableError
from relevo_engine.topics import (
    BROKERS_SAFE,
    NAME,
    NAME_RULE,
    Finding,
    TopicFacts,
    TopicPlan,
    activations_prefix,
    activations_topic,
    judge,
    log_topic,
    own_topics,
    plan,
)
from relevo_partitions.kafka.connection import Connection, Faults
from relevo_partitions.kafka.offsets import ask_offsets
from relevo_partitions.ports import Stability

TIMEOUT_S: Final = 10.0
_LOOK_S: Final = 0.02
_SETTINGS: Final = (
    "cleanup.policy",
    "max.message.bytes",
    "min.insync.replicas",
    "retention.bytes",
    "retention.ms",
    "unclean.leader.election.enable",
)
_UNREACHABLE: Final = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_CONTROLLER,
    }
)


@dataclass(frozen=True, slots=True)
class Overview:
    """The brokers, and the topics of one cluster."""

    brokers: int
    topics: Mapping[str, TopicFacts]


class TopicAdmin:
    """The topics of one cluster. Thread-safe.

    Args:
        kafka: Bootstrap address.
        cluster: Name of the cluster.
        options: More options for the Kafka client.

    Raises:
        ValueError: No cluster can be called so, or an option is one that Relevo sets itself, or none of
            librdkafka's.
    """

    def __init__(self, kafka: str, cluster: str, options: Mapping[str, str] | None = None) -> None:
        if not NAME.match(cluster):
            raise ValueError(f"the cluster's name {cluster!r} {NAME_RULE}")
        self.kafka = kafka
        self.cluster = cluster
        connection = Connection(kafka, options)
        try:
            self._client = AdminClient(connection.settings(Faults(), {}))
        except KafkaException as error:
            raise ValueError(f"kafka_options: {connection.redact(error.args[0].str())}") from None

    def overview(self, timeout_s: float = TIMEOUT_S) -> Overview:
        """How the cluster's topics are now.

        Raises:
            UnreachableError: Kafka didn't answer.
        """
        with _reach(self.kafka):
            metadata = self._client.list_topics(timeout=timeout_s)
        names = set(own_topics(self.cluster))
        prefix = activations_prefix(self.cluster)
        found = {
            name: topic
            for name, topic in metadata.topics.items()
            if topic.error is None and (name in names or name.startswith(prefix))
        }
        configs = self._configs(sorted(found), timeout_s)
        facts = {}
        for name, topic in found.items():
            copies = min((len(part.replicas) for part in topic.partitions.values()), default=0)
            facts[name] = TopicFacts(name, len(topic.partitions), copies, configs.get(name, {}))
        return Overview(len(metadata.brokers), facts)

    def slots(self, timeout_s: float = TIMEOUT_S) -> dict[str, int]:
        """The partition count of each activation topic, by job type.

        Raises:
            UnreachableError: Kafka didn't answer.
        """
        with _reach(self.kafka):
            metadata = self._client.list_topics(timeout=timeout_s)
        prefix = activations_prefix(self.cluster)
        return {
            name.removeprefix(prefix): len(topic.partitions)
            for name, topic in metadata.topics.items()
            if name.startswith(prefix) and topic.error is None and topic.partitions
        }

    def stability(
        self, places: Collection[tuple[str, int]], timeout_s: float = TIMEOUT_S
    ) -> dict[tuple[str, int], Stability]:
        """Up to where each partition can be read, and where it ends; without those that Kafka can't tell now.

        Args:
            places: Topic and number of each.
            timeout_s: For each of two questions, in seconds.

        Raises:
            UnreachableError: Kafka didn't answer.
        """
        # In this order: what is committed in between can't look as if it couldn't be read for long.
        stable = self._ends(places, IsolationLevel.READ_COMMITTED, timeout_s)
        ends = self._ends(places, IsolationLevel.READ_UNCOMMITTED, timeout_s)
        return {place: Stability(stable[place], ends[place]) for place in stable.keys() & ends.keys()}

    def _ends(
        self, places: Collection[tuple[str, int]], isolation: IsolationLevel, timeout_s: float
    ) -> dict[tuple[str, int], int]:
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        wanted = {TopicPartition(topic, number): latest for topic, number in places}
        found = {}
        with _reach(self.kafka):
            for where, answer in ask_offsets(self._client, wanted, timeout_s, isolation).items():
                if not isinstance(answer, KafkaError):
                    found[where.topic, where.partition] = answer
                elif answer.code() in _UNREACHABLE:
                    raise KafkaException(answer)
                # Else its leader is changing, or the topic is going: no reason to say nothing of the others.
        return found

    def create(self, plans: Iterable[TopicPlan], timeout_s: float = TIMEOUT_S) -> list[str]:
        """Makes topics, and waits until they are known; one that exists already is left as it is.

        Returns:
            The names of those that were made.

        Raises:
            TopicsError: Kafka refused one, and why.
            UnreachableError: Kafka didn't answer.
        """
        wanted = [
            NewTopic(each.name, each.partitions, each.replication, config=dict(each.config)) for each in plans
        ]
        if not wanted:
            return []
        with _reach(self.kafka):
            futures = self._client.create_topics(
                wanted, operation_timeout=timeout_s, request_timeout=timeout_s
            )
        made = [name for name, future in futures.items() if self._was_made(name, future, timeout_s)]
        # Those too that were there: somebody else may have made them only just now.
        self._await_known(list(futures), timeout_s)
        return made

    def init(
        self, partitions: int, types: Iterable[str] = (), *, allow_unsafe: bool, timeout_s: float = TIMEOUT_S
    ) -> list[str]:
        """Makes the cluster's topics and those of job types, as far as they are missing.

        Returns:
            The names of those that were made.

        Raises:
            TopicsError: There are too few brokers to keep records safe and `allow_unsafe` is false, or
                Kafka refused.
            UnreachableError: Kafka didn't answer.
        """
        overview = self.overview(timeout_s)
        names = [*own_topics(self.cluster), *(activations_topic(self.cluster, each) for each in types)]
        missing = [name for name in names if name not in overview.topics]
        if missing and overview.brokers < BROKERS_SAFE and not allow_unsafe:
            raise TopicsError(
                f"Kafka at {self.kafka} has {overview.brokers} broker(s), and a record is safe only"
                f" on {BROKERS_SAFE}. Run so many, or pass --allow-unsafe-topics for a throw-away cluster."
            )
        return self.create(
            [plan(self.cluster, name, partitions, overview.brokers) for name in missing], timeout_s
        )

    def create_type(self, job_type: str, partitions: int) -> None:
        """Makes the topic of a job type, if it is missing, with as many copies as the log has.

        Raises:
            TopicsError: Kafka refused.
            UnreachableError: Kafka didn't answer.
        """
        log = log_topic(self.cluster)
        with _reach(self.kafka):
            found = self._client.list_topics(log, timeout=TIMEOUT_S).topics[log]
        if found.error is not None or not found.partitions:
            raise UnreachableError(f"Kafka at {self.kafka} doesn't know the topic {log} yet: {found.error}")
        # Not as many as brokers are alive: one that is down now must not make the topic unsafe for ever.
        copies = max(len(part.replicas) for part in found.partitions.values())
        self.create([plan(self.cluster, activations_topic(self.cluster, job_type), partitions, copies)])

    def check(
        self, partitions: int, *, just_made: bool = False, timeout_s: float = TIMEOUT_S
    ) -> list[Finding]:
        """What is wrong with the cluster's topics.

        Args:
            partitions: How many the cluster has.
            just_made: They were made a moment ago. Any broker may answer, and each learns of a topic in its
                own time, so one that isn't there is looked for again.
            timeout_s: The longest wait for an answer, and for such a topic.

        Raises:
            UnreachableError: Kafka didn't answer.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            overview = self.overview(timeout_s)
            findings = judge(
                self.cluster, overview.topics, partitions, kafka=self.kafka, brokers=overview.brokers
            )
            absent = any(each.is_absence for each in findings)
            if not (just_made and absent) or time.monotonic() > deadline:
                return findings
            time.sleep(_LOOK_S)

    def _was_made(self, name: str, future: Future[None], timeout_s: float) -> bool:
        try:
            with _reach(self.kafka):
                future.result(timeout_s + 5)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return False
            raise TopicsError(f"Kafka would not make the topic {name}: {error.args[0].str()}") from error
        return True

    def _await_known(self, names: list[str], timeout_s: float) -> None:
        """Return once each has its leaders: Kafka answers that it was made before its brokers know it."""
        deadline = time.monotonic() + timeout_s
        while names:
            with _reach(self.kafka):
                topics = self._client.list_topics(timeout=timeout_s).topics
            names = [name for name in names if name not in topics or not _is_led(topics[name])]
            if names and time.monotonic() > deadline:
                raise TopicsError(
                    f"Kafka at {self.kafka} has {', '.join(names)}, but after {timeout_s:g} s its"
                    " brokers don't lead them yet"
                )
            if names:
                time.sleep(_LOOK_S)

    def _configs(self, names: list[str], timeout_s: float) -> dict[str, dict[str, str]]:
        if not names:
            return {}
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        found: dict[str, dict[str, str]] = {}
        with _reach(self.kafka):
            futures = self._client.describe_configs(resources, request_timeout=timeout_s)
        for resource, future in futures.items():
            try:
                with _reach(self.kafka):
                    entries: dict[str, ConfigEntry] = future.result(timeout_s + 5)
            except KafkaException as error:
                if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    continue  # deleted since
                raise TopicsError(
                    f"Kafka would not show the settings of {resource.name}: {error.args[0].str()}"
                ) from error
            values = {name: entries[name].value for name in _SETTINGS if name in entries}
            found[resource.name] = {name: value for name, value in values.items() if value is not None}
        return found


def _is_led(topic: TopicMetadata) -> bool:
    """Whether a topic is there with all that it takes to use it."""
    partitions = topic.partitions.values()
    return topic.error is None and bool(partitions) and all(each.leader >= 0 for each in partitions)


def require_safe(findings: Iterable[Finding], *, allow_unsafe: bool) -> list[Finding]:
    """Lets pass what may pass.

    Returns:
        The findings that were accepted, because ``allow_unsafe`` is true or because they hold up one job
        type only, or nothing: warn of each.

    Raises:
        TopicsError: The others, each with what to change.
    """
    findings = list(findings)
    refused = [
        each
        for each in findings
        if not (allow_unsafe and each.unsafe_only) and not each.type_only and not each.slow_only
    ]
    if not refused:
        return findings
    lines = "\n".join(f"  - {each}" for each in refused)
    hint = ""
    if all(each.unsafe_only for each in refused):
        hint = "\nFor a throw-away cluster pass --allow-unsafe-topics (RELEVO_ALLOW_UNSAFE_TOPICS=true)."
    raise TopicsError(f"the topics are not as they must be:\n{lines}{hint}")


class _reach:  # noqa: N801 - reads as a statement: with _reach(kafka)
    """Turns the errors of an unreachable Kafka into one that says so; lets others pass."""

    def __init__(self, kafka: str) -> None:
        self._kafka = kafka

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, KafkaException) and error.args[0].code() in _UNREACHABLE:
            raise UnreachableError(f"Kafka at {self._kafka} did not answer: {error.args[0].str()}") from error
        if isinstance(error, TimeoutError):
            raise UnreachableError(f"Kafka at {self._kafka} did not answer in time") from error
