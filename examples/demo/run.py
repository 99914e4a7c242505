"""The demo: a three-node cluster runs jobs, the leader of most partitions is killed, and nothing is lost.

``make demo`` runs it. It starts real brokers and real node and worker processes, ends one node by kill -9 in
the middle, and writes what two independent witnesses say (see `report`) to ``build/demo-report.json``. Exit
code 0 only if every line was a job, every accepted job was completed, a successor took over, and the log is
sound; bad lines are told, and the good ones run.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import orjson
from confluent_kafka import Consumer
from inputs import made_of, read_jobs, repeated
from report import LogReader, Report, effects, make_report
from surroundings import await_workers
from view import View

import relevo
from relevo.cli.job_lines import GoodLine
from relevo_engine.errors import EngineError
from relevo_engine.local.cluster import LocalCluster
from relevo_engine.local.server import Server, ServerSpec

HERE = Path(__file__).parent
KILL_AT = 0.5
"""Part of the jobs that must have had their effect before the leader is killed."""
HELD_BACK = 0.4
"""Part of the jobs that are created once the leader is dead: a cluster without one must take them too."""
STALL_S = 90.0
"""Without any progress for so long, the demo gives up and reports what is missing."""


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Run jobs, kill the leader, prove that no job is lost.")
    parser.add_argument("--input", type=Path, default=HERE / "jobs.jsonl", help="JSONL file of jobs")
    parser.add_argument("--jobs", type=int, default=1000, help="how many jobs (default: 1000)")
    parser.add_argument("--nodes", type=int, default=3, help="node processes, at least 2 (default: 3)")
    parser.add_argument("--partitions", type=int, default=4, help="partitions (default: 4)")
    parser.add_argument("--workers", type=int, default=2, help="worker processes (default: 2)")
    parser.add_argument(
        "--brokers", type=int, choices=(1, 3), default=1, help="brokers to start (default: 1)"
    )
    parser.add_argument("--kafka", help="use these brokers instead of starting some")
    parser.add_argument("--zookeeper", help="use these ZooKeeper servers instead of starting some")
    parser.add_argument(
        "--report", type=Path, default=Path("build/demo-report.json"), help="where the report goes"
    )
    options = parser.parse_args()
    for name, least in (("jobs", 2), ("nodes", 2), ("partitions", 1), ("workers", 1)):
        if getattr(options, name) < least:
            parser.error(f"--{name} must be at least {least}")
    return options


class Creator(threading.Thread):
    """Creates the jobs: a first part at once, the rest after `go_on`."""

    def __init__(self, cluster: LocalCluster, jobs: list[relevo.NewJob]) -> None:
        super().__init__(name="creator", daemon=True)
        self.accepted: set[str] = set()
        self.refused: list[str] = []
        self.failure: Exception | None = None
        self._cluster = cluster
        self._jobs = jobs
        self._rest = threading.Event()

    def go_on(self) -> None:
        """Create what was held back."""
        self._rest.set()

    def run(self) -> None:
        """Create all jobs, then end."""
        try:
            with relevo.Client(self._cluster.kafka, cluster=self._cluster.name) as client:
                held_back_from = int(len(self._jobs) * (1 - HELD_BACK))
                self._create(client, self._jobs[:held_back_from])
                self._rest.wait()
                self._create(client, self._jobs[held_back_from:])
        except Exception as error:  # shown by the main thread, which would else wait for jobs that never come
            self.failure = error

    def _create(self, client: relevo.Client, jobs: list[relevo.NewJob]) -> None:
        for result in client.create_many(jobs):
            if result.error is None and result.key is not None:
                self.accepted.add(result.key)
            else:
                self.refused.append(f"{result.key}: {result.error}")


class Demo:
    """One run."""

    def __init__(self, options: argparse.Namespace, lines: list[GoodLine], folder: Path) -> None:
        self.jobs = list(repeated(lines, options.jobs))
        self.lines = len(lines)
        self.types = sorted({line.job.type for line in lines})
        self.options = options
        self.database = folder / "effects.sqlite"
        self.folder = folder
        self.view = View(len(self.jobs))
        self.killed_node = ""
        self.killed_at_ms = 0
        self.moved: set[int] = set()

    def run(self) -> tuple[Report, LogReader, Creator]:
        """Start everything, do the deed, read the witnesses, end everything."""
        options = self.options
        with ExitStack() as stack:
            cluster = LocalCluster(
                options.nodes,
                options.partitions,
                options.brokers,
                options.brokers,
                kafka=options.kafka,
                zookeeper=options.zookeeper,
                name=f"demo-{int(time.time())}" if options.kafka else "demo",
                types=self.types,
                home=self.folder,
                report=self.view.say,
            )
            stack.enter_context(cluster)
            self.view.say(made_of(self.lines, len(self.jobs)))
            self.view.say(f"{options.nodes} nodes; {self._leads(cluster)}")
            for server in self._servers(cluster):
                stack.callback(server.stop)
            await_workers(cluster, self.types, options.workers)
            self.view.say(
                f"{options.workers} workers wait for jobs; each effect is a request to a web server"
            )
            log = LogReader(self._consumer(cluster), f"{cluster.name}.log", options.partitions)
            stack.callback(log.close)
            stack.enter_context(self.view)
            creator = Creator(cluster, self.jobs)
            began = time.monotonic()
            creator.start()
            ended = self._watch(cluster, creator, log)
            log.read(1.0)
            report = make_report(
                log,
                effects(self.database),
                creator.accepted,
                self.killed_node,
                self.killed_at_ms,
                self.moved,
                ended - began,
            )
        return report, log, creator

    def _watch(self, cluster: LocalCluster, creator: Creator, log: LogReader) -> float:
        """Follow the run to its end, killing the leader in the middle; when the last job was completed."""
        progress = (-1, -1)
        progressed = time.monotonic()
        while True:
            log.read(0.1)
            done = effects(self.database) if self.database.exists() else Counter()
            self.view.show(len(creator.accepted), len(log.completed), len(done), self._status())
            if creator.failure is not None:
                raise creator.failure
            if not self.killed_node and len(done) >= len(self.jobs) * KILL_AT:
                self._kill(cluster)
                creator.go_on()
            if not creator.is_alive() and creator.accepted <= log.completed.keys():
                return time.monotonic()
            if progress != (len(log.completed), len(creator.accepted)):
                progress = (len(log.completed), len(creator.accepted))
                progressed = time.monotonic()
            elif time.monotonic() - progressed > STALL_S:
                self.view.say(f"no progress for {STALL_S:g} s: giving up")
                return time.monotonic()

    def _kill(self, cluster: LocalCluster) -> None:
        leaders = cluster.leaders()
        node_id, _ = Counter(leaders.values()).most_common(1)[0]
        self.killed_node = node_id
        self.moved = {partition for partition, leader in leaders.items() if leader == node_id}
        node = cluster.node(node_id)
        self.killed_at_ms = int(time.time() * 1000)
        node.kill()
        self.view.say(f"kill -9 {node_id}, leader of partitions {sorted(self.moved)}")

    def _status(self) -> str:
        return f"{self.killed_node} is dead" if self.killed_node else "all nodes alive"

    def _servers(self, cluster: LocalCluster) -> list[Server]:
        port_file = self.folder / "receiver.port"
        receiver = (sys.executable, str(HERE / "receiver.py"), "--database", str(self.database))
        started = [self._start("receiver", 1, (*receiver, "--port-file", str(port_file)), port_file)]
        surroundings = {
            "RELEVO_KAFKA": cluster.kafka,
            "RELEVO_CLUSTER": cluster.name,
            "DEMO_TARGET": f"http://127.0.0.1:{int(port_file.read_text())}",
            "DEMO_TYPES": ",".join(self.types),
            "PYTHONPATH": str(HERE),
        }
        variables = tuple(f"{name}={value}" for name, value in surroundings.items())
        worker = ("env", *variables, sys.executable, "-m", "relevo", "worker", "run", "deliver:app")
        for number in range(1, self.options.workers + 1):
            started.append(self._start("worker", number, worker, None))
        return started

    def _start(self, name: str, number: int, command: tuple[str, ...], ready_file: Path | None) -> Server:
        folder = self.folder / f"{name}-{number}"
        folder.mkdir(parents=True)
        ready = ready_file.exists if ready_file is not None else lambda: True
        server = Server(ServerSpec(f"{name}-{number}", number, command, folder, 0, ready))
        server.start()
        return server

    def _consumer(self, cluster: LocalCluster) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": cluster.kafka,
                "group.id": "demo-report",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",
            }
        )

    @staticmethod
    def _leads(cluster: LocalCluster) -> str:
        led = Counter(cluster.leaders().values())
        return ", ".join(f"{node.node_id} leads {led[node.node_id] or 'none'}" for node in cluster.nodes)


def main() -> int:
    """Run the demo; 0 only if no line was bad, nothing was lost, and the log is sound."""
    options = parse_options()
    try:
        lines, bad = read_jobs(options.input)
    except OSError as error:
        print(f"demo: {options.input} can't be read: {error.strerror}", file=sys.stderr)
        return 2
    for problem in bad:
        print(f"demo: {options.input}: {problem}", file=sys.stderr)
    if not lines:
        print(f"demo: {options.input} has no job", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="relevo-demo-") as folder:
        demo = Demo(options, lines, Path(folder))
        try:
            report, log, creator = demo.run()
        except (EngineError, relevo.RelevoError) as error:
            print(f"demo: {error}", file=sys.stderr)
            return 2
    options.report.parent.mkdir(parents=True, exist_ok=True)
    options.report.write_bytes(orjson.dumps(report.as_dict(), option=orjson.OPT_INDENT_2) + b"\n")
    faults = [*creator.refused[:10], *log.check.faults[:10]]
    if bad:
        faults.append(f"{len(bad)} line(s) of {options.input} are no jobs and were left out, see above")
    demo.view.finish(report, faults, options.report)
    return 0 if report.sound and not creator.refused and not bad else 1


if __name__ == "__main__":
    sys.exit(main())
