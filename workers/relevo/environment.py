"""Where to work, as far as the caller doesn't say: from the environment, as the ``relevo`` command does."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import orjson

from relevo.errors import ConfigurationError
from relevo.names import DEFAULT_CLUSTER

KAFKA: Final = "RELEVO_KAFKA"
CLUSTER: Final = "RELEVO_CLUSTER"
OPTIONS: Final = "RELEVO_KAFKA_OPTIONS"
DEFAULT_BOOTSTRAP: Final = "localhost:9092"


class Place(NamedTuple):
    """A cluster, and how to reach its Kafka."""

    bootstrap: str
    cluster: str
    options: Mapping[str, Any]


def find_place(bootstrap: str | None, cluster: str | None, options: Mapping[str, Any]) -> Place:
    """What the caller gave, and for what is None: ``RELEVO_KAFKA`` and ``RELEVO_CLUSTER``, or the defaults.

    ``RELEVO_KAFKA_OPTIONS`` belongs to ``RELEVO_KAFKA``: its passwords must not go to brokers that were named
    otherwise.

    Raises:
        ConfigurationError: ``RELEVO_KAFKA_OPTIONS`` isn't a JSON object.
    """
    if cluster is None:
        cluster = os.environ.get(CLUSTER) or DEFAULT_CLUSTER
    if bootstrap is not None:
        return Place(bootstrap, cluster, options)
    return Place(os.environ.get(KAFKA) or DEFAULT_BOOTSTRAP, cluster, {**_options(), **options})


def _options() -> dict[str, Any]:
    text = os.environ.get(OPTIONS)
    if not text:
        return {}
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ConfigurationError(f"{OPTIONS} isn't JSON (at {error.pos})") from None
    if not isinstance(found, dict):
        raise ConfigurationError(f'{OPTIONS} must be a JSON object: {{"sasl.mechanism": "PLAIN"}}')
    return found


def on_or_off(name: str, text: str | None, default: bool) -> bool:
    """What a switch in the environment says.

    Raises:
        ConfigurationError: It is neither on nor off.
    """
    match (text or "").strip().lower():
        case "":
            return default
        case "on" | "1" | "true" | "yes":
            return True
        case "off" | "0" | "false" | "no":
            return False
    raise ConfigurationError(f"{name} must be 'on' or 'off', not {text!r}")
