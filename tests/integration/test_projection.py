"""The sample projection: killed anywhere, run twice at once, its table is what the log says."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

import relevo
from relevo_schemas import events as ev
from relevo_schemas.codec import job_spec
from relevo_schemas.records import Event
from tests.support.brokers import Brokers
from tests.support.written_log import WrittenLog

RUN = Path(__file__).parents[2] / "examples" / "projection" / "project.py"
PARTITIONS = 2
JOBS = 120
RETRY_AT = 4_000_000_000_000
Make = Callable[[int, int, int, int], Event]


def created(key: str, seq: int, epoch: int, at: int, source: int) -> Event:
    job = job_spec(key=key, type="work", retries=3, correlation_id=f"c-{key}")
    return ev.JobCreated(seq, epoch, at, source, job)


def with_job(kind: Any, key: str, rest: tuple[Any, ...], *head: int) -> Event:
    event: Event = kind(*head, key, *rest)
    return event


STEPS: dict[type[Event], tuple[Any, ...]] = {
    ev.JobActivated: (1, 0),
    ev.JobStarted: (1, "worker-1", 30_000),
    ev.JobFailed: (1, "it broke\0", 2, RETRY_AT),
    ev.JobDue: (),
    ev.JobUpdated: (7, 5),
    ev.JobTimedOut: (2, "lease", 1),
    ev.JobIncident: (2, "retries", "no more"),
    ev.JobRetried: (3,),
}
ENDS: dict[type[Event], tuple[Any, ...]] = {
    ev.JobCompleted: (3, b'{"a":1}'),
    ev.JobErrored: (3, "NO", "not that one"),
    ev.JobCancelled: ("by hand",),
    ev.JobExpired: (),
}


@pytest.fixture
def log(brokers: Brokers, cluster_name: str) -> Iterator[WrittenLog]:
    """Histories of jobs, mixed, in transactions of any size."""
    dice = random.Random(20)
    with WrittenLog(brokers.kafka, cluster_name, PARTITIONS) as log:
        waiting: list[tuple[int, str, list[Make]]] = []
        for number in range(JOBS):
            key = f"job {number}"
            steps = [partial(created, key)]
            steps += [
                partial(with_job, kind, key, rest) for kind, rest in STEPS.items() if dice.random() < 0.7
            ]
            if dice.random() < 0.7:
                kind = dice.choice(list(ENDS))
                steps.append(partial(with_job, kind, key, ENDS[kind]))
            waiting.append((number % PARTITIONS, key, list(steps)))
        while waiting:
            log.begin()
            for _ in range(dice.randrange(1, 40)):
                if not waiting:
                    break
                partition, key, rest = dice.choice(waiting)
                log.put(partition, rest.pop(0), key)
                if not rest:
                    waiting.remove((partition, key, rest))
            log.commit()
        yield log


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        found: str = request.getfixturevalue("postgres_url")
        return found
    return f"sqlite:///{tmp_path}/jobs.db"


def start(log: WrittenLog, url: str, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(RUN), "--kafka", log.kafka, "--cluster", log.cluster, "--database", url]
    return subprocess.Popen(
        [*command, "--once", *more], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def finish(process: subprocess.Popen[str]) -> str:
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, out + errors
    return errors


def rows(url: str, question: str) -> list[tuple[Any, ...]]:
    if url.startswith("sqlite"):
        with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
            found = connection.execute(question).fetchall()
        connection.close()
        return found
    with psycopg.connect(url) as database:
        return database.execute(question.encode()).fetchall()


def table(url: str) -> dict[str, dict[str, Any]]:
    names = ["key", "type", "state", "attempt", "priority", "retries", "run_at", "correlation_id", "worker"]
    names += ["result", "problem"]
    found = rows(url, f"SELECT {', '.join(names)} FROM jobs")
    return {row[0]: dict(zip(names[1:], row[1:], strict=True)) for row in found}


def folded(log: WrittenLog) -> dict[str, dict[str, Any]]:
    """The jobs as the log says they are; written apart from the sample."""
    jobs: dict[str, dict[str, Any]] = {}
    with relevo.JobEvents(log.kafka, log.cluster, follow=False) as events:
        for each in events:
            job = jobs.setdefault(each.key, dict.fromkeys(("run_at", "worker", "result", "problem")))
            if each.kind == "JobCreated":
                job |= {"type": "work", "state": "READY", "attempt": 0, "priority": 0, "retries": 3}
                job |= {"correlation_id": f"c-{each.key}"}
            elif each.kind == "JobActivated":
                job |= {"state": "ACTIVE", "attempt": 1, "run_at": None, "worker": None}
            elif each.kind == "JobStarted":
                job["worker"] = "worker-1"
            elif each.kind == "JobFailed":
                job |= {"state": "SCHEDULED", "problem": "it broke␀", "retries": 2, "run_at": RETRY_AT}
            elif each.kind == "JobUpdated":
                job |= {"priority": 7, "retries": 5}
            elif each.kind == "JobRetried":
                job |= {"state": "READY", "retries": 3, "run_at": None, "problem": None}
            elif each.kind == "JobCompleted":
                job |= {"state": "COMPLETED", "attempt": 3, "result": '{"a":1}'}
            else:
                job["state"] = {"JobDue": "READY", "JobTimedOut": "READY"}.get(
                    each.kind, each.kind[3:].upper()
                )
                if each.kind in ("JobDue", "JobCancelled", "JobExpired"):
                    job["run_at"] = None
                texts = {"JobTimedOut": "lease", "JobIncident": "retries: no more",
                         "JobErrored": "NO: not that one", "JobCancelled": "by hand"}  # fmt: skip
                if each.kind in texts:
                    job["problem"] = texts[each.kind]
    return jobs


def test_killed_anywhere_and_run_again_the_table_is_what_the_log_says(log: WrittenLog, url: str) -> None:
    """A position stored before the rows loses changes; one stored after them applies old ones again."""
    dice = random.Random(7)
    seen = 0
    for _ in range(6):
        process = start(log, url, "--batch", "3")
        time.sleep(dice.uniform(0.5, 1.6))  # the moment of the kill, not a wait for anything
        process.kill()
        process.communicate(timeout=60)
        try:
            applied = sum(row[0] for row in rows(url, "SELECT seq FROM jobs_position"))
        except (sqlite3.OperationalError, psycopg.errors.UndefinedTable):
            continue
        assert applied >= seen
        seen = applied
    finish(start(log, url))
    assert table(url) == folded(log)
    finish(start(log, url))
    assert table(url) == folded(log)


def test_two_at_once_do_no_harm(log: WrittenLog, url: str) -> None:
    """During a deployment the old copy and the new one run side by side."""
    for process in [start(log, url, "--batch", "7") for _ in range(2)]:
        finish(process)
    assert table(url) == folded(log)


def test_it_stops_at_a_gap_and_tells_of_a_beginning_that_is_gone(log: WrittenLog, tmp_path: Path) -> None:
    known, fresh = f"sqlite:///{tmp_path}/known.db", f"sqlite:///{tmp_path}/fresh.db"
    process = start(log, known, "--batch", "1")
    finish(process)
    for number in range(20):
        log.write(f"late {number}")
    with relevo.JobEvents(log.kafka, log.cluster, "now") as events:
        log.trim(events.positions[0])
    log.write("last")
    stuck = start(log, known)
    _, errors = stuck.communicate(timeout=60)
    assert stuck.returncode == 1
    assert "20 events" in errors
    assert "Traceback" not in errors
    assert "the table lacks what was trimmed" in finish(start(log, fresh))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--database", "mysql://x"), "must be sqlite"),
        (("--database", "sqlite:////nosuch/place.db"), "unable to open"),
        (("--kafka", "127.0.0.1:1"), "127.0.0.1:1"),
        (("--cluster", "nosuch"), "has no topic nosuch.log"),
        (("--database", "postgresql://u:secret@127.0.0.1:1/x"), "127.0.0.1"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(
    brokers: Brokers, tmp_path: Path, arguments: tuple[str, str], told: str
) -> None:
    command = [sys.executable, str(RUN), "--once", "--kafka", brokers.kafka]
    command += ["--database", f"sqlite:///{tmp_path}/x.db", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert "secret" not in done.stderr
