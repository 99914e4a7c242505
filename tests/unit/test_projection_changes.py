"""The sample projection's rows, beside the engine's own state: they are the same after every event."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from relevo_engine.core.job import JobState
from relevo_schemas import commands as cmd
from relevo_schemas import events as ev
from relevo_schemas.records import Event
from tests.unit.core.harness import Partition, rules

FILE = Path(__file__).parents[2] / "examples" / "projection" / "changes.py"


@pytest.fixture(scope="module")
def changes() -> Any:
    spec = importlib.util.spec_from_file_location("projection_changes", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.changes


class Followed:
    """A partition, and the row of its job ``k`` that the sample makes of its log."""

    def __init__(self, changes: Any, **its_rules: Any) -> None:
        self.partition = Partition(rules(**its_rules))
        self.row: dict[str, Any] = {}
        self._changes = changes

    def take(self, events: list[Event]) -> None:
        for event in events:
            key = event.job.key if isinstance(event, ev.JobCreated) else getattr(event, "key", "")
            if key == "k":
                self.row |= self._changes(event)
        job = self.partition.state.jobs.get("k")
        assert self.row["state"] == self.partition.where("k")
        assert self.row["run_at"] == ((job.due_at or None) if job is not None else None)
        if job is not None:
            found = (self.row["attempt"], self.row["priority"], self.row["retries"])
            assert found == (job.attempt, job.priority, job.retries)


def test_a_failure_that_is_tried_again_at_once_is_ready(changes: Any) -> None:
    """No `JobDue` follows it: the row stood there as SCHEDULED, and kept its time while the job ran."""
    job = Followed(changes)
    p = job.partition
    job.take(p.create("k", retries=3))
    (failed, activated) = p.fail("k", retry_in_ms=0)
    assert isinstance(failed, ev.JobFailed)
    assert failed.retry_at == failed.at
    row = job.row | changes(failed)
    assert (row["state"], row["run_at"], row["problem"]) == ("READY", None, "boom")
    job.take([failed, activated])
    assert job.row["state"] == "ACTIVE"


def test_a_job_that_waits_for_its_next_attempt_has_a_time_until_it_is_ready(changes: Any) -> None:
    job = Followed(changes)
    p = job.partition
    job.take(p.create("k", retries=3))
    job.take(p.fail("k", retry_in_ms=5_000))
    assert (job.row["state"], job.row["run_at"]) == ("SCHEDULED", p.now + 5_000)
    job.take(p.send(cmd.RetryJob("k", 7)))
    assert (job.row["run_at"], job.row["retries"]) == (None, 7)
    job.take(p.fail("k", 2, retry_in_ms=5_000))
    job.take(p.step(5_000))
    assert (job.row["state"], job.row["run_at"]) == ("ACTIVE", None)
    job.take(p.fail("k", 3, retriable=False))
    assert (job.row["state"], job.row["run_at"]) == ("INCIDENT", None)


@pytest.mark.parametrize("end", ["cancel", "expire"])
def test_a_job_that_ended_has_no_time_ahead(changes: Any, end: str) -> None:
    job = Followed(changes)
    p = job.partition
    job.take(p.create("k", run_at=p.now + 90_000, expires_at=p.now + 60_000))
    assert job.row["run_at"] == p.now + 90_000
    job.take(p.send(cmd.CancelJob("k", "by hand")) if end == "cancel" else p.step(60_001))
    assert (job.row["state"], job.row["run_at"]) == ("CANCELLED" if end == "cancel" else "EXPIRED", None)


def test_a_key_that_is_used_anew_has_nothing_of_the_job_before(changes: Any) -> None:
    """The row said COMPLETED's result, and another worker's name, of a job that hadn't begun."""
    job = Followed(changes, finished_count_max=1)
    p = job.partition
    job.take(p.create("k"))
    job.take(p.start("k"))
    job.take(p.fail("k", retry_in_ms=0))
    job.take(p.complete("k", 2, b'{"a":1}'))
    assert (job.row["problem"], job.row["result"]) == ("boom", '{"a":1}')
    p.create("other")
    p.complete("other")
    assert p.where("k") is None
    created, *rest = p.create("k", correlation_id="c")
    row = job.row | changes(created)
    assert (row["worker"], row["result"], row["problem"], row["attempt"]) == (None, None, None, 0)
    job.take([created, *rest])
    assert job.row["state"] == JobState.ACTIVE
