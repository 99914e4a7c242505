"""Measuring a cluster that somebody uses: bounded, told beforehand, cleaned up as far as possible."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import relevo
from relevo import names
from relevo.errors import ClusterNotFound, Unreachable
from relevo.testing.bench.child import ChildError
from relevo.testing.bench.crew import Crew, Load
from relevo.testing.bench.timing import medians, rate_summary

TYPE: Final = "relevo-bench"
EXPIRES_S: Final = 900.0
"""After so long, whatever an interruption left open ends by itself."""
_TOPIC_S: Final = 20.0
_REPLY_S: Final = 10.0
_RECORD_BYTES: Final = 120
"""About what a record has besides the job's variables."""


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Attributes:
        kafka: Bootstrap servers.
        cluster: The cluster's name.
        jobs: Jobs of one run at full speed.
        size: Bytes of each job's variables.
        rounds: Repeats of which the median counts, after a warm-up of a quarter of a run.
        rates: Jobs per second offered, for latencies.
        seconds: For how long each.
        workers: Worker processes.
        concurrency: Handlers at once in each.
        dedup: ``none``, ``memory`` or a store's address.
        options: More librdkafka options.
    """

    kafka: str
    cluster: str
    jobs: int = 20_000
    size: int = 200
    rounds: int = 3
    rates: Sequence[float] = (50, 500)
    seconds: float = 20.0
    workers: int = 2
    concurrency: int = 100
    dedup: str = "memory"
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def warm(self) -> int:
        """Jobs before the first measured run."""
        return max(1, self.jobs // 4)

    @property
    def total(self) -> int:
        """All jobs that it creates, one that makes the topic included."""
        # Each crew warms up; a rate has two seconds of warm-up.
        paced = sum(round(rate * (self.seconds + 2)) for rate in self.rates)
        return 1 + self.warm * 2 + self.jobs * self.rounds + paced

    def writes(self) -> list[str]:
        """What it does to the cluster, for whoever has to agree."""
        whole = self.total * (3 * self.size + 5 * _RECORD_BYTES) / 1e6
        return [
            f"{self.total:,} jobs of type {TYPE} in cluster {self.cluster} at {self.kafka}, about "
            f"{whole:,.0f} MB of records before compression and replication",
            f"topic {names.activations_topic(self.cluster, TYPE)}, if it isn't there yet (it stays)",
            f"consumer group {names.workers_group(self.cluster, TYPE)} (taken away afterwards)",
            "records in the topics of commands and events, which stay for their retention; keys of finished "
            "jobs are remembered as those of any job",
            f"an interruption leaves jobs that end by themselves (EXPIRED) within {EXPIRES_S / 60:g} minutes",
        ]


def measure(plan: Plan, folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Throughput and latency.

    Args:
        plan: What to measure.
        folder: For orders, logs and notes, readable by this user only.
        say: Told what happens.

    Raises:
        ChildError: The cluster doesn't do its jobs; the message says which.
        RelevoError: Kafka or the cluster can't be reached.
    """
    partitions = slots(plan)
    load = Load(
        plan.kafka, plan.cluster, partitions, TYPE, plan.workers, plan.concurrency, plan.dedup, EXPIRES_S,
        plan.options,
    )  # fmt: skip
    report: dict[str, Any] = {"partitions": partitions, "jobs": plan.jobs, "bytes": plan.size}
    with _left_behind(plan, say):
        with Crew(load, folder / "rate") as crew:
            say(f"warm-up: {plan.warm:,} jobs")
            crew.rate(plan.warm, plan.size)
            rates = []
            for number in range(plan.rounds):
                rates.append(crew.rate(plan.jobs, plan.size).per_s)
                say(f"throughput, round {number + 1} of {plan.rounds}: {rates[-1]:,.0f} jobs/s")
            report["throughput"] = rate_summary(rates)
        with Crew(load, folder / "latency", notes=True) as crew:
            crew.rate(plan.warm, plan.size)
            found = {}
            for rate in plan.rates:
                say(f"latency at {rate:g} jobs/s for {plan.seconds:g} s")
                each = crew.latency(rate, plan.seconds, plan.size)
                found[f"{rate:g}"] = {**medians([each["start"]]), "completed": medians([each["completed"]])}
            report["latency_ms"] = found
    return report


def slots(plan: Plan) -> int:
    """How many partitions the job type has; its topic is made by the engine, with a first job, if need be.

    Raises:
        ChildError: The engine doesn't make it.
    """
    topic = names.activations_topic(plan.cluster, TYPE)
    found = _partitions(plan, topic)
    if found:
        return found
    with relevo.Client(plan.kafka, plan.cluster, **plan.options) as client:
        client.create(TYPE, delay=0, expires_at=round((time.time() + EXPIRES_S) * 1000))
    deadline = time.monotonic() + _TOPIC_S
    while not (found := _partitions(plan, topic)):
        if time.monotonic() > deadline:
            raise ChildError(
                f"the engine has not made topic {topic} in {_TOPIC_S:g} s. Does the cluster run, and may it "
                f"make topics? Else make it yourself: relevo topics init --type {TYPE}"
            )
        time.sleep(0.2)
    return found


def _partitions(plan: Plan, topic: str) -> int:
    from confluent_kafka import KafkaException

    try:
        topics = _admin(plan).list_topics(timeout=_REPLY_S).topics
    except KafkaException as error:
        raise Unreachable(f"Kafka at {plan.kafka} doesn't answer: {error.args[0].str()}") from error
    if names.log_topic(plan.cluster) not in topics:
        raise ClusterNotFound(
            f"there is no cluster {plan.cluster!r} at {plan.kafka}: it has no topic "
            f"{names.log_topic(plan.cluster)}"
        )
    known = topics.get(topic)
    return len(known.partitions) if known is not None and known.error is None else 0


def _admin(plan: Plan) -> Any:
    from confluent_kafka.admin import AdminClient

    from relevo.kafka_options import options_for_producer

    return AdminClient(options_for_producer(plan.kafka, plan.options))


@contextlib.contextmanager
def _left_behind(plan: Plan, say: Callable[[str], None]) -> Iterator[None]:
    """Take away the consumer group afterwards."""
    from confluent_kafka import KafkaException

    try:
        yield
    finally:
        group = names.workers_group(plan.cluster, TYPE)
        admin = _admin(plan)  # kept until the answer is there: without its client none would come
        try:
            admin.delete_consumer_groups([group], request_timeout=_REPLY_S)[group].result(2 * _REPLY_S)
        except KafkaException as error:
            say(f"consumer group {group} could not be taken away: {error.args[0].str()}")
        except TimeoutError:
            say(f"consumer group {group} may still be there: Kafka didn't answer")
