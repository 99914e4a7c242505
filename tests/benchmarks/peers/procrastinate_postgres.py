"""Procrastinate on PostgreSQL: a job's row is set to succeeded after it ran, and kept."""

# mypy: ignore-errors
# What it imports is in an environment of its own.
from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import procrastinate
import psycopg
from protocol import Peer, serve

BATCH = 1_000


def connector() -> procrastinate.BaseConnector:
    """A worker's, or in the client, which is a plain script, the blocking one."""
    if __name__ == "__main__":
        settings = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
        return procrastinate.SyncPsycopgConnector(conninfo=settings["url"])
    return procrastinate.PsycopgConnector(conninfo=os.environ["BENCH_URL"])


app = procrastinate.App(connector=connector())


@app.task(name="noop")
async def noop(job: dict[str, object]) -> None:
    """Nothing."""


class ProcrastinatePostgres(Peer):
    """Looks for the open jobs, of which there is an index; the last one's end stands in the events."""

    poll_s = 0.1

    def prepare(self) -> None:
        app.open()
        app.schema_manager.apply_schema()
        self._database = psycopg.connect(self.url, autocommit=True)

    def start(self) -> None:
        for _ in range(self.workers):
            self.spawn(
                "procrastinate", "--app", "procrastinate_postgres.app", "worker", "--concurrency",
                str(self.concurrency), "--delete-jobs", "never",
            )  # fmt: skip

    def enqueue(self, jobs: int) -> None:
        for first in range(0, jobs, BATCH):
            count = min(BATCH, jobs - first)
            noop.batch_defer(*({"job": self.payload} for _ in range(count)))

    def finished(self) -> int:
        found = self._database.execute(
            "SELECT 1 FROM procrastinate_jobs WHERE status IN ('todo', 'doing') LIMIT 1"
        ).fetchone()
        if found is not None:
            return 0
        row = self._database.execute(
            "SELECT count(*) FROM procrastinate_jobs WHERE status = 'succeeded'"
        ).fetchone()
        return int(row[0]) if row else 0

    def ended(self, seen_at: float) -> float:
        row = self._database.execute(
            "SELECT extract(epoch FROM max(at)) FROM procrastinate_events WHERE type = 'succeeded'"
        ).fetchone()
        return float(row[0]) if row and row[0] is not None else seen_at

    def close(self) -> None:
        self._database.close()
        app.close()


if __name__ == "__main__":
    serve(ProcrastinatePostgres, sys.argv[1:])
