"""What a worker's consumer is told: chosen on purpose, and explained in docs/worker-guide.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException

from relevo.errors import ConfigurationError, RelevoError
from relevo.kafka_options import bad_option, dotted, membership, options_for_consumer, the_protocol

POLL_INTERVAL_MS: Final = 120_000
POLL_INTERVAL_MAX_MS: Final = 86_400_000
"""The most that librdkafka takes."""

#: For what a hand-over does beside draining: a commit whose answer doesn't come, and asking for positions.
HAND_OVER_MS: Final = 70_000

#: What librdkafka reads ahead for a worker is thrown away whenever its partitions are paused, and held by
#: each job type of each process: little is enough, if it is fetched again without a pause.
READING: Final[Mapping[str, Any]] = {
    "queued.min.messages": 2_000,
    "queued.max.messages.kbytes": 8_192,
    "max.partition.fetch.bytes": 262_144,
    "fetch.queue.backoff.ms": 5,
    "fetch.wait.max.ms": 500,
}


def options_for_worker(
    bootstrap: str,
    options: Mapping[str, Any],
    group: str,
    drain_s: float,
    on_commit: Callable[..., None],
) -> dict[str, Any]:
    """The settings of a consumer of activations.

    Args:
        bootstrap: ``host:port``, several separated by commas.
        options: The user's librdkafka options.
        group: The consumer group.
        drain_s: How long a hand-over may wait for handlers, in seconds.
        on_commit: Told of commits.

    Raises:
        ConfigurationError: Options contradict each other, or what delivery rests on.
    """
    fixed = {"group.id": group, "auto.offset.reset": "error", "on_commit": on_commit}
    if the_protocol(options) == "classic":
        # With the others partitions come and go all at once, which needs other calls than ours.
        fixed["partition.assignment.strategy"] = "cooperative-sticky"
    defaults = {**membership(options), **READING, "max.poll.interval.ms": _poll_interval_ms(options, drain_s)}
    defaults = {name: value for name, value in defaults.items() if name not in fixed}
    # A topic that is made, or gets partitions, while we run.
    defaults["topic.metadata.refresh.interval.ms"] = 5_000
    return options_for_consumer(bootstrap, options, fixed, **defaults)


def _poll_interval_ms(options: Mapping[str, Any], drain_s: float) -> int:
    """Within it partitions that are revoked must be drained: nothing is polled meanwhile."""
    chosen = dotted(options)
    given = _number(chosen, "max.poll.interval.ms")
    session = _number(chosen, "session.timeout.ms") or 0
    if given is not None and given <= drain_s * 1_000:
        raise ConfigurationError(
            f"max.poll.interval.ms is {given}, and handlers may run on for {drain_s:g} s when a partition is "
            f"revoked (drain): it must be longer, or the group puts this worker out in the middle"
        )
    least = max(POLL_INTERVAL_MS, session, drain_s * 1_000 + HAND_OVER_MS)
    return int(min(least, POLL_INTERVAL_MAX_MS))


def _number(chosen: Mapping[str, Any], name: str) -> int | None:
    try:
        return int(chosen[name]) if name in chosen else None
    except (TypeError, ValueError):
        raise ConfigurationError(f"{name} must be a number of milliseconds, not {chosen[name]!r}") from None


def check_options(bootstrap: str, options: Mapping[str, Any], drain_s: float) -> None:
    """Do nothing if a worker can be made with these.

    Raises:
        ConfigurationError: It can't.
    """
    make_consumer(options_for_worker(bootstrap, options, "check", drain_s, lambda *about: None)).close()


def make_consumer(config: dict[str, Any]) -> Consumer:
    """A consumer.

    Raises:
        ConfigurationError: librdkafka doesn't take its settings.
    """
    try:
        return Consumer(config)
    except KafkaException as error:
        raise bad_option(error) from None


def put_out(group: str, instance: str | None, error: KafkaError) -> RelevoError:
    """Why a worker can't stay in its group."""
    if instance:
        return ConfigurationError(
            f"{group} has no place for this process as group.instance.id {instance!r}: {error.str()}. "
            f"Each process needs its own; the id of one that was killed is free when its session has ended"
        )
    return RelevoError(f"{group} has put this process out: {error.str()}")
