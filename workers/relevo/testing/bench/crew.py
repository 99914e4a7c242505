"""The processes that load a cluster, and what is measured: rates, and latencies under a given rate."""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from relevo import names
from relevo.testing.bench import roles
from relevo.testing.bench.child import Child, ChildError, wait_for
from relevo.testing.bench.log_times import end_of_log, span_of
from relevo.testing.bench.timing import first_seen, latencies_ms, quantiles

READY_S: Final = 90.0
_ANSWER_S: Final = 30.0


@dataclass(frozen=True)
class Load:
    """Where, and with what, jobs are made and done.

    Attributes:
        kafka: Bootstrap servers.
        cluster: The cluster's name.
        partitions: How many its job type has.
        type: The job type.
        workers: Worker processes.
        concurrency: Handlers at once in each.
        dedup: ``none``, ``memory``, or the address of a store.
        expires_s: A job that is still open after so many seconds ends by itself; None: none does.
        options: More librdkafka options.
        environment: Variables of the processes; None: this process's. Another PYTHONPATH runs another
            revision.
    """

    kafka: str
    cluster: str
    partitions: int
    type: str = "noop"
    workers: int = 2
    concurrency: int = 100
    dedup: str = "memory"
    expires_s: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Rate:
    """What one run at full speed came to.

    Attributes:
        jobs: How many.
        seconds: From the first JobCreated to the last JobCompleted, by the leaders' clocks.
        create_s: How long the client took to have all of them accepted.
        worker_cpu_s: Processor time of all workers.
        client_cpu_s: Processor time of the client so far.
    """

    jobs: int
    seconds: float
    create_s: float
    worker_cpu_s: float
    client_cpu_s: float

    @property
    def per_s(self) -> float:
        """Jobs per second."""
        return self.jobs / self.seconds


