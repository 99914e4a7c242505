"""A real restart: fill a log, start one node on it, let it take a snapshot, kill it, start it again.

``python -m tests.benchmarks.restart [JOBS]`` does it with brokers of its own and prints what it measured.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer

import relevo
from relevo_engine.api.client import ApiClient
from relevo_engine.local.brokers import LocalBrokers
from relevo_engine.topic_admin import TopicAdmin
from relevo_schemas.codec import encode, job_spec
from relevo_schemas.events import (
    JobActivated,
    JobCompleted,
    JobCreated,
    JobStarted,
    JobTimedOut,
    LeaderElected,
)
from relevo_schemas.records import Event
from tests.support.brokers import Brokers
from tests.support.job_log import read_job_log
from tests.support.nodes import NodeProcess
from tests.support.waiting import wait_until

TYPE: Final = "noop"
TRANSACTION: Final = 20_000
"""Events per transaction of the log that is made here."""
TOGETHER: Final = 500
"""Jobs that are open at once in the mixed log, as under load."""
LEASE_MS: Final = 3_000
"""The new leader gives every lease its full length once more; then all run out in the same moment."""
WAIT_S: Final = 600.0
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Start:
    """One start of a node: times in seconds from the process's start, memory in MiB."""

    leading_s: float
    """Until the partition's term was announced."""
    ready_s: float
    """Until the node said that it is ready."""
    cpu_s: float
    """Processor time of the process until then."""
    rss_mib: int
    """Its memory then."""
    load: float
    """The machine's load average then: others may have used it."""
    snapshot: str | None
    """The snapshot that it began with."""
    following_s: float
    """Of `leading_s`: from the role in which it loads and applies the log to the one in which it is hot."""


def key(number: int) -> str:
    """Of a job."""
    return f"job-{number:08d}"


def variables(number: int) -> bytes:
    """Of a job: 200 bytes, of which no compression makes less than a third."""
    note = blake2b(b"%d" % number).hexdigest()
    return b'{"to":"ana@example.com","subject":"hola","order":"A-%08d","note":"%b"}' % (number, note.encode())


def created(jobs: int, at: int, type: str = TYPE) -> Iterable[Event]:
    """The log of a partition with so many open jobs."""
    yield LeaderElected(1, 1, at, -1, "filler", "f" * 32)
    for n in range(jobs):
        spec = job_spec(key=key(n), type=type, variables=variables(n))
        yield JobCreated(n + 2, 1, at, -1, spec)


def started(jobs: int, at: int, lease_ms: int) -> Iterable[Event]:
    """The log of a partition whose jobs all run, under a lease that is over at once."""
    yield LeaderElected(1, 1, at, -1, "filler", "f" * 32)
    for n in range(jobs):
        seq = 3 * n + 2
        spec = job_spec(key=key(n), type=TYPE, variables=variables(n), lease_ms=lease_ms)
        yield JobCreated(seq, 1, at, -1, spec)
        yield JobActivated(seq + 1, 1, at, -1, spec.key, 1, 0)
        yield JobStarted(seq + 2, 1, at, -1, spec.key, 1, "w1", lease_ms)


def mixed(jobs: int, at: int) -> Iterable[Event]:
    """The log of a partition that has done so many jobs, some hundred of them at once."""
    yield LeaderElected(1, 1, at, -1, "filler", "f" * 32)
    seq = 1
    for first in range(0, jobs, TOGETHER):
        specs = [
            job_spec(key=key(n), type=TYPE, variables=variables(n))
            for n in range(first, min(jobs, first + TOGETHER))
        ]
        for spec in specs:
            yield JobCreated(seq := seq + 1, 1, at, -1, spec)
        for spec in specs:
            yield JobActivated(seq := seq + 1, 1, at, -1, spec.key, 1, 0)
        for spec in specs:
            yield JobCompleted(seq := seq + 1, 1, at, -1, spec.key, 1, b"null")


def fill(kafka: str, cluster: str, events: Iterable[Event]) -> int:
    """Write ``events`` to partition 0 of the log, in large transactions; how many there were."""
    producer = Producer(
        {
            "bootstrap.servers": kafka,
            "transactional.id": f"{cluster}-filler",
            "linger.ms": 5,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 2 * TRANSACTION,
        }
    )
    producer.init_transactions(60)
    count = 0
    batch: list[dict[str, Any]] = []

    def commit() -> None:
        producer.begin_transaction()
        producer.produce_batch(f"{cluster}.log", batch)
        producer.commit_transaction(60)
        batch.clear()

    for event in events:
        batch.append({"key": _key_of(event), "value": encode(event), "partition": 0})
        count += 1
        if len(batch) == TRANSACTION:
            commit()
    if batch:
        commit()
    return count


