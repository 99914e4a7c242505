"""Calls as users make them, one by one and each waited for: creations that ask for the decision, and reads.

They follow what the SDK promises: an error says whether the request may be repeated, here or elsewhere, and
whoever does so comes to an answer. A call has failed if an error says to stop, if what it was told is wrong,
or if there was no answer in the end. That it had to ask again is no failure, and is counted.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Final, Self

import relevo
from relevo.errors import RelevoError, Retry
from relevo.testing.attached import live_addresses
from relevo.testing.ledger import Call, LedgerFile, now_ms

CREATE: Final = "create"
READ: Final = "read"
CALL_S: Final = 30.0
"""Who has asked again for so long has no answer."""
_PAUSE_S: Final = 0.1
"""Between two tries, where the answer names no time of its own."""
_THREADS: Final = 64
"""More calls than this are never under way at once: they would wait for each other."""


class AskAgainError(Exception):
    """There is no answer yet, and the one who was asked says that there may be one later.

    Attributes:
        after_s: When, in seconds; None: any time.
    """

    def __init__(self, why: str, after_s: float | None = None) -> None:
        super().__init__(why)
        self.after_s = after_s


class CallFailedError(Exception):
    """What a call came to is no answer, and never will be."""


class Nodes:
    """The nodes that can be asked, each in turn; looked up anew where one has gone.

    May be used by several threads.

    Args:
        known: Addresses of their HTTP APIs, to begin with.
        zookeeper: Where they are looked up.
        cluster: The cluster's name.
    """

    def __init__(self, known: Sequence[str], zookeeper: str, cluster: str) -> None:
        self._known = list(known)
        self._zookeeper = zookeeper
        self._cluster = cluster
        self._turns = itertools.count()

    def next(self) -> str:
        """The address of the one whose turn it is.

        Raises:
            AskAgainError: None is known now.
        """
        known = self._known
        if not known:
            self.gone("")
            known = self._known
        if not known:
            raise AskAgainError("no node is registered")
        return known[next(self._turns) % len(known)]

    def gone(self, address: str) -> None:
        """One didn't answer: look which are there now. Where ZooKeeper doesn't say, the others stay known."""
        try:
            found = [each for each in live_addresses(self._zookeeper, self._cluster).values() if each]
        except RelevoError:
            found = []
        others = [each for each in self._known if each != address]
        self._known = found or others or self._known


class Callers:
    """Makes calls, each in a thread of its own, and notes how they end.

    Args:
        client: Creates.
        nodes: Are asked.
        book: Is told.
        job_type: Of what is created.
        lease_s: Its lease, in seconds.
    """

    def __init__(
        self, client: relevo.Client, nodes: Nodes, book: LedgerFile, *, job_type: str, lease_s: float
    ) -> None:
        self._client = client
        self._nodes = nodes
        self._book = book
        self._type = job_type
        self._lease_s = lease_s
        self._prefix = f"c{os.getpid()}-{int(now_ms()) % 100_000_000}"
        self._newest = ""
        self._over = threading.Event()
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="calls")

    def __enter__(self) -> Self:
        """Nothing runs yet."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let those under way have their answer; nobody asks again."""
        self._over.set()
        self._pool.shutdown()

    def call(self, number: int) -> None:
        """Begin the next one; creations and reads take turns, and a read asks for what was created last."""
        key = self._newest
        if number % 2 and key:
            self._pool.submit(self._see_through, READ, lambda: self._read(key))
        else:
            self._pool.submit(self._create, f"{self._prefix}-{number}")

    def _create(self, key: str) -> None:
        sent = now_ms()

        def ask() -> None:
            try:
                self._client.create(
                    self._type, {"sent": sent}, key=key, lease=self._lease_s, wait="decided", timeout=CALL_S
                )
            except RelevoError as error:
                # There is one Kafka to ask, so that "elsewhere" is "again", too.
                raise (CallFailedError if error.retry == Retry.STOP else AskAgainError)(str(error)) from error

        if self._see_through(CREATE, ask):
            self._book.accepted(key, sent)
            self._newest = key
        else:
            self._book.refused(key, "a call that waited for the decision failed")

    def _read(self, key: str) -> None:
        from relevo_engine.api.client import ApiClient, ApiError
        from relevo_engine.errors import EngineError

        address = self._nodes.next()
        try:
            found = ApiClient(address).job(key)
        except ApiError as error:
            if error.status == 503 and error.retry_after_s is not None:
                raise AskAgainError(f"{address}: {error}", error.retry_after_s) from error
            raise CallFailedError(f"{address} answered {error.status} for {key}: {error}") from error
        except EngineError as error:
            self._nodes.gone(address)
            raise AskAgainError(f"{address}: {error}") from error
        if found.get("key") != key:
            raise CallFailedError(f"{address} was asked for {key} and told of {found.get('key')}")

    def _see_through(self, kind: str, ask: Callable[[], None]) -> bool:
        """Ask until there is an answer, and note what came of it; whether it was a good one."""
        at, begin = now_ms(), time.monotonic()
        failed, tries = "", 0
        while True:
            tries += 1
            try:
                ask()
                break
            except AskAgainError as error:
                pause = _PAUSE_S if error.after_s is None else error.after_s
                if time.monotonic() + pause > begin + CALL_S:
                    failed = f"no answer in {CALL_S:g} s: {error}"
                elif self._over.wait(pause):
                    failed = f"no answer before the end: {error}"
            except Exception as error:
                failed = f"{type(error).__name__}: {error}"
            if failed:
                break
        self._book.called(Call(kind, at, (time.monotonic() - begin) * 1000, tries, failed))
        return not failed
