"""Names of hosts become addresses without holding up whoever waits for something more urgent."""

from __future__ import annotations

import ipaddress
import logging
import queue
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

log: Final = logging.getLogger(__name__)

AT_ONCE_MAX: Final = 8
ADDRESSES_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class Target:
    """One address to connect to."""

    family: int
    address: tuple[Any, ...]
    """As `socket.socket.connect` takes it."""


class Lookups:
    """Literal addresses are answered at once; names are looked up on short-lived threads.

    Args:
        wake: Called on such a thread once an answer can be fetched with `finished`.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._running = threading.BoundedSemaphore(AT_ONCE_MAX)
        self._done: queue.SimpleQueue[tuple[object, list[Target]]] = queue.SimpleQueue()

    def literal(self, host: str, port: int) -> list[Target] | None:
        """The target where ``host`` is an address itself, None where it is a name."""
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return None
        return _ask(host, port, socket.AI_NUMERICHOST)

    def begin(self, who: object, host: str, port: int) -> bool:
        """Look a name up for ``who``; False where too many are being looked up."""
        if not self._running.acquire(blocking=False):
            return False

        def run() -> None:
            targets = _ask(host, port, 0)
            self._running.release()
            self._done.put((who, targets))
            self._wake()

        threading.Thread(target=run, name="relevo-pulse-lookup", daemon=True).start()
        return True

    def finished(self) -> list[tuple[object, list[Target]]]:
        """The answers since the last call; an empty list of targets where the name isn't known."""
        found = []
        while not self._done.empty():
            found.append(self._done.get())
        return found


def _ask(host: str, port: int, flags: int) -> list[Target]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except (OSError, UnicodeError) as error:
        log.debug("The name %r can't be looked up: %s", host, error)
        return []
    return [Target(int(family), address) for family, _, _, _, address in found[:ADDRESSES_MAX]]
