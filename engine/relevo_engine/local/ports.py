"""Free loopback ports that stay free while a killed server is away.

A port that the kernel hands out by itself won't do: a client that keeps reconnecting to the dead server on
such a port is sooner or later given the very same port as its own, connects to itself, and the server can't
come back. So the ports lie below the range from which the kernel takes those of outgoing connections.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Mapping
from pathlib import Path

from relevo_engine.local.errors import LocalError

LOOPBACK = "127.0.0.1"
_LOWEST = 15_000
_DEFAULT_END = 32_768
_TRIES_MAX = 2_000


def free_ports(count: int) -> list[int]:
    """Picks ports on which nobody listens at this moment.

    Somebody else may take one before its server does: whoever starts a server must be ready to pick again.

    Args:
        count: How many, all different.

    Raises:
        LocalError: No free ports were found.
    """
    end = max(_outgoing_range_start(), _LOWEST + 1_000)
    draw = random.SystemRandom()
    found: list[int] = []
    for _ in range(_TRIES_MAX):
        if len(found) == count:
            return found
        port = draw.randrange(_LOWEST, end)
        if port not in found and is_free(port):
            found.append(port)
    raise LocalError(
        f"no {count} free ports between {_LOWEST} and {end} on {LOOPBACK}; end what listens on them"
    )


def with_usual(ports: list[int], usual: Mapping[int, int]) -> list[int]:
    """The ports, with those that everybody expects in their places as far as they are free.

    Args:
        ports: What was picked.
        usual: The port that is expected, by its place among them.
    """
    return [
        usual[place] if place in usual and is_free(usual[place]) else port for place, port in enumerate(ports)
    ]


def is_free(port: int) -> bool:
    """Whether a server could listen on this loopback port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As a Java server does it: connections that are only dying out don't count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
            probe.listen(1)
        except OSError:
            return False
        return True


def accepts(port: int, timeout_s: float = 1.0) -> bool:
    """Whether somebody accepts connections on this loopback port."""
    try:
        socket.create_connection((LOOPBACK, port), timeout=timeout_s).close()
    except OSError:
        return False
    return True


def any_accepts(addresses: str, timeout_s: float) -> bool:
    """Whether one of the hosts accepts connections.

    Args:
        addresses: ``host:port``, separated by commas; what follows a slash is no part of them.
        timeout_s: Longest wait for each, in seconds.
    """
    for each in addresses.partition("/")[0].split(","):
        host, _, port = each.strip().rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s).close()
        except (OSError, ValueError, OverflowError):
            continue
        return True
    return False


def _outgoing_range_start() -> int:
    try:
        low, _high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
        return int(low)
    except (OSError, ValueError):
        return _DEFAULT_END
