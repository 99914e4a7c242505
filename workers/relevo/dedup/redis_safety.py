"""Whether a Redis can keep what a dedup store promises."""

from __future__ import annotations

import logging
from types import ModuleType
from typing import Any, Final

from relevo.errors import StoreUnsafe

_log: Final = logging.getLogger("relevo.dedup")


class SafetyCheck:
    """Looks at servers, and remembers what it has warned of.

    Args:
        redis: The module.
        volatile_ok: Whether a server may forget everything with its process.
    """

    def __init__(self, redis: ModuleType, volatile_ok: bool) -> None:
        self._redis = redis
        self._volatile_ok = volatile_ok
        self._told: set[str] = set()

    def check(self, server: Any, name: str) -> None:
        """Refuse a server that throws keys away, when memory gets short or when it is started again.

        Args:
            server: A ``redis.Redis``.
            name: Where it is, for messages.

        Raises:
            StoreUnsafe: It does; the message says what to change. Errors of redis-py pass through.
        """
        policy = str(server.info("memory").get("maxmemory_policy", "noeviction"))
        if policy != "noeviction":
            raise StoreUnsafe(
                f"Redis at {name} has maxmemory-policy {policy}: when memory gets short it would "
                f"forget claims, and jobs run twice. Set maxmemory-policy noeviction, or use another Redis"
            )
        if server.info("persistence").get("aof_enabled"):
            return
        saves = self._saves(server)
        if saves:
            return
        if saves is None:
            # Managed servers and narrow access rights.
            self._tell(name, "doesn't show whether it keeps anything on disk (CONFIG GET is refused)")
        elif self._volatile_ok:
            self._tell(name, "keeps nothing on disk")
        else:
            raise StoreUnsafe(
                f"Redis at {name} keeps nothing on disk: started again it would have forgotten what was "
                f"done, and jobs run twice. Set appendonly yes (or save); or, where a repeat does no harm, "
                f"make the store with volatile_ok=True"
            )

    def _saves(self, server: Any) -> bool | None:
        """Whether it writes snapshots; None: it doesn't say."""
        try:
            return bool(server.config_get("save").get("save"))
        except self._redis.exceptions.ResponseError:
            return None

    def _tell(self, name: str, what: str) -> None:
        if name not in self._told:  # each job type of a process has it checked
            self._told.add(name)
            _log.warning("Redis at %s %s: a restart of it may forget what was done", name, what)
