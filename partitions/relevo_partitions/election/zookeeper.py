"""ZooKeeper as this package uses it: bounded calls, quiet logs, and callbacks that only enqueue.

Nothing here waits without a limit. A call that wasn't answered in time may still be carried out later, in the
same session; whoever made it has to look what became of it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, MutableMapping
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.retry import KazooRetry

from relevo_partitions.errors import WrongThread, ZooKeeperUnavailable
from relevo_partitions.fork import ForkGuard
from relevo_partitions.ports import Znode

log: Final = logging.getLogger(__name__)

CALL_TIMEOUT_S: Final = 2.0
FIRST_WORD_S: Final = 0.5
"""After so long without an answer to a new connection the next attempt is made. Doubles each time."""
FIRST_WORD_MAX_S: Final = 10.0


class ZooKeeper:
    """One client, used from start to close and never restarted; it outlives sessions.

    Args:
        hosts: ``host:port[,host:port…][/chroot]``.
        session_timeout_s: After so long without a sign of life the servers end the session.
        on_state: Called with ``CONNECTED``, ``SUSPENDED`` or ``LOST`` on a thread of the client; must only
        enqueue. on_watch: Called with the path of a znode that changed, on a thread of the client; must only
        enqueue.
    """

    def __init__(
        self,
        hosts: str,
        session_timeout_s: float,
        on_state: Callable[[str], None],
        on_watch: Callable[[str], None],
    ) -> None:
        self.hosts = hosts
        self._on_watch = on_watch
        self._fork = ForkGuard("a ZooKeeper client")
        self._handler = _MarkedThreads()
        # Several tries within a session: who comes back too late finds its session, and its claims, gone. And
        # whoever died meanwhile is to be replaced within a second after ZooKeeper is back.
        longest = min(0.3, session_timeout_s / 6)
        retry = KazooRetry(max_tries=-1, delay=0.05, backoff=2, max_delay=longest, max_jitter=0.4)
        self._client: Any = KazooClient(
            hosts=hosts,
            timeout=session_timeout_s,
            handler=self._handler,
            connection_retry=retry,
            command_retry=KazooRetry(max_tries=0),
            logger=_QuietLog(log, {}),
        )
        self._client.add_listener(lambda state: _safely(on_state, str(state)))
        self._connected: Any = None

    @property
    def connected(self) -> bool:
        """Whether a server has been heard lately."""
        return bool(self._client.connected)

    @property
    def session(self) -> int:
        """Id of the present session, 0 before the first."""
        held = self._client.client_id
        return held[0] if held else 0

    @property
    def session_timeout_s(self) -> float:
        """The session timeout that the servers have granted."""
        return float(self._client._session_timeout) / 1000  # noqa: SLF001,RUF100 - no public way

    def start(self) -> None:
        """Begin to connect; the client goes on trying until it is closed."""
        self._connected = self._client.start_async()

    def wait_connected(self, timeout_s: float) -> bool:
        """Whether the first connection came about within ``timeout_s``."""
        return bool(self._connected.wait(timeout_s)) and self.connected

    def close(self, deadline_s: float) -> bool:
        """End the session and its ephemeral znodes; False where that took longer than ``deadline_s``.

        The client's own stop can wait long for a server that doesn't answer, so a thread waits in our place.
        """

        def stop() -> None:
            try:
                self._client.stop()
                self._client.close()
            except (KazooException, KazooTimeoutError, OSError, AttributeError) as error:
                log.debug("The ZooKeeper client didn't stop cleanly: %s", error)

        stopper = threading.Thread(target=stop, name="relevo-zookeeper-stop", daemon=True)
        stopper.start()
        stopper.join(max(0.0, deadline_s))
        return not stopper.is_alive()

    # -- calls; each raises ZooKeeperUnavailable where no answer came in time
    # ---------------------------------------

    def get(self, path: str) -> Znode | None:
        """The znode, None where there is none."""
        try:
            data, stat = self._ask(f"get {path}", lambda: self._client.get_async(path))
        except NoNodeError:
            return None
        return _znode(data, stat)

    def watch(self, path: str) -> Znode | None:
        """As `get`; tells ``on_watch`` of the next change or the creation. A change may be missed."""
        stat = self._ask(f"watch {path}", lambda: self._client.exists_async(path, watch=self._watched))
        return None if stat is None else self.get(path)

    def children(self, path: str) -> list[str] | None:
        """Names below ``path``, None where there is no such znode; tells ``on_watch`` of the next change."""
        try:
            names = self._ask(
                f"list {path}", lambda: self._client.get_children_async(path, watch=self._watched)
            )
        except NoNodeError:
            return None
        return list(names)

    def get_fresh(self, path: str) -> Znode | None:
        """As `get`, after the server we talk to has caught up with the ensemble: never stale."""
        # A session's requests are answered in order, so the first answer needn't be waited for by itself.
        synced = self._begin(f"sync {path}", lambda: self._client.sync_async(path))
        try:
            data, stat = self._ask(f"get {path}", lambda: self._client.get_async(path))
        except NoNodeError:
            data, stat = b"", None
        self._end(f"sync {path}", synced)
        return None if stat is None else _znode(data, stat)

    def ensure(self, path: str) -> None:
        """Create the persistent ``path`` and what lies above it."""
        self._ask(f"create {path}", lambda: self._client.ensure_path_async(path))

    def create(self, path: str, data: bytes, *, ephemeral: bool) -> Znode | None:
        """The znode created, None where one exists.

        Raises:
            KeyError: What lies above it doesn't exist.
        """
        try:
            _, stat = self._ask(
                f"create {path}",
                lambda: self._client.create_async(path, data, ephemeral=ephemeral, include_data=True),
            )
        except NodeExistsError:
            return None
        except NoNodeError:
            raise KeyError(path) from None
        return _znode(data, stat)

    def delete(self, path: str, version: int) -> bool:
        """Delete ``path`` if it has ``version``; False where it is gone or changed."""
        try:
            self._ask(f"delete {path}", lambda: self._client.delete_async(path, version))
        except (NoNodeError, BadVersionError):
            return False
        return True

    def replace(self, path: str, version: int, data: bytes) -> tuple[bool, Znode | None]:
        """`delete`, then `create` an ephemeral znode in its place, which doesn't wait for the first answer.

        A session's requests are carried out in order, so ZooKeeper writes both to its disk at once.
        """
        deleting = self._begin(f"delete {path}", lambda: self._client.delete_async(path, version))
        creating = self._begin(
            f"create {path}",
            lambda: self._client.create_async(path, data, ephemeral=True, include_data=True),
        )
        try:
            self._end(f"delete {path}", deleting)
            deleted = True
        except (NoNodeError, BadVersionError):
            deleted = False
        try:
            _, stat = self._end(f"create {path}", creating)
        except (NodeExistsError, NoNodeError):
            return deleted, None
        return deleted, _znode(data, stat)

    def _ask(self, what: str, send: Callable[[], Any]) -> Any:
        return self._end(what, self._begin(what, send))

    def _begin(self, what: str, send: Callable[[], Any]) -> Any:
        self._fork.check()
        if self._handler.is_current_thread():
            raise WrongThread(f"{what}: ZooKeeper was called within one of its own callbacks")
        try:
            return send()
        except (KazooException, OSError) as error:
            raise ZooKeeperUnavailable(f"{what}: {self.hosts}: {error}") from None

    def _end(self, what: str, answer: Any) -> Any:
        try:
            return answer.get(timeout=CALL_TIMEOUT_S)
        except (NoNodeError, NodeExistsError, BadVersionError):
            raise
        except KazooTimeoutError:
            raise ZooKeeperUnavailable(
                f"{what}: no answer from {self.hosts} in {CALL_TIMEOUT_S:g} s"
            ) from None
        except (KazooException, OSError) as error:
            problem = str(error) or type(error).__name__
            raise ZooKeeperUnavailable(f"{what}: {self.hosts}: {problem}") from None

    def _watched(self, event: Any) -> None:
        if event.path is not None:  # none where the connection was lost: that comes as a state
            _safely(self._on_watch, str(event.path))


def _znode(data: bytes, stat: Any) -> Znode:
    return Znode(data or b"", stat.czxid, stat.version, stat.ephemeralOwner)


def _safely(callback: Callable[[str], None], argument: str) -> None:
    """Run a callback on the client's thread; nothing may escape into the client."""
    try:
        callback(argument)
    except Exception:
        log.exception("A ZooKeeper callback failed")


