"""A steady load from processes of its own: one that creates jobs, and workers.

The processes that are hurt, those that load and the one that measures are different ones, so that a fault is
real and a measurement isn't disturbed by the load. The rate doesn't depend on answers: while a partition has
no leader, jobs are sent on.

Run as ``python -m relevo.testing.load create|work|call ORDERS`` with a file of `Orders` as JSON; a third
argument is a worker's lasting name in its consumer group.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import math
import os
import signal
import sys
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any, Final, Protocol

import relevo
from relevo.dedup.store import Answer, Claim, Done, Finish, StoreTransaction
from relevo.testing.calls import Callers, Nodes
from relevo.testing.effects import effects_at
from relevo.testing.ledger import LedgerFile, now_ms
from relevo_schemas.partitioning import partition_of

IN_FLIGHT_MAX: Final = 50_000
_ANSWER_S: Final = 300.0
_DRAIN_S: Final = 5.0
_WAKE_S: Final = 0.1


@dataclass(frozen=True)
class Orders:
    """What the processes are to do. Kept in a file that only its owner can read: it may hold passwords.

    Attributes:
        kafka: Bootstrap servers.
        cluster: The cluster's name.
        partitions: How many it has.
        type: The job type.
        folder: Where the ledger's files go.
        rate: Jobs per second.
        lease_s: Lease of each job.
        work_s: How long an effect takes.
        long_every: One of so many jobs of each partition takes `long_s` instead; 0: none.
        long_s: How long that is.
        calls: Calls per second that wait for their answer, see `relevo.testing.calls`.
        zookeeper: Where nodes are looked up that such calls go to.
        nodes: Addresses of the nodes' HTTP APIs, as far as they are known.
        concurrency: Effects at once in each worker. More than piles up behind a dead one: what counts is when
            the others come to it, and not how long they work on it.
        redis: Address of a dedup store that all workers share; empty: each has one in memory.
        jobs: How many jobs; 0: until SIGTERM.
        effects: Where effects happen, and are counted; empty: nowhere but in the ledger.
        effects_name: What they are called there.
        options: More librdkafka options.
    """

    kafka: str
    cluster: str
    partitions: int
    type: str
    folder: str
    rate: float
    lease_s: float = 5.0
    work_s: float = 0.05
    long_every: int = 0
    long_s: float = 0.6
    calls: float = 0.0
    zookeeper: str = ""
    nodes: list[str] = field(default_factory=list)
    concurrency: int = 512
    redis: str = ""
    jobs: int = 0
    effects: str = ""
    effects_name: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Write them for `read`."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(asdict(self), file)

    @staticmethod
    def read(path: Path) -> Orders:
        """Read what `write` wrote."""
        return Orders(**json.loads(path.read_text(encoding="utf-8")))


def keys_in_turn(partitions: int, prefix: str) -> Iterator[str]:
    """New keys, one of each partition after the other: every partition gets its jobs at even distances.

    Chance would leave a partition without a job for several times the mean distance, which looks like a gap.
    """
    numbers = itertools.count()
    waiting: dict[int, list[str]] = {partition: [] for partition in range(partitions)}
    for partition in itertools.cycle(range(partitions)):
        while not waiting[partition]:
            key = f"{prefix}-{next(numbers)}"
            waiting[partition_of(key, partitions)].append(key)
        yield waiting[partition].pop(0)


def takes_long(number: int, partitions: int, every: int) -> bool:
    """Whether a job, counted from 0 while partitions take turns, is one of the long ones.

    Each partition gets one every so many of its jobs, and not all partitions theirs at once.
    """
    turn, partition = divmod(number, partitions)
    return every > 0 and (turn + partition * every // partitions) % every == 0


class StopFlag:
    """SIGTERM, for the main thread to wait for.

    No event: a signal within the lock of one that is being waited for would wait for itself.
    """

    def __init__(self) -> None:
        self._asked = False
        signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._asked = True

    def wait(self, seconds: float = math.inf) -> bool:
        """Whether it has come, now or within so many seconds."""
        until = time.monotonic() + seconds
        while not self._asked and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _WAKE_S))
        return self._asked


class Waited(Protocol):
    """What ends a load: a `StopFlag`, or an event in a process without signals."""

    def wait(self, seconds: float, /) -> bool:
        """Whether it is over, now or within so many seconds."""


def at_rate(rate: float, stop: Waited) -> Iterator[int]:
    """Counts ``rate`` times a second until told to stop; what is late comes at once."""
    began = time.monotonic()
    for number in itertools.count():
        if stop.wait(max(0.0, began + number / rate - time.monotonic())):
            return
        yield number


class NotedStore(relevo.DedupStore):
    """A dedup store whose claims stand in the ledger, from before they are asked for.

    Args:
        store: Answers.
        book: Is told.
    """

    def __init__(self, store: relevo.DedupStore, book: LedgerFile) -> None:
        self.ttl = store.ttl
        self._store = store
        self._book = book

    def claim(self, claims: Sequence[Claim]) -> list[Answer]:  # noqa: D102 - as in the contract
        self._book.claiming(each.key.rpartition(":")[2] for each in claims)
        answers = self._store.claim(claims)
        done = [each.key for each, answer in zip(claims, answers, strict=True) if isinstance(answer, Done)]
        if done:
            self._book.suppressed(key.rpartition(":")[2] for key in done)
        return answers

    def renew(self, claims: Sequence[Claim]) -> list[Answer]:  # noqa: D102
        return self._store.renew(claims)

    def done(self, finishes: Sequence[Finish]) -> list[Answer]:  # noqa: D102
        return self._store.done(finishes)

    def release(self, claims: Sequence[Claim]) -> list[Answer]:  # noqa: D102
        return self._store.release(claims)

    def transaction(self, claim: Claim, ttl: float | None) -> StoreTransaction:  # noqa: D102
        return self._store.transaction(claim, ttl)

    def check(self) -> None:  # noqa: D102
        self._store.check()

    def close(self) -> None:  # noqa: D102
        self._store.close()


def create(orders: Orders) -> None:
    """Create jobs, as many as are wanted or until SIGTERM, and note what Kafka acknowledged."""
    stop = StopFlag()
    book = LedgerFile(Path(orders.folder), f"creator-{os.getpid()}")
    sent: dict[str, float] = {}
    keys = keys_in_turn(orders.partitions, f"d{os.getpid()}-{int(now_ms()) % 100_000_000}")

    def jobs() -> Iterator[relevo.NewJob]:
        for number in itertools.islice(at_rate(orders.rate, stop), orders.jobs or None):
            key = next(keys)
            sent[key] = now_ms()
            variables = {"sent": sent[key]}
            if takes_long(number, orders.partitions, orders.long_every):
                variables["work"] = orders.long_s
            yield relevo.NewJob(type=orders.type, key=key, variables=variables, lease=orders.lease_s)

    with relevo.Client(orders.kafka, cluster=orders.cluster, **orders.options) as client:
        for made in client.create_many(jobs(), in_flight=IN_FLIGHT_MAX, timeout=_ANSWER_S):
            if made.key is None:
                raise RuntimeError(f"a job without a key: {made.error}")
            if made.error is None:
                book.accepted(made.key, sent.pop(made.key))
            else:
                sent.pop(made.key)
                book.refused(made.key, str(made.error))
    book.close()
    if orders.jobs:
        # One that ends by itself looks as if it had failed.
        stop.wait()


def work(orders: Orders) -> None:
    """Run jobs until SIGTERM, and note each effect before and after it happens."""
    book = LedgerFile(Path(orders.folder), f"worker-{os.getpid()}")
    effects = effects_at(orders.effects, orders.effects_name) if orders.effects else None
    store = _store(orders) if effects is None else effects.store(orders.concurrency)
    app = relevo.WorkerApp(orders.kafka, orders.cluster, dedup=NotedStore(store, book), **orders.options)

    @app.job(orders.type, concurrency=orders.concurrency, lease=orders.lease_s)
    async def handle(job: relevo.Job) -> None:
        seconds = float(job.variables.get("work", orders.work_s))
        effect = asyncio.sleep(seconds) if effects is None else effects.perform(job, seconds)
        await noted(book, job, effect)

    app.run(drain=_DRAIN_S)
    book.close()


def call(orders: Orders) -> None:
    """Create and read as users do, and wait for each answer; until SIGTERM."""
    stop = StopFlag()
    book = LedgerFile(Path(orders.folder), f"caller-{os.getpid()}")
    places = Nodes(orders.nodes, orders.zookeeper, orders.cluster)
    with relevo.Client(orders.kafka, cluster=orders.cluster, **orders.options) as client:
        callers = Callers(client, places, book, job_type=orders.type, lease_s=orders.lease_s)
        with callers:
            for number in at_rate(orders.calls, stop):
                callers.call(number)
    book.close()


async def noted(book: LedgerFile, job: relevo.Job, effect: Coroutine[Any, Any, None]) -> None:
    """Let an effect happen, and note how that began and ended."""
    book.begun(job.key, job.attempt)
    try:
        await effect
    except BaseException:
        # Without a line it would look as if it were under way for ever.
        book.failed(job.key, job.attempt)
        raise
    book.ended(job.key, job.attempt)


def _store(orders: Orders) -> relevo.DedupStore:
    if not orders.redis:
        return relevo.MemoryDedupStore()
    # Drills end workers, and not Redis: a throw-away one will do.
    return relevo.RedisDedupStore(orders.redis, volatile_ok=True)


def main(arguments: list[str]) -> int:
    """Run one of the processes."""
    kinds = {"create": create, "work": work, "call": call}
    if len(arguments) not in (2, 3) or arguments[0] not in kinds:
        sys.stderr.write("usage: python -m relevo.testing.load create|work|call ORDERS [GROUP_INSTANCE_ID]\n")
        return 2
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    orders = Orders.read(Path(arguments[1]))
    if len(arguments) == 3:
        orders = replace(orders, options={**orders.options, "group_instance_id": arguments[2]})
    kinds[arguments[0]](orders)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
