"""A worker process on a real broker, as a probe and Prometheus see it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import relevo
from relevo_engine.local.ports import free_ports
from tests.support.brokers import Brokers
from tests.support.engine_thread import EngineThread
from tests.support.waiting import wait_until

HANDLERS = """
import relevo
app = relevo.WorkerApp()

@app.job("work", concurrency=3)
async def work(job: relevo.Job):
    if job.variables.get("bad"):
        raise relevo.Fail("no", retriable=False)
    return dict(job.headers)
"""
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Page:
    """What a worker process serves."""

    def __init__(self, port: int) -> None:
        self._port = port

    def get(self, path: str) -> tuple[int, str]:
        """Status and content; status 0: nobody is there."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def sample(self, name: str, **labels: str) -> float | None:
        """One figure of a scrape; None: it isn't there."""
        for family in text_string_to_metric_families(self.get("/metrics")[1]):
            for each in family.samples:
                if each.name == f"relevo_worker_{name}" and each.labels == {"type": "work", **labels}:
                    return each.value
        return None


@pytest.fixture
def engine(brokers: Brokers, cluster_name: str) -> Iterator[EngineThread]:
    with EngineThread(brokers.kafka, cluster_name, 2, ["work"]) as engine:
        yield engine


def test_a_worker_process_is_probed_and_scraped(engine: EngineThread, tmp_path: Path) -> None:
    """What is never run is what doesn't work on the day: its probe kills it, or never does."""
    (tmp_path / "handlers.py").write_text(HANDLERS)
    port = free_ports(1)[0]
    page = Page(port)
    command = [sys.executable, "-m", "relevo", "worker", "run", "handlers:app", "--http", f"127.0.0.1:{port}"]
    where = {"RELEVO_KAFKA": engine.kafka, "RELEVO_CLUSTER": engine.cluster}
    process = subprocess.Popen(command, cwd=tmp_path, env={**os.environ, **where}, stderr=subprocess.PIPE)
    try:
        wait_until(lambda: page.get("/readyz")[0] == 200, "the worker is ready")
        assert json.loads(page.get("/healthz")[1]) == {"ok": True, "reasons": []}
        with relevo.Client(engine.kafka, engine.cluster) as client:
            jobs = [client.create("work", headers={"traceparent": PARENT}) for _ in range(5)]
            client.create("work", {"bad": True}, retries=0)
            assert client.await_result(jobs[0]).value == {"traceparent": PARENT}
            wait_until(lambda: page.sample("done_total") == 5, "all are counted as done")
            wait_until(lambda: page.sample("failed_total", kind="fail") == 1, "and one as failed")
        assert page.sample("handler_seconds_count") == 6
        assert page.sample("partitions") == 2
        assert page.sample("alive") == 1
        # What remains behind the last activation are the marks of the engine's transactions: they are passed.
        wait_until(lambda: page.sample("lag", partition="0") == 0, "nothing lies unread in partition 0")
        wait_until(lambda: page.sample("lag", partition="1") == 0, "nor in partition 1")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert page.get("/healthz")[0] == 0
    finally:
        process.kill()
        _, log = process.communicate()
    assert b"Traceback" not in log, log.decode()
