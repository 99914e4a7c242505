"""What `verify_log` gives back: counts, takeovers, violations, in numbers, words and JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from relevo_engine.verify.findings import Violation


@dataclass(slots=True)
class Counts:
    """What the log tells, in numbers. Of a log that was trimmed: what it still tells.

    Attributes:
        records: Records read, of all kinds.
        events: Events among them.
        barriers: Barriers among them.
        elections: Terms that began.
        created: Jobs created.
        completed: Jobs completed.
        errored: Jobs that ended with a business error.
        cancelled: Jobs that were cancelled.
        expired: Jobs that expired.
        open: Jobs open at the end, by state; ``UNKNOWN`` where the log doesn't tell it.
        attempts: Times that a job was handed to workers.
        extra_attempts: Those beyond a job's first.
        started: Attempts that a worker reported as begun. Short jobs complete without.
        failures: Attempts that failed.
        lease_expiries: Attempts that fell silent.
        unclaimed: Attempts that nobody took up.
        incidents: Times that a job came to wait for a person.
        retried: Jobs that were made ready by request.
        repeated_creates: Creations of a job that was there already; they changed nothing.
        late_completions: Completions of a job that was completed already; they changed nothing.
        refusals: Refused commands by reason, those two kinds among them.
    """

    records: int = 0
    events: int = 0
    barriers: int = 0
    elections: int = 0
    created: int = 0
    completed: int = 0
    errored: int = 0
    cancelled: int = 0
    expired: int = 0
    open: dict[str, int] = field(default_factory=dict)
    attempts: int = 0
    extra_attempts: int = 0
    started: int = 0
    failures: int = 0
    lease_expiries: int = 0
    unclaimed: int = 0
    incidents: int = 0
    retried: int = 0
    repeated_creates: int = 0
    late_completions: int = 0
    refusals: dict[str, int] = field(default_factory=dict)

    @property
    def open_total(self) -> int:
        """Jobs open at the end."""
        return sum(self.open.values())


@dataclass(slots=True)
class Takeover:
    """A term that began.

    Attributes:
        partition: Its partition.
        epoch: Its number.
        node: Who leads it.
        previous_node: Who led the term before; None where the log doesn't tell, or there was none.
        offset: Where it is announced.
        at: When, in milliseconds since the Unix epoch by the new leader's clock.
        gap_ms: From the last event of the term before, by that leader's clock, to the announcement; None
            where there is none. With nothing to do it says nothing about the takeover.
        first_activation_ms: From the announcement to the first job handed out after; None where none was.
    """

    partition: int
    epoch: int
    node: str
    previous_node: str | None
    offset: int
    at: int
    gap_ms: int | None
    first_activation_ms: int | None = None


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """One partition.

    Attributes:
        partition: Its number.
        start: First offset that Kafka holds.
        end: Up to where it was read: the end of what was committed when the reading began, or later, where
            more had to be read to tell what became of an expected job.
        high: The end of all that was written then.
        held_back: ``high - end``: records, and markers, that wait for a transaction to end. A few are usual
            while a leader works; if it stays so, a transaction hangs.
        trimmed: The log's beginning is gone; jobs from before are known only as far as later events tell.
        first_seq: Number of the first event, 0 where there is none.
        last_seq: Number of the last one.
        epoch: The last term.
        last_at: Time of the last event, in milliseconds since the Unix epoch.
        violations: How many there are.
        first_violation: The first one; those after it may only follow from it.
        witnesses: What its end was held against, in words: the newest snapshots, the published position.
    """

    partition: int
    start: int
    end: int
    high: int
    held_back: int
    trimmed: bool
    first_seq: int
    last_seq: int
    epoch: int
    last_at: int
    violations: int
    first_violation: Violation | None
    witnesses: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Expected:
    """What became of jobs that somebody knows to have been accepted.

    Attributes:
        given: Keys that were asked about.
        completed: Those completed.
        ended_otherwise: Those that ended in another way.
        open: Those still open.
        refused: Those whose creation the engine refused.
        pending: Those whose creation stands in the commands topic and isn't decided yet.
        before_start: Those that aren't on the log of a partition that was trimmed: they can't be judged.
        elsewhere: Those of partitions that weren't read.
        missing: Those of which nothing is found: lost.
        missing_keys: The first of them.
    """

    given: int = 0
    completed: int = 0
    ended_otherwise: int = 0
    open: int = 0
    refused: int = 0
    pending: int = 0
    before_start: int = 0
    elsewhere: int = 0
    missing: int = 0
    missing_keys: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The whole finding.

    Attributes:
        topic: The log.
        partitions: Every partition that was read.
        counts: What the log tells.
        takeovers: Every term, oldest first in each partition; the newest 10,000.
        violations: At most 100, in the order in which they were found; each partition's first is among them.
        violation_count: How many there are.
        by_invariant: How many there are of each kind.
        expected: What became of the expected jobs, None where none were named.
        duration_s: How long it took.
        unheard: Why some of what tells of the log's end couldn't be asked, in words.
    """

    topic: str
    partitions: list[PartitionReport]
    counts: Counts
    takeovers: list[Takeover]
    violations: list[Violation]
    violation_count: int
    by_invariant: dict[str, int]
    expected: Expected | None
    duration_s: float
    unheard: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Nothing is wrong with what was read."""
        return not self.violation_count

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        fields = asdict(self)
        fields["counts"]["open_total"] = self.counts.open_total
        return {"ok": self.ok, **fields}

    def to_json(self) -> str:
        """One JSON document."""
        return json.dumps(self.as_dict())
