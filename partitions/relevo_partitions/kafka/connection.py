"""How this package talks to librdkafka: its settings, its log lines, and its errors in words."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from relevo_partitions.errors import KafkaUnavailable

log: Final = logging.getLogger(__name__)

Options = Mapping[str, str | int | float | bool]

FIXED: Final = frozenset(
    {
        "acks", "auto.offset.reset", "bootstrap.servers", "delivery.report.only.error", "delivery.timeout.ms",
        "enable.auto.commit", "enable.auto.offset.store", "enable.idempotence", "enable.partition.eof",
        "group.id", "isolation.level", "log.connection.close", "log.queue", "log_level",
        "max.in.flight.requests.per.connection", "message.timeout.ms", "partitioner", "request.required.acks",
        "transaction.timeout.ms", "transactional.id",
    }
)  # fmt: skip
"""Settings that the guarantees rest on; a user's options may not hold them."""

_SECRET: Final = re.compile(r"password|secret|jaas|token|\.pem$|oauthbearer\.config|sasl\.username")
_UNREACHABLE: Final = frozenset(
    {
        KafkaError._TRANSPORT,  # noqa: SLF001,RUF100 - the client's public names of its local errors
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
    }
)
FENCED: Final = frozenset(
    {
        KafkaError._FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.PRODUCER_FENCED,
    }
)
"""Codes by which Kafka says that another producer with our transactional id came after us."""


class Connection:
    """Where Kafka is and how to get in: makes the settings of every client.

    Args:
        bootstrap: ``host:port[,host:port…]``.
        options: More librdkafka settings (``security.protocol``, ``sasl.*``, ``ssl.*``, timeouts…).

    Raises:
        ValueError: ``options`` holds a setting that the guarantees rest on.
    """

    def __init__(self, bootstrap: str, options: Options | None = None) -> None:
        options = dict(options or {})
        taken = sorted(FIXED & options.keys())
        if taken:
            raise ValueError(
                f"Kafka options may not set {', '.join(taken)}: Relevo's guarantees rest on them"
            )
        self.bootstrap = bootstrap
        self._options = options
        self._secrets = [str(value) for name, value in options.items() if _SECRET.search(name) and str(value)]

    def settings(self, faults: Faults, fixed: Options) -> dict[str, Any]:
        """Settings of one client: the user's options below ``fixed``, quiet logs, safe callbacks."""
        return {
            "allow.auto.create.topics": False,
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 1_000,
            # A missing topic is reported after this, not after half a minute.
            "topic.metadata.propagation.max.ms": 2_000,
            **self._options,
            "bootstrap.servers": self.bootstrap,
            "log_level": 4,
            **fixed,
            "error_cb": faults.heard,
            "logger": QuietLog(self.redact, faults.logged),
        }

    def redact(self, text: str) -> str:
        """``text`` without the values of secret options."""
        for secret in self._secrets:
            text = text.replace(secret, "[redacted]")
        return text

    def check(self, timeout_s: float) -> None:
        """Ask Kafka for its brokers.

        Raises:
            KafkaUnavailable: No broker answered within ``timeout_s``.
        """
        faults = Faults()
        client = AdminClient(self.settings(faults, {}))
        try:
            client.list_topics(timeout=timeout_s)
        except KafkaException as error:
            raise KafkaUnavailable(self.describe(error.args[0], faults)) from None

    def describe(self, error: KafkaError, faults: Faults) -> str:
        """``error`` as a person can use it: whether Kafka is away, or refuses."""
        if error.code() in _UNREACHABLE:
            last = f" ({self.redact(faults.last)})" if faults.last else ""
            return (
                f"Kafka isn't reachable at {self.bootstrap}{last}: is it running, and is the address right?"
            )
        return f"Kafka at {self.bootstrap}: {self.redact(error.str())} ({error.name()})"


def cause_of(raised: BaseException) -> KafkaError | None:
    """The client's error in what a call has raised.

    While a call serves callbacks, the binding raises a fatal error by itself, and calls the next callback
    with that exception still set: Python makes a `SystemError` of it, which has the true one as its cause.
    """
    seen: BaseException | None = raised
    while seen is not None:
        if isinstance(seen, KafkaException) and isinstance(seen.args[0], KafkaError):
            return seen.args[0]
        seen = seen.__cause__ or seen.__context__
    return None


_NO_REQUEST: Final = ("in state CONNECT", "Disconnected while requesting ApiVersion")
_FORGOTTEN_S: Final = 0.1


class Faults:
    """Remembers what a client's background threads complained about last."""

    def __init__(self) -> None:
        self.last = ""
        self.fatal: KafkaError | None = None
        self.connection_lost = False
        """Whether a connection that may have carried requests has broken since this client was made."""

    def heard(self, error: KafkaError) -> None:
        """Librdkafka's error callback; must not raise."""
        if error.fatal():
            self.fatal = error
        if error.code() != KafkaError._ALL_BROKERS_DOWN or not self.last:
            self.last = _without_prefix(error.str())

    def logged(self, line: str) -> None:
        """Hear a log line of librdkafka; must not raise.

        It reconnects by itself and reports no error: a line of level 6 is all that is to be heard of a broken
        connection. Not always of the one in question: where every broker seems gone, it closes the
        connection to the coordinator of transactions itself, and of that says nothing above level 7. So the
        line of any other counts as well. An attempt to connect that failed carried no request; its texts are
        none that a working connection ends with, which isn't logged again within half a minute.
        """
        if line.startswith("FAIL ") and not any(each in line for each in _NO_REQUEST):
            self.connection_lost = True


def _without_prefix(text: str) -> str:
    """Librdkafka begins with ``host:port/bootstrap: `` and ends with a duration in brackets."""
    return re.sub(r"\s*\(after \d+ms.*$", "", text)


class QuietLog:
    """Takes librdkafka's log lines to the standard logging module, for debugging, secrets left out.

    librdkafka reports each failed attempt to connect as an error, and tries again by itself. What doesn't
    mend by itself reaches whoever made the call.
    """

    def __init__(
        self, redact: Callable[[str], str], heard: Callable[[str], None] = lambda _line: None
    ) -> None:
        self._redact = redact
        self._heard = heard

    def log(self, level: int, text: str, *args: object) -> None:
        """Called by librdkafka's binding within `poll` and the like; must not raise."""
        try:
            line = self._redact(text % args if args else text)
        except (TypeError, ValueError):
            line = text
        self._heard(line)
        log.log(logging.WARNING if level >= logging.CRITICAL else logging.DEBUG, "librdkafka: %s", line)


def drop_in_background(client: object, close: Callable[[], object] | None = None) -> None:
    """Let a client go in a thread of its own: that takes 1 to 30 ms, now and then much longer."""
    held: list[object] = [client]

    def let_go() -> None:
        try:
            if close is not None:
                close()
        except (KafkaException, RuntimeError) as error:
            log.debug("A Kafka client didn't close cleanly: %s", error)
        time.sleep(_FORGOTTEN_S)  # whoever has the last reference pays: the caller has none by then
        held.clear()

    try:
        threading.Thread(target=let_go, name="relevo-drop", daemon=True).start()
    except RuntimeError:  # the system has no thread left
        if close is not None:
            with contextlib.suppress(KafkaException, RuntimeError):
                close()
