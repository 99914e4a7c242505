"""A worker in a process of its own, which can be told to kill itself at any step of an activation.

Run as ``python -m tests.support.worker_process`` with a JSON object of `Orders` as its argument. Effects are
counted where they can't be lost: in Redis, by job key.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import redis

import relevo
from tests.support import crash_matrix
from tests.support.crash_matrix import FORMS, Places, die

DIES_AFTER_S: Final = 0.5
"""How long a handler that kills its process takes until it does."""


@dataclass
class Orders:
    """What the process is to do.

    Attributes:
        kafka: Bootstrap servers.
        cluster: The cluster's name.
        type: The job type; where it dies at a step, the beginning of the names of its types: see `type_of`.
        redis: Where effects are counted, and claims kept.
        die: The step at which it kills itself for the first job it meets, of `crash_matrix.STEPS`; empty:
            never.
        store: Kind of its dedup store, of `crash_matrix.STORES`.
        database: Where the SQL store is.
        file: Where the one in a SQLite file is.
        forms: Of the handlers of the jobs it meets at the step, of `crash_matrix.FORMS`.
        gently: Whether it sends itself SIGTERM at the step, in place of SIGKILL.
        die_for: Keys whose handler kills the process.
        seconds: How long each handler runs.
        concurrency: How many run at once.
        options: librdkafka options.
    """

    kafka: str
    cluster: str
    type: str
    redis: str
    die: str = ""
    store: str = "redis"
    database: str = ""
    file: str = ""
    forms: Sequence[str] = FORMS
    gently: bool = False
    die_for: list[str] = field(default_factory=list)
    seconds: float = 0.0
    concurrency: int = 4
    options: dict[str, Any] = field(default_factory=dict)


def spawn(orders: Orders) -> subprocess.Popen[bytes]:
    """Start one; end it with `Popen.kill` or by a signal."""
    return subprocess.Popen([sys.executable, "-m", __name__, json.dumps(asdict(orders))])


def type_of(cell: str, form: str) -> str:
    """The job type whose handler has this form, in a cell of the crash matrix."""
    return f"{cell}-{form}"


def effects(client: redis.Redis, cluster: str, key: str) -> int:
    """How often the effect of a job has happened."""
    return int(client.get(f"effects:{cluster}:{key}") or 0)


def perform(client: redis.Redis, cluster: str, key: str) -> None:
    """The effect."""
    client.incr(f"effects:{cluster}:{key}")


def main(orders: Orders) -> None:
    """Works until a signal, or until it kills itself."""
    places = Places(orders.redis, orders.database, orders.file)
    store = crash_matrix.make_store(orders.store, places)
    app = relevo.WorkerApp(orders.kafka, orders.cluster, dedup=store, **orders.options)
    if orders.die:
        at = crash_matrix.arm(app, store, orders.die, len(orders.forms), gently=orders.gently)
        for form in orders.forms:
            handler = crash_matrix.handler_for(orders.store, form, places, orders.cluster, at)
            app.job(type_of(orders.type, form))(handler)
        threading.Thread(target=_die_after_commit, args=(app, orders), daemon=True).start()
    else:
        app.job(orders.type, concurrency=orders.concurrency)(_handler(orders))
    app.run(drain=20)


def _die_after_commit(app: relevo.WorkerApp, orders: Orders) -> None:
    while orders.die == "after commit":
        # None is there before the app runs.
        if [bool(stats.commits) for stats in app.stats_by_type.values()] == [True] * len(orders.forms):
            os.kill(os.getpid(), signal.SIGTERM if orders.gently else signal.SIGKILL)
            return
        time.sleep(0.01)


def _handler(orders: Orders) -> Any:
    client = redis.Redis.from_url(orders.redis)

    def handler(job: relevo.Job) -> str:
        if job.key in orders.die_for:
            client.incr(f"deaths:{orders.cluster}:{job.key}")
            # Whoever is at work each time it dies is as suspect as its killer: let the others get through.
            time.sleep(DIES_AFTER_S)
            die()
        if orders.seconds:
            client.set(f"running:{orders.cluster}:{job.key}", "1")
            time.sleep(orders.seconds)
        perform(client, orders.cluster, job.key)
        return job.key

    return handler


if __name__ == "__main__":
    main(Orders(**json.loads(sys.argv[1])))
