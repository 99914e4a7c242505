"""Jobs that do nothing: ``python -m tests.benchmarks.noop BOOTSTRAP CLUSTER JOBS client|worker``."""

from __future__ import annotations

import sys

import relevo
from relevo import NewJob
from tests.benchmarks.limit import VARIABLES


def create(bootstrap: str, cluster: str, jobs: int) -> None:
    """Create the jobs as fast as the client can."""
    with relevo.Client(bootstrap, cluster=cluster) as client:
        new = (NewJob(type="noop", key=f"job-{n:08d}", variables=VARIABLES) for n in range(jobs))
        for made in client.create_many(new, in_flight=20_000):
            if made.error is not None:
                raise made.error


def work(bootstrap: str, cluster: str, jobs: int) -> None:
    """Do nothing for each."""
    del jobs
    app = relevo.WorkerApp(bootstrap, cluster=cluster, dedup=relevo.MemoryDedupStore())

    @app.job("noop", concurrency=1_000)
    async def noop(job: relevo.Job) -> None:
        pass

    app.run()


if __name__ == "__main__":
    {"client": create, "worker": work}[sys.argv[4]](sys.argv[1], sys.argv[2], int(sys.argv[3]))
