"""What goes over a pulse connection, one line from the listener, and how its address is written."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

GREETING_BYTES_MAX: Final = 256

_NAME: Final = r"[A-Za-z0-9._-]{1,100}"
_GREETING: Final = re.compile(rf"RELEVO-PULSE/1 ({_NAME}) ({_NAME})\n")


@dataclass(frozen=True, slots=True)
class Greeting:
    """Who listens."""

    node: str
    incarnation: str

    def encode(self) -> bytes:
        """The line that a listener begins each connection with.

        Raises:
            ValueError: A name holds a character that could be taken for something else, or is too long.
        """
        line = f"RELEVO-PULSE/1 {self.node} {self.incarnation}\n"
        if _GREETING.fullmatch(line) is None:
            raise ValueError(
                f"node {self.node!r}, incarnation {self.incarnation!r}: each must be "
                "1 to 100 letters, digits, '.', '_' or '-'"
            )
        return line.encode()

    @classmethod
    def parse(cls, data: bytes) -> Greeting | None:
        """The greeting that is exactly these bytes; None for a stranger's, and for one of another version."""
        found = _GREETING.fullmatch(data.decode("ascii", "replace"))
        return None if found is None else cls(found[1], found[2])


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[IPv6]:port``.

    Raises:
        ValueError: It is neither.
    """
    host, _, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) <= 65_535:
        raise ValueError(f"{address!r} isn't host:port; an IPv6 address stands in brackets")
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """Host and port as `split_address` takes them."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
