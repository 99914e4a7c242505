"""The demo's worker: does one real side effect per job, an HTTP POST that carries the job's idempotency key.

Run as ``relevo worker run deliver:app``, like any worker. Its surroundings come from the environment:
``RELEVO_KAFKA``, ``RELEVO_CLUSTER``, ``DEMO_TARGET`` (URL of the receiver) and ``DEMO_TYPES`` (job types,
comma-separated).
"""

from __future__ import annotations

import os
from functools import cache

import aiohttp

import relevo

app = relevo.WorkerApp(dedup=relevo.MemoryDedupStore())


@cache
def session() -> aiohttp.ClientSession:
    """The process's only HTTP session, made in the event loop that uses it."""
    return aiohttp.ClientSession(base_url=os.environ["DEMO_TARGET"], connector=aiohttp.TCPConnector(limit=64))


async def deliver(job: relevo.Job) -> dict[str, int]:
    """Send the job's variables to the outside world; what a worker of yours would do instead stands here."""
    headers = {"Idempotency-Key": job.idempotency_key, "Job-Attempt": str(job.attempt)}
    async with session().post(f"/effects/{job.type}", json=job.variables, headers=headers) as response:
        response.raise_for_status()
        return {"status": response.status}


for job_type in os.environ["DEMO_TYPES"].split(","):
    app.job(job_type, lease=10, concurrency=32)(deliver)
