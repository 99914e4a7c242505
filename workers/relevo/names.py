"""Names of topics and groups: where a cluster's records stand in Kafka."""

from __future__ import annotations

import os
import re
import secrets
import socket
from typing import Any, Final

from relevo.errors import InvalidRequest
from relevo_schemas.job import TYPE_PATTERN

DEFAULT_CLUSTER: Final = "relevo"
_CLUSTER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}\Z")


def check_cluster(cluster: Any) -> str:
    """The name itself, where it can be one.

    Raises:
        InvalidRequest: It can't become part of a topic's name.
    """
    if not isinstance(cluster, str) or not _CLUSTER.match(cluster):
        raise InvalidRequest(
            f"cluster name {cluster!r}: letters, digits, '_' and '-' are allowed, 100 at most"
        )
    return cluster


def check_type(job_type: Any) -> str:
    """The job type itself, where it can be one.

    Raises:
        InvalidRequest: It can't become part of a topic's name.
    """
    if not isinstance(job_type, str) or not TYPE_PATTERN.match(job_type):
        raise InvalidRequest(
            f"job type {job_type!r}: letters, digits, '_' and '-' are allowed, 100 at most, "
            f"the first a letter or digit"
        )
    return job_type


def commands_topic(cluster: str) -> str:
    """Topic that commands go to."""
    return f"{cluster}.commands"


def log_topic(cluster: str) -> str:
    """Topic with what happened."""
    return f"{cluster}.log"


def activations_topic(cluster: str, job_type: str) -> str:
    """Topic that hands jobs of a type to workers."""
    return f"{cluster}.activations.{job_type}"


def workers_group(cluster: str, job_type: str) -> str:
    """Consumer group of a type's workers."""
    return f"{cluster}.workers.{job_type}"


def worker_identity() -> str:
    """A name for this process that people can read and no other process has."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
