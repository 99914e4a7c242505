"""librdkafka settings: what users may choose, what delivery rests on, and callbacks that never raise."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, ParamSpec

from confluent_kafka import KafkaError, KafkaException

from relevo.errors import ClusterNotFound, ConfigurationError, Refused, Unreachable

_log: Final = logging.getLogger("relevo.kafka")
P = ParamSpec("P")

#: The names of librdkafka that contain an underscore; in all others it stands for a dot.
_UNDERSCORED: Final = frozenset(
    {
        "ssl_key",
        "ssl_certificate",
        "ssl_ca",
        "oauth_cb",
        "error_cb",
        "stats_cb",
        "throttle_cb",
        "log_cb",
        "on_delivery",
    }
)


def dotted(options: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments as librdkafka's names: ``sasl_username`` becomes ``sasl.username``."""
    return {
        name if name in _UNDERSCORED else name.replace("_", "."): value for name, value in options.items()
    }


def merge(
    bootstrap: str, defaults: Mapping[str, Any], fixed: Mapping[str, Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    """The settings of one client.

    Args:
        bootstrap: ``host:port``, several separated by commas.
        defaults: What the user may change.
        fixed: What delivery guarantees rest on.
        options: What the user chose, in librdkafka's names or with underscores.

    Raises:
        ConfigurationError: An option contradicts a fixed setting.
    """
    if not bootstrap.strip():
        raise ConfigurationError("bootstrap must name a broker, such as 'localhost:9092'")
    chosen = dotted(options)
    for name, value in chosen.items():
        if name == "bootstrap.servers":
            raise ConfigurationError("bootstrap.servers is the first argument, not an option")
        if name in fixed and str(value).lower() != str(fixed[name]).lower():
            raise ConfigurationError(
                f"{name} is {fixed[name]!r} here and can't be {value!r}: delivery rests on it"
            )
    for name in ("stats_cb", "throttle_cb", "log_cb"):
        if name in chosen:
            chosen[name] = guarded(chosen[name])
    return {
        "bootstrap.servers": bootstrap,
        "client.id": "relevo",
        # Broker addresses of a name are tried one by one; a dead first one must not cost a minute.
        "socket.connection.setup.timeout.ms": 5_000,
        "reconnect.backoff.max.ms": 2_000,
        **defaults,
        **chosen,
        **fixed,
        "logger": chosen.get("logger", _rdkafka_log),
        "error_cb": guarded(chosen.get("error_cb", _note_error)),
    }


def options_for_producer(bootstrap: str, options: Mapping[str, Any], **defaults: Any) -> dict[str, Any]:
    """Settings of a producer of commands; the fixed ones keep a key's commands in order, in one partition."""
    fixed = {"enable.idempotence": True, "acks": "all", "partitioner": "murmur2"}
    # An unknown topic is an error soon; what is on its way to a topic of ours has been there for long.
    defaults.setdefault("topic_metadata_propagation_max_ms", 2_000)
    # Under load a quarter of the bytes (48 for 176 of a small command), on the wire and on every replica's
    # disk; a batch that gets no smaller goes as it is.
    defaults.setdefault("compression_type", "lz4")
    return merge(bootstrap, dotted(defaults), fixed, _without(options, _CONSUMER_ONLY))


def options_for_consumer(
    bootstrap: str, options: Mapping[str, Any], fixed: Mapping[str, Any], **defaults: Any
) -> dict[str, Any]:
    """Settings of a consumer that sees committed records only, and commits nothing by itself."""
    always = {
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "isolation.level": "read_committed",
    }
    the_protocol(options)
    return merge(bootstrap, dotted(defaults), {**always, **fixed}, _without(options, _PRODUCER_ONLY))


def the_protocol(options: Mapping[str, Any]) -> str:
    """How the members of a group agree: ``classic``, or ``consumer`` (KIP-848).

    Raises:
        ConfigurationError: An option belongs to the other protocol, or there is no such protocol.
    """
    chosen = dotted(options)
    protocol = str(chosen.get("group.protocol", "classic")).lower()
    if protocol not in ("classic", "consumer"):
        raise ConfigurationError(f"group.protocol {protocol!r}: it is 'classic' or 'consumer'")
    for name, instead in _OF_THE_OTHER[protocol].items():
        if name in chosen:
            raise ConfigurationError(f"{name} has no meaning with group.protocol={protocol}: {instead}")
    return protocol


_OF_THE_OTHER: Final = {
    "consumer": {
        "session.timeout.ms": "the broker's group.consumer.session.timeout.ms decides",
        "heartbeat.interval.ms": "the broker's group.consumer.heartbeat.interval.ms decides",
        "partition.assignment.strategy": "the broker assigns, and group.remote.assignor says how",
        "group.protocol.type": "leave it out",
    },
    "classic": {"group.remote.assignor": "the members assign, by partition.assignment.strategy"},
}


def membership(options: Mapping[str, Any]) -> dict[str, Any]:
    """How a member of a group behaves: partitions come and go singly, a dead member is noticed in 6 s.

    6 s is the least that brokers grant unless told otherwise. The others learn of a change by their next
    heartbeat, and a cooperative one takes two rounds: librdkafka's 3 s would double the time. With 1 s, what
    a dead member had was taken up after 6.5 s (5.9 to 6.9), with 0.3 s after 6.25 (6.0 to 6.4).

    With ``group.protocol=consumer`` these are the broker's to set.
    """
    if the_protocol(options) == "consumer":
        return {}
    return {
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": 6_000,
        "heartbeat.interval.ms": 300,
    }


_CONSUMER_ONLY: Final = (
    "auto.", "fetch.", "group.", "session.", "heartbeat.", "max.poll.", "queued.", "partition.assignment.",
    "isolation.", "check.crcs", "max.partition.fetch.",
)  # fmt: skip
_PRODUCER_ONLY: Final = (
    "linger.", "queue.buffering.", "batch.", "compression.", "delivery.timeout", "message.timeout",
    "message.send.", "partitioner", "acks", "request.required.acks", "enable.idempotence", "transactional.",
    "transaction.", "sticky.",
)  # fmt: skip


def _without(options: Mapping[str, Any], prefixes: tuple[str, ...]) -> dict[str, Any]:
    """One set of options serves a producer and consumers: each is spared what is only the other's."""
    return {name: value for name, value in dotted(options).items() if not name.startswith(prefixes)}


def guarded(callback: Callable[P, object]) -> Callable[P, None]:
    """``callback`` for librdkafka to call: an exception in it is logged and goes no further.

    One that did would make `poll` or `consume` raise, and lose the messages that call had already taken.
    """

    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            callback(*args, **kwargs)
        except Exception:
            _log.exception("a Kafka callback failed: %s", getattr(callback, "__qualname__", callback))

    return call


def _note_error(error: KafkaError) -> None:
    # Everything that reaches this callback librdkafka goes on retrying by itself.
    _log.debug("kafka: %s", error.str())


class _Quiet(logging.Logger):
    """librdkafka's own log: connection attempts are its daily work, not the user's."""

    def __init__(self) -> None:
        super().__init__("relevo.kafka.rdkafka")
        self.parent = _log
        self.setLevel(logging.CRITICAL)


_rdkafka_log: Final = _Quiet()


def bad_option(error: KafkaException) -> ConfigurationError:
    """The error for settings that librdkafka doesn't take, with its reason."""
    return ConfigurationError(f"an option for Kafka can't be right: {error.args[0].str().strip()}")


_NOT_ALLOWED: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,
    }
)


def unreachable(bootstrap: str, error: KafkaException | KafkaError) -> Unreachable | Refused:
    """The error for a broker that doesn't answer, or won't let us; secrets are not part of an address."""
    detail = error.args[0] if isinstance(error, KafkaException) and error.args else error
    text = detail.str() if isinstance(detail, KafkaError) else str(detail)
    if isinstance(detail, KafkaError) and detail.code() in _NOT_ALLOWED:
        return Refused(f"Kafka at {bootstrap} doesn't let this user in: {text}")
    return Unreachable(
        f"Kafka doesn't answer at {bootstrap}: {text}. Is it running, and is the address right?"
    )


def no_topic(bootstrap: str, topic: str, error: KafkaError | None = None) -> ClusterNotFound | Refused:
    """The error for a broker that answers, and has no such topic or keeps it from this user."""
    if error is not None and error.code() in _NOT_ALLOWED:
        return Refused(f"Kafka at {bootstrap} doesn't let this user use topic {topic}: {error.str()}")
    return ClusterNotFound(
        f"Kafka at {bootstrap} has no topic {topic}: make the cluster's topics first (relevo topics init)"
    )
