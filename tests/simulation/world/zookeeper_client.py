"""`relevo_partitions.ports.Coordinator` over the simulated network, with kazoo's habits.

A client that is cut off goes from CONNECTED to SUSPENDED when its ping isn't answered, and hears of a lost
session only once it reaches a server again. Calls made meanwhile wait for the connection, and give up.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from relevo_partitions.errors import ZooKeeperUnavailable
from relevo_partitions.ports import Znode
from tests.simulation.world.network import Network, NoAnswer
from tests.simulation.world.runtime import SimSignal
from tests.simulation.world.scheduler import Process
from tests.simulation.world.zookeeper import Ensemble, Expired, NoParent

T = TypeVar("T")
CALL_S: Final = 2.0
AGAIN_S: Final = 0.2


class SimZooKeeper:
    """One process' client."""

    hosts = "zookeeper:2181"

    def __init__(
        self,
        ensemble: Ensemble,
        network: Network,
        process: Process,
        rng: random.Random,
        session_timeout_s: float,
        on_state: Callable[[str], None],
        on_watch: Callable[[str], None],
    ) -> None:
        self._ensemble = ensemble
        self._network = network
        self._process = process
        self._scheduler = process.scheduler
        self._rng = rng
        self.session_timeout_s = session_timeout_s
        self._on_state = on_state
        self._on_watch = on_watch
        self.connected = False
        self.session = 0
        self._connection = 0
        """Number of the present connection: watches and calls die with theirs."""
        self._closed = False
        self._broken = SimSignal(process)
        self._joined = SimSignal(process)

    def start(self) -> None:
        self._process.spawn("zookeeper-client", self._run)

    def wait_connected(self, timeout_s: float) -> bool:
        if not self.connected:
            self._joined.wait(timeout_s)
        return self.connected

    def close(self, deadline_s: float) -> bool:
        self._closed = True
        self._broken.set()
        if not self.session:
            return True
        number = self.session
        try:
            self._send("close", lambda: self._ensemble.close(number), deadline_s)
        except NoAnswer:
            return False
        self.connected = False
        return True

    # -- the client's own thread

    def _run(self) -> None:
        while not self._closed:
            if not self.connected:
                self._connect()
                continue
            self._broken.wait(self.session_timeout_s / 3)
            if self._broken.is_set():
                self._suspend()
                continue
            number = self.session
            try:
                self._send("ping", partial(self._ensemble.ping, number), self.session_timeout_s / 3)
            except NoAnswer:
                self._suspend()
            except Expired:
                self._suspend()
                self._lose()

    def _connect(self) -> None:
        number, server = self.session, int(self._rng.random() * 2)
        try:
            session = self._send(
                "connect",
                lambda: self._ensemble.connect(number, self.session_timeout_s, server),
                self.session_timeout_s / 3,
            )
        except NoAnswer:
            self._scheduler.block(AGAIN_S * self._rng.random())
        except Expired:
            self._lose()
        else:
            self._connection += 1
            self.session, self.connected = session.number, True
            self._broken = SimSignal(self._process)
            self._on_state("CONNECTED")
            self._joined.set()
            self._joined = SimSignal(self._process)

    def _suspend(self) -> None:
        if self.connected:
            self.connected = False
            self._connection += 1
            self._on_state("SUSPENDED")

    def _lose(self) -> None:
        self.session = 0
        self._on_state("LOST")

    # -- calls

    def _send(self, what: str, handler: Callable[[], T], timeout: float) -> T:
        result: T = self._network.call(self._process, "zookeeper", f"zk-{what}", handler, timeout)
        return result

    def _ask(self, what: str, handler: Callable[[int], T]) -> T:
        deadline = self._scheduler.now + CALL_S
        before = self.session
        while not self.connected:
            left = deadline - self._scheduler.now
            if left <= 0 or self._closed or self.session != before:
                raise ZooKeeperUnavailable(f"{what}: no connection")
            self._joined.wait(left)
        number, connection = self.session, self._connection
        try:
            answer = self._send(what, lambda: handler(number), max(0.001, deadline - self._scheduler.now))
        except NoAnswer:
            raise ZooKeeperUnavailable(f"{what}: no answer in {CALL_S:g} s") from None
        except Expired:
            self._broken.set()
            raise ZooKeeperUnavailable(f"{what}: the session is over") from None
        if connection != self._connection:
            raise ZooKeeperUnavailable(f"{what}: the connection was lost")
        return answer

    def _tell(self) -> Callable[[str], None]:
        connection = self._connection

        def arrive(path: str) -> None:
            if self._process.alive and not self._closed and connection == self._connection:
                self._on_watch(path)

        def tell(path: str) -> None:
            link = self._network.link(self._process.name, "zookeeper")
            if not link.cut:
                self._scheduler.after(self._network.delay(link), partial(arrive, path))

        return tell

    def get(self, path: str) -> Znode | None:
        return self._ask("get", lambda number: self._ensemble.get(number, path))

    def get_fresh(self, path: str) -> Znode | None:
        def synced(number: int) -> Znode | None:
            self._ensemble.sync(number)
            return self._ensemble.get(number, path)

        return self._ask("sync", synced)

    def watch(self, path: str) -> Znode | None:
        tell = self._tell()
        self._ask("watch", lambda number: self._ensemble.watch(number, path, tell))
        return self.get(path)

    def children(self, path: str) -> list[str] | None:
        tell = self._tell()
        return self._ask("children", lambda number: self._ensemble.children(number, path, tell))

    def ensure(self, path: str) -> None:
        self._ask("ensure", lambda number: self._ensemble.ensure(number, path))

    def create(self, path: str, data: bytes, *, ephemeral: bool) -> Znode | None:
        try:
            return self._ask("create", lambda number: self._ensemble.create(number, path, data, ephemeral))
        except NoParent:
            raise KeyError(path) from None

    def delete(self, path: str, version: int) -> bool:
        return self._ask("delete", lambda number: self._ensemble.delete(number, path, version))

    def replace(self, path: str, version: int, data: bytes) -> tuple[bool, Znode | None]:
        # One after the other, so that others come in between, and the second gets lost alone.
        return self.delete(path, version), self.create(path, data, ephemeral=True)