def _key_of(event: Event) -> bytes:
    if isinstance(event, LeaderElected):
        return b""
    return (event.job.key if isinstance(event, JobCreated) else str(getattr(event, "key", ""))).encode()


def flags(brokers: Brokers, cluster: str) -> tuple[str, ...]:
    """How a node joins a cluster of one partition."""
    return (
        "--kafka", brokers.kafka, "--zookeeper", brokers.zookeeper, "--cluster", cluster,
        "--node-id", "a", "--partitions", "1", "--allow-unsafe-topics", "--settle-s", "0",
    )  # fmt: skip


class Restarted:
    """A node that is started on one partition, again and again.

    Args:
        brokers: Where Kafka and ZooKeeper are.
        cluster: Name of the cluster, whose topics exist.
        settings: More of the node's, as environment variables.
    """

    def __init__(self, brokers: Brokers, cluster: str, **settings: str) -> None:
        self._flags = flags(brokers, cluster)
        self._settings = settings

    def node(self) -> NodeProcess:
        """A process, to be entered; see `measure`."""
        return NodeProcess(*self._flags, **self._settings)

    def measure(self, node: NodeProcess, began: float) -> Start:
        """Wait until the node leads and is ready.

        Args:
            node: Running.
            began: When it was started, in seconds since the Unix epoch.
        """
        node.await_ready(WAIT_S)
        ready_s = time.time() - began
        cpu_s, rss_mib = usage(node.pid)
        (takeover,) = ApiClient(node.address).get("/v1/takeovers")["takeovers"]
        loaded = [line for line in notes(node) if line["event"] == "snapshot_loaded"]
        return Start(
            leading_s=round(takeover["announced_at"] / 1000 - began, 2),
            ready_s=round(ready_s, 2),
            cpu_s=round(cpu_s, 2),
            rss_mib=rss_mib,
            load=round(os.getloadavg()[0], 1),
            snapshot=loaded[0]["snapshot"] if loaded else None,
            following_s=round(role_at(node, "STANDBY") - role_at(node, "FOLLOWING"), 2),
        )


def notes(node: NodeProcess) -> list[dict[str, Any]]:
    """The lines of a node's log so far."""
    found = []
    for line in node.err.splitlines():
        if line.startswith("{") and line.endswith("}"):
            found.append(json.loads(line))
    return found


def role_at(node: NodeProcess, role: str) -> float:
    """When a node first had ``role``, in seconds since the Unix epoch."""
    changes = (line for line in notes(node) if line["event"] == "role changed" and line["after"] == role)
    return datetime.fromisoformat(next(changes)["at"]).timestamp()


def take_snapshot(node: NodeProcess, sample: str) -> dict[str, Any]:
    """Wait until the node, which leads alone, has taken a snapshot and verified it; what it said of that."""
    api = ApiClient(node.address)

    def verified() -> bool:
        api.job(sample)  # proven by a commit, without which a lone leader begins none
        return any(line["event"] == "snapshot_verified" for line in notes(node))

    wait_until(verified, "a snapshot is verified", timeout_s=WAIT_S)
    said = {line["event"]: line for line in notes(node) if line["event"].startswith("snapshot_")}
    return {
        "pause_ms": said["snapshot_begun"]["pause_ms"],
        "slice_max_ms": said["snapshot_written"]["slice_max_ms"],
        "seconds": said["snapshot_written"]["seconds"],
        "bytes": said["snapshot_written"]["bytes"],
        "verify_seconds": said["snapshot_verified"]["seconds"],
    }


def restart(brokers: Brokers, cluster: str, jobs: int) -> dict[str, Any]:
    """Lead from the log alone, take a snapshot, be killed, lead from the snapshot."""
    TopicAdmin(brokers.kafka, cluster).init(1, [TYPE], allow_unsafe=True)
    began = time.monotonic()
    events = fill(brokers.kafka, cluster, created(jobs, int(time.time() * 1000) - 60_000))
    report: dict[str, Any] = {"jobs": jobs, "fill_s": round(time.monotonic() - began, 1)}
    subject = Restarted(brokers, cluster, RELEVO_SNAPSHOT_EVENTS="1000", RELEVO_SNAPSHOT_INTERVAL_S="1")
    at = time.time()
    with subject.node() as node:
        first = subject.measure(node, at)
        check(node, jobs)
        report["from_log"] = asdict(first) | {"events_per_s": round(events / first.following_s)}
        report["snapshot"] = take_snapshot(node, key(0))
        node.signal(signal.SIGKILL)
        node.await_exit()
    at = time.time()
    with subject.node() as node:
        report["from_snapshot"] = asdict(subject.measure(node, at))
        check(node, jobs)
        with relevo.Client(brokers.kafka, cluster=cluster) as client:
            made = client.create(TYPE, key="after-the-restart", wait="decided")
        assert made.created
        assert ApiClient(node.address).job("after-the-restart")["type"] == TYPE
    return report


