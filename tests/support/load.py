"""A steady load on a cluster, with a ledger of effects kept outside of the engine."""

from __future__ import annotations

import threading
import time
from collections import Counter
from types import TracebackType
from typing import Self

import relevo
from relevo_engine.local.cluster import LocalCluster
from tests.support.job_log import JobLog, read_job_log
from tests.support.waiting import wait_until

RATE = 100
"""Jobs per second."""


class Load:
    """Creates jobs at `RATE` and works on them, both in threads of this process.

    Attributes:
        accepted: Keys that Kafka acknowledged.
        effects: Runs of the handler by key.
        last_effect: When the last one was, in monotonic seconds.
        longest_gap_s: The longest time between two effects in a row since `mark`.
    """

    def __init__(self, cluster: LocalCluster, job_type: str) -> None:
        self.accepted: set[str] = set()
        self.effects: Counter[str] = Counter()
        self.last_effect = time.monotonic()
        self.longest_gap_s = 0.0
        self._cluster = cluster
        self._type = job_type
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._creator = threading.Thread(target=self._create, name="creator", daemon=True)
        self._app = relevo.WorkerApp(cluster.kafka, cluster=cluster.name)
        self._app.job(job_type, concurrency=16)(self._handle)

    def __enter__(self) -> Self:
        """Start, and wait until jobs flow."""
        self._app.start()
        self._creator.start()
        self.await_effects(RATE)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop creating and working."""
        self._stop.set()
        self._creator.join(30)
        self._app.stop(5)

    def _handle(self, job: relevo.Job) -> dict[str, int]:
        with self._lock:
            now = time.monotonic()
            self.longest_gap_s = max(self.longest_gap_s, now - self.last_effect)
            self.last_effect = now
            self.effects[job.key] += 1
        return {"attempt": job.attempt}

    def _create(self) -> None:
        try:
            with relevo.Client(self._cluster.kafka, cluster=self._cluster.name) as client:
                while not self._stop.wait(0.1):
                    jobs = [{"type": self._type, "variables": {"n": n}} for n in range(RATE // 10)]
                    for made in client.create_many(jobs, timeout=60):
                        if made.key is not None and made.error is None:
                            self.accepted.add(made.key)
        except BaseException as error:
            self._failure = error

    def mark(self) -> None:
        """Measure the longest gap from here on."""
        with self._lock:
            self.longest_gap_s = 0.0
            self.last_effect = time.monotonic()

    def await_effects(self, more: int, timeout_s: float = 60.0) -> None:
        """Wait until so many more effects have happened."""
        wanted = self.effects.total() + more
        wait_until(lambda: self.effects.total() >= wanted, f"{more} more effects", timeout_s=timeout_s)

    def finish(self, timeout_s: float = 90.0) -> JobLog:
        """Stop creating, wait for the last job, and read the log: nothing lost, nothing finished twice."""
        self._stop.set()
        self._creator.join(60)
        assert self._failure is None, f"creating failed: {self._failure!r}"
        accepted = set(self.accepted)
        wait_until(
            lambda: accepted <= self.effects.keys(),
            "every accepted job has had its effect",
            timeout_s=timeout_s,
        )
        log = self._read()
        deadline = time.monotonic() + timeout_s
        while not accepted <= log.completed() and time.monotonic() < deadline:
            log = self._read()
        assert log.check.sound, log.check.faults
        assert accepted <= log.completed(), (
            f"{len(accepted - log.completed())} accepted jobs are not completed"
        )
        return log

    def _read(self) -> JobLog:
        timeout_s = 60 + len(self.accepted) / 1_000  # a long run's log takes minutes
        return read_job_log(
            self._cluster.kafka, self._cluster.name, self._cluster.partitions, timeout_s=timeout_s
        )
