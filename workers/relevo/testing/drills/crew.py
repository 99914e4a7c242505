"""The load's processes, started and ended, hurt and put to work again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from relevo import names
from relevo.testing.ledger import Ledger, Moment, now_ms
from relevo.testing.load import Orders
from relevo.testing.waiting import wait_for

if TYPE_CHECKING:
    from relevo_engine.local.server import Server

_JOINED_S: Final = 90.0
_STOP_S: Final = 15.0
_CREATOR_STOP_S: Final = 60.0


class Crew:
    """One process that creates jobs, one that calls where the orders say so, and the workers.

    Args:
        orders: What they are to do.
        folder: For their settings and logs; the ledger's folder lies in it.
        workers: How many.

    Attributes:
        ledger: What they wrote down.
        hits: When workers were killed or frozen.
    """

    def __init__(self, orders: Orders, folder: Path, workers: int) -> None:
        self.orders = orders
        self.ledger = Ledger(Path(orders.folder))
        self.hits: list[Moment] = []
        self._folder = folder
        Path(orders.folder).mkdir(parents=True, exist_ok=True)
        orders.write(folder / "orders.json")
        self._creator = self._process("creator", 1, "create")
        self._callers = [self._process("caller", 1, "call")] if orders.calls else []
        # Members with a name of their own get their partitions back as soon as they are there again: with
        # a kill every few seconds the group would else wait for one of the dead all the time.
        self._workers = [
            self._process(f"worker-{n}", n, "work", *([f"{orders.type}-{n}"] if orders.effects else []))
            for n in range(1, workers + 1)
        ]

    def __enter__(self) -> Self:
        """Start the workers, and then those who create and call.

        Raises:
            DrillError: They don't get to work.
        """
        try:
            for worker in self._workers:
                worker.spawn()
            self.await_shared_out()
            for process in (self._creator, *self._callers):
                process.spawn()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all of them."""
        self.close()

    def close(self) -> None:
        """End all of them. Twice does no harm."""
        for process in (self._creator, *self._callers, *self._workers):
            process.stop(timeout_s=_STOP_S)

    def check(self) -> None:
        """Does nothing while those that should run do.

        Raises:
            ServerError: One has ended by itself; the message has the end of its log.
        """
        for process in (self._creator, *self._callers):
            process.check()

    @property
    def workers(self) -> list[Server]:
        """The workers' processes."""
        return list(self._workers)

    def name_of(self, worker: Server) -> str:
        """What the ledger calls a worker's process as it is now."""
        return f"worker-{worker.pid}"

    def kill_worker(self, number: int) -> Moment:
        """``kill -9`` of a worker; counts from 0."""
        return self._hit(number, lambda worker: worker.kill())

    def freeze_worker(self, number: int) -> Moment:
        """SIGSTOP."""
        return self._hit(number, lambda worker: worker.freeze())

    def thaw_worker(self, number: int) -> None:
        """SIGCONT."""
        self._workers[number].thaw()

    def start_worker(self, number: int) -> None:
        """Start one that is dead; returns at once."""
        self._workers[number].spawn()

    def heal(self) -> None:
        """Thaw and start whatever was hurt, and wait until all of them work again.

        Raises:
            NotInTime: They don't.
        """
        for worker in self._workers:
            if worker.running:
                worker.thaw()
            else:
                worker.spawn()
        self.await_shared_out()

    def stop_creating(self) -> None:
        """Create and call no more; returns once all that was sent is acknowledged, answered or given up."""
        for process in (*self._callers, self._creator):
            process.stop(timeout_s=_CREATOR_STOP_S)
        self.ledger.refresh()

    def await_shared_out(self) -> None:
        """Wait until the running workers have shared out every partition of the topic among themselves.

        Raises:
            NotInTime: They have not.
        """
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        from relevo.kafka_options import options_for_producer

        admin = AdminClient(options_for_producer(self.orders.kafka, self.orders.options))
        group = names.workers_group(self.orders.cluster, self.orders.type)

        def shared_out() -> bool:
            if not all(worker.running for worker in self._workers):
                for worker in self._workers:
                    worker.check()
            try:
                members = admin.describe_consumer_groups([group])[group].result().members
            except KafkaException:
                return False  # not there yet, or its broker is away
            owned = [len(member.assignment.topic_partitions) for member in members]
            fair = self.orders.partitions // len(self._workers)
            return (
                len(members) == len(self._workers)
                and sum(owned) >= self.orders.partitions
                and min(owned) >= fair
            )

        wait_for(shared_out, "the workers have shared out the partitions", timeout_s=_JOINED_S)

    def _hit(self, number: int, hurt: Callable[[Server], None]) -> Moment:
        worker = self._workers[number]
        name, at = self.name_of(worker), now_ms()
        hurt(worker)
        hit = Moment(at, name, now_ms())
        self.hits.append(hit)
        return hit

    def _process(self, name: str, number: int, kind: str, *more: str) -> Server:
        from relevo_engine.local.server import Server, ServerSpec

        orders = str(self._folder / "orders.json")
        command = (sys.executable, "-m", "relevo.testing.load", kind, orders, *more)
        return Server(ServerSpec(name, number, command, self._folder / name, 0, lambda: True))