class _MarkedThreads(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's usual threads, which know that they are kazoo's, and don't wait long for a server's first word.

    A server that has just been started may accept a connection and never answer on it. kazoo waits for as
    long as a session lasts, so the session is over by the time of its next attempt.
    """

    def __init__(self) -> None:
        super().__init__()
        self._mark = threading.local()
        self._unanswered: Any = None
        self._first_word_s = FIRST_WORD_S

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        if self._unanswered is not None:  # a server that is only slow gets longer and longer
            self._first_word_s = min(self._first_word_s * 2, FIRST_WORD_MAX_S)
        connection = super().create_connection(*args, **kwargs)
        self._unanswered = connection
        return connection

    def select(self, *args: Any, **kwargs: Any) -> Any:
        waits_for, timeout = (args[0], args[3]) if len(args) == 4 else ([], None)
        if self._unanswered is None or timeout is None or waits_for != [self._unanswered]:
            return super().select(*args, **kwargs)
        found = super().select(*args[:3], min(timeout, self._first_word_s))
        if found[0]:
            self._unanswered, self._first_word_s = None, FIRST_WORD_S
        return found

    def spawn(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        def marked() -> None:
            self._mark.ours = True
            func(*args, **kwargs)

        return super().spawn(marked)

    def is_current_thread(self) -> bool:
        return bool(getattr(self._mark, "ours", False))


class _QuietLog(logging.LoggerAdapter[logging.Logger]):
    """kazoo warns of each failed attempt to connect, and tries again: its lines are for debugging."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        super().log(min(level, logging.DEBUG), msg, *args, **kwargs)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return f"kazoo: {msg}", kwargs
