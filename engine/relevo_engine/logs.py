"""Structured logs on standard error: JSON or for people, without secrets, client libraries kept calm."""

from __future__ import annotations

import logging
import re
import sys
import threading
import time
from collections.abc import Mapping, MutableMapping
from typing import Any, Final, Literal, TextIO

import structlog

REDACTED: Final = "***"
_SECRET_NAME: Final = re.compile(
    r"(?i)(password|passwd|secret|token|credential|authorization|^sasl[._](?!mechanism)|^ssl[._]key)"
)
_SECRET_URL: Final = re.compile(r"(?<=://)[^/\s@]+:[^/\s@]*(?=@)")
_SECRET_OPTION: Final = re.compile(
    r"(?i)([\"']?(?:sasl|ssl)[._](?!mechanism)[\w.]+[\"']?\s*[=:]\s*|[\"']?\w*(?:password|secret|token)[\"']?\s*[=:]\s*)"
    r"(\"[^\"]*\"|'[^']*'|[^\s,;}&]+)"
)
# Lines of the client libraries that say the same within this time are told once.
_REPEAT_S: Final = 10.0
_REPEAT_KEYS_MAX: Final = 256
_LIBRARIES: Final = ("kazoo", "aiohttp", "asyncio", "librdkafka")

Level = Literal["debug", "info", "warning", "error"]


def redact(value: Any, name: str = "") -> Any:
    """The value without secrets: those under a telling name, and those inside of texts."""
    if name and _SECRET_NAME.search(name) and not isinstance(value, (bool, type(None))):
        return REDACTED
    if isinstance(value, str):
        return _SECRET_OPTION.sub(rf"\1{REDACTED}", _SECRET_URL.sub(REDACTED, value))
    if isinstance(value, Mapping):
        return {key: redact(each, str(key)) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact(each) for each in value]
    return value


def configure(
    log_format: Literal["json", "console"] = "json", level: Level = "info", stream: TextIO | None = None
) -> None:
    """Sets up logging for the process: ours through structlog, the libraries' through `logging`, one stream.

    Args:
        log_format: ``json``: an object per line; ``console``: for people.
        level: Least level that is shown.
        stream: Where lines go; standard error by default.
    """
    stream = stream or sys.stderr
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
        structlog.processors.format_exc_info,
        _without_secrets,
    ]
    render: structlog.typing.Processor
    if log_format == "json":
        render = structlog.processors.JSONRenderer(default=str)
    else:
        render = structlog.dev.ConsoleRenderer(colors=stream.isatty(), timestamp_key="at")
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[_without_arguments_lost, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
        )
    )
    handler.addFilter(CalmLibraries())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _LIBRARIES:
        # Their "info" is a running commentary.
        logging.getLogger(name).setLevel(logging.DEBUG if level == "debug" else logging.WARNING)


def get(name: str) -> structlog.stdlib.BoundLogger:
    """A logger; ``name`` says which part speaks."""
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return logger


class CalmLibraries(logging.Filter):
    """Lets a library say the same once in a while, not for every attempt, and without traceback."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[tuple[str, str], float] = {}
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is told."""
        if not record.name.startswith(_LIBRARIES):
            return True
        # A broken connection is told by its message; where in the library it was noticed helps nobody.
        record.exc_info = record.exc_text = None
        key = (record.name, re.sub(r"\d+", "#", str(record.msg)))
        now = time.monotonic()
        with self._lock:
            last = self._last.get(key)
            if last is not None and now - last < _REPEAT_S:
                return False
            if len(self._last) >= _REPEAT_KEYS_MAX:
                self._last.clear()
            self._last[key] = now
        return True


def _without_secrets(
    _logger: Any, _method: str, fields: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    for name in list(fields):
        if not name.startswith("_"):
            fields[name] = redact(fields[name], name)
    return fields


def _without_arguments_lost(
    _logger: Any, _method: str, fields: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """A library's own arguments are formatted into its message already."""
    fields.pop("positional_args", None)
    return fields
