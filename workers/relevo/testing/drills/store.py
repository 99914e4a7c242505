"""A dedup store that all workers of a drill share."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

NONE: Final = "none"
_READY_S: Final = 20.0


@contextmanager
def shared_store(asked: str, folder: Path, say: Callable[[str], None]) -> Iterator[str]:
    """The address of a Redis; empty: there is none, and each worker remembers for itself.

    Args:
        asked: Its address; ``none``: none; empty: a throw-away ``redis-server``, where there is one.
        folder: For its log.
        say: Told what workers use instead.
    """
    if asked:
        yield "" if asked == NONE else asked
        return
    program = shutil.which("redis-server")
    if program is None or importlib.util.find_spec("redis") is None:
        say("no redis-server or no redis-py here: each worker has a dedup store of its own, in memory")
        yield ""
        return
    from relevo_engine.local.ports import LOOPBACK, accepts, free_ports
    from relevo_engine.local.server import Server, ServerSpec

    port = free_ports(1)[0]
    command = (
        program, "--port", str(port), "--bind", LOOPBACK, "--save", "", "--appendonly", "no",
        "--maxmemory-policy", "noeviction", "--dir", str(folder),
    )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    server = Server(ServerSpec("redis", 1, command, folder / "redis", port, lambda: accepts(port)))
    server.start(timeout_s=_READY_S)
    try:
        yield f"redis://{LOOPBACK}:{port}/0"
    finally:
        server.kill()