def replay_rate(brokers: Brokers, cluster: str, events: Iterable[Event]) -> dict[str, Any]:
    """Start one node on a log of ``events``; how many it read and applied in a second."""
    TopicAdmin(brokers.kafka, cluster).init(1, [TYPE], allow_unsafe=True)
    count = fill(brokers.kafka, cluster, events)
    subject = Restarted(brokers, cluster)
    at = time.time()
    with subject.node() as node:
        found = subject.measure(node, at)
    return asdict(found) | {"events": count, "events_per_s": round(count / found.following_s)}


def overdue_leases(brokers: Brokers, cluster: str, jobs: int) -> dict[str, Any]:
    """Take over a partition whose leases all run out at once, and create jobs meanwhile."""
    TopicAdmin(brokers.kafka, cluster).init(1, [TYPE], allow_unsafe=True)
    fill(brokers.kafka, cluster, started(jobs, int(time.time() * 1000) - 60_000, LEASE_MS))
    subject = Restarted(brokers, cluster)
    answers: list[float] = []
    ages = [0.0]
    at = time.time()
    with subject.node() as node, relevo.Client(brokers.kafka, cluster=cluster) as client:
        report = asdict(subject.measure(node, at))
        give_up_at = time.monotonic() + WAIT_S
        while ages[-1] or not max(ages):
            assert time.monotonic() < give_up_at, "the backlog isn't worked off"
            began = time.monotonic()
            client.create(TYPE, key=f"meanwhile-{len(answers)}", wait="decided")
            answers.append(time.monotonic() - began)
            ages.append(gauge(node, 'relevo_oldest_overdue_lease_seconds{partition="0"}'))
    log = read_job_log(brokers.kafka, cluster, 1, timeout_s=WAIT_S)
    assert log.check.sound
    events = [event for _, event in log.events if event.epoch > 1]
    ended = [place for place, event in enumerate(events) if isinstance(event, JobTimedOut)]
    assert len({events[place].key for place in ended}) == jobs  # type: ignore[attr-defined]
    between = [
        place
        for place, event in enumerate(events)
        if isinstance(event, JobCreated) and ended[0] < place < ended[-1]
    ]
    # One step has one time.
    steps = Counter(events[place].at for place in ended)
    return report | {
        "leases": jobs,
        "backlog_s": round((events[ended[-1]].at - events[ended[0]].at) / 1000, 2),
        "created_meanwhile": len(between),
        "answer_max_s": round(max(answers), 3),
        "oldest_overdue_max_s": round(max(ages), 2),
        "per_step_max": max(steps.values()),
    }


def gauge(node: NodeProcess, name: str) -> float:
    """A number of the node's metrics; 0 where it isn't told."""
    with urllib.request.urlopen(f"http://{node.address}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(name)), 0.0)


def check(node: NodeProcess, jobs: int) -> None:
    """Whether all jobs are there, and a sample of them as they were made."""
    api = ApiClient(node.address)
    (row,) = api.get("/v1/partitions")["partitions"]
    assert sum(row["jobs"].values()) == jobs, row
    for n in {0, 1, jobs // 3, jobs // 2, jobs - 1}:
        job = api.job(key(n))
        assert (job["type"], job["variables"]) == (TYPE, json.loads(variables(n))), job


def usage(pid: int) -> tuple[float, int]:
    """Processor time in seconds and memory in MiB of a process, where the system tells (Linux)."""
    place = Path(f"/proc/{pid}")
    if not place.is_dir():
        return 0.0, 0
    fields = (place / "stat").read_text().rpartition(")")[2].split()
    pages = int((place / "statm").read_text().split()[1])
    return (int(fields[11]) + int(fields[12])) / _TICKS, pages * os.sysconf("SC_PAGE_SIZE") // 2**20


def main(jobs: int) -> None:
    """With brokers of its own."""
    with LocalBrokers(for_tests=False) as brokers:
        print(json.dumps(restart(brokers, "restart", jobs), indent=2), flush=True)
        log = mixed(jobs // 3, int(time.time() * 1000) - 60_000)
        print(json.dumps(replay_rate(brokers, "replay", log), indent=2), flush=True)
        print(json.dumps(overdue_leases(brokers, "overdue", jobs // 10), indent=2))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