class Crew:
    """A client and workers, each a process; ended with the ``with`` block whatever happens.

    Args:
        load: What they do.
        folder: For their orders, logs and notes; orders may hold passwords.
        notes: Whether workers note when each handler started, for latencies; rates are measured without.

    Attributes:
        runs: The prefixes of all keys that were made.
    """

    def __init__(self, load: Load, folder: Path, *, notes: bool = False) -> None:
        self.load = load
        self.runs: list[str] = []
        self._folder = folder
        self._notes = notes
        self._children: list[Child] = []
        self._workers: list[Child] = []
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def __enter__(self) -> Self:
        """Start them and wait until the workers have shared out the partitions.

        Raises:
            ChildError: They don't get to work.
        """
        try:
            self._write_orders()
            self._workers = [self._start(f"worker-{n}", "work") for n in range(1, self.load.workers + 1)]
            self._client = self._start("client", "create")
            self._client.answer("ready", READY_S)
            self._watcher = self._start("watcher", "watch") if self._notes else None
            if self._watcher is not None:
                self._watcher.answer("ready", READY_S)
            self._await_members()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all of them. Twice does no harm."""
        for child in reversed(self._children):
            child.stop()
        self._children.clear()

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by name."""
        return {child.name: child.pid for child in self._children}

    def rate(self, jobs: int, size: int, timeout_s: float = 600.0) -> Rate:
        """Create so many jobs as fast as possible, and wait until all are completed.

        Args:
            jobs: How many.
            size: Bytes of each job's variables.
            timeout_s: The longest wait, in seconds.

        Raises:
            ChildError: A job was refused, or they weren't done in time.
        """
        run = self._next_run()
        load = self.load
        place = end_of_log(load.kafka, load.cluster, load.options)
        done, cpu_s = self._done(), self._cpu_s()
        self._client.order(run=run, jobs=jobs, bytes=size)
        wait_for(
            lambda: self._done() - done >= jobs, f"{jobs} jobs are done", self._children, timeout_s, 0.05
        )
        created = self._accepted(run, timeout_s)
        span = span_of(load.kafka, load.cluster, load.options, place, run, jobs, _ANSWER_S)
        return Rate(
            jobs=jobs,
            seconds=span.seconds,
            create_s=created["ended"] - created["began"],
            worker_cpu_s=round(self._cpu_s() - cpu_s, 3),
            client_cpu_s=created["cpu_s"],
        )

    def latency(self, rate: float, seconds: float, size: int, warm_s: float = 2.0) -> dict[str, Any]:
        """Offer so many jobs per second, and say how long after its due time each was started and completed.

        Args:
            rate: Jobs per second.
            seconds: For how long, beyond the warm-up.
            size: Bytes of each job's variables.
            warm_s: The jobs of the first so many seconds are left out.

        Returns:
            ``start`` and ``completed`` with their quantiles in milliseconds, and ``offered``.

        Raises:
            ChildError: The jobs weren't done in time.
        """
        if self._watcher is None:
            raise ValueError("a crew without notes measures no latency")
        run, jobs = self._next_run(), round(rate * (seconds + warm_s))
        watcher, seen = self._watcher, int(self._watcher.told.get("seen", 0))
        timeout_s = 2 * (seconds + warm_s) + READY_S
        self._client.order(run=run, jobs=jobs, bytes=size, rate=rate)
        wait_for(
            lambda: int(watcher.told.get("seen", 0)) - seen >= jobs,
            f"{jobs} completions are seen",
            self._children,
            timeout_s,
            0.1,
        )
        began = self._accepted(run, timeout_s)["began"]
        skip = round(rate * warm_s)
        found: dict[str, Any] = {"offered": rate, "jobs": jobs - skip}
        for kind, name in (("starts", "start"), ("ends", "completed")):
            notes = self._all_notes(kind, run, jobs)
            found[name] = quantiles(latencies_ms(began, rate, notes, skip))
        return found

    def _all_notes(self, kind: str, run: str, jobs: int) -> dict[int, float]:
        """By job, when it was first noted; what was counted as seen may be the late end of another run."""
        notes: dict[int, float] = {}

        def complete() -> bool:
            notes.update(first_seen(_notes(self._folder.glob(f"{kind}-*.txt"), run)))
            return len(notes) >= jobs

        wait_for(complete, f"{jobs} jobs are in the notes ({kind})", self._children, _ANSWER_S, 0.2)
        return notes

    def _accepted(self, run: str, timeout_s: float) -> dict[str, Any]:
        while True:
            told = self._client.answer("began", timeout_s)
            if told["run"] == run:
                break
        if told["refused"]:
            raise ChildError(f"{told['refused']} jobs were refused: {told['errors']}")
        return told

    def _next_run(self) -> str:
        self.runs.append(f"bench-{uuid.uuid4().hex[:12]}")
        return self.runs[-1]

    def _done(self) -> int:
        return sum(int(worker.told.get("done", 0)) for worker in self._workers)

    def _cpu_s(self) -> float:
        return sum(float(worker.told.get("cpu_s", 0.0)) for worker in self._workers)

    def _write_orders(self) -> None:
        load = self.load
        orders = {
            "kafka": load.kafka, "cluster": load.cluster, "type": load.type, "dedup": load.dedup,
            "concurrency": load.concurrency, "options": dict(load.options), "notes": self._notes,
            "folder": str(self._folder), "expires_s": load.expires_s,
        }  # fmt: skip
        path = self._folder / "orders.json"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(orders, file)

    def _start(self, name: str, role: str) -> Child:
        command = (sys.executable, "-P", roles.__file__, role, str(self._folder / "orders.json"))
        child = Child(name, command, self._folder, self.load.environment)
        self._children.append(child)
        return child

    def _await_members(self) -> None:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        from relevo.kafka_options import options_for_producer

        load = self.load
        admin = AdminClient(options_for_producer(load.kafka, load.options))
        group = names.workers_group(load.cluster, load.type)

        def shared_out() -> bool:
            try:
                members = admin.describe_consumer_groups([group])[group].result().members
            except KafkaException:
                return False  # not there yet
            owned = [len(member.assignment.topic_partitions) for member in members]
            fair = load.partitions // load.workers
            return len(owned) == load.workers and sum(owned) >= load.partitions and min(owned) >= fair

        wait_for(
            shared_out, "the workers have shared out the partitions", self._children, READY_S, every_s=0.2
        )


def _notes(paths: Iterable[Path], run: str) -> Iterable[tuple[int, float]]:
    for path in paths:
        with path.open(encoding="ascii") as lines:
            for line in lines:
                key, _, at = line.rstrip("\n").rpartition(" ")
                prefix, _, number = key.rpartition("-")
                if prefix == run:
                    yield int(number), float(at)


def scratch_name() -> str:
    """For a folder of one measurement."""
    return time.strftime("%H%M%S") + f"-{uuid.uuid4().hex[:6]}"
