"""Every number the state machine goes by, with its unit."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from relevo_schemas.job import CHECKPOINT_BYTES_MAX, KEY_LENGTH_MAX

SECOND_MS = 1_000
HOUR_MS = 3_600_000
DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedRules:
    """What must be equal on every node of a cluster.

    Applying an event depends on it: nodes that differ here would make different states of the same log.
    """

    partitions: int
    """Number of partitions (N). A job's partition is murmur2(key) mod N."""
    finished_window_ms: int = DAY_MS
    """How long a finished key is remembered, by the time of events, unless there are too many. Creating
    it again within that time is answered with what is there."""
    finished_count_max: int = 200_000
    """How many finished keys a partition remembers at most; the oldest are forgotten first."""
    aging_ms: int = 10 * SECOND_MS
    """How long a ready job waits to make up for one step of priority. It bounds how long anything can be
    overtaken: 200 steps are 33 minutes."""

    def __post_init__(self) -> None:
        for name in ("partitions", "finished_window_ms", "finished_count_max", "aging_ms"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules(SharedRules):
    """All rules of one partition.

    What isn't shared may differ per node: only decisions depend on it, and those are on the log.
    """

    partition: int
    """The partition these rules are for, from 0."""

    window: int = 2_000
    """Activations per type and partition that may be outstanding; the rest waits in the engine."""
    lease_expiries_max: int = 5
    """So many expired leases make a job an incident: it may be what kills its workers."""
    redispatch_after_ms: int = HOUR_MS
    """An activation that nobody starts for so long is emitted again. Below the topics' retention."""

    priority_min: int = -100
    """Lowest priority."""
    priority_max: int = 100
    """Highest priority."""
    retries_max: int = 1_000
    """Most retries a job may ask for."""
    lease_ms_min: int = SECOND_MS
    """Shortest lease; below it a slow network alone would expire leases."""
    lease_ms_max: int = DAY_MS
    """Longest lease."""
    pause_ms_max: int = 30 * DAY_MS
    """Longest backoff, and the longest pause a failing worker may ask for."""
    time_max_ms: int = 253_402_300_799_999
    """Latest run_at and expires_at: the end of the year 9999."""

    key_bytes_max: int = KEY_LENGTH_MAX
    """Longest key, in UTF-8 bytes."""
    variables_bytes_max: int = 900_000
    """Longest variables. With the limits below, every event about a job fits into a record."""
    result_bytes_max: int = 900_000
    """Longest result."""
    checkpoint_bytes_max: int = CHECKPOINT_BYTES_MAX
    """Longest detail of a checkpoint. An activation carries it beside the job's variables."""
    headers_max: int = 64
    """Most headers of a job."""
    headers_bytes_max: int = 16_384
    """Names and values of all headers of a job together."""
    correlation_id_bytes_max: int = 512
    """Longest correlation_id."""
    name_bytes_max: int = 256
    """Longest worker name and error code."""
    text_bytes_max: int = 4_096
    """Texts for people (errors, messages, reasons) are cut to this length."""
    batch_jobs_max: int = 1_000
    """Most jobs that one StartJobs or ExtendJobs names."""

    step_timers: int = 500
    """Most timers worked off in one step, so that a backlog of them doesn't hold up commands."""
    step_activations: int = 1_000
    """Most jobs handed out in one step."""
    step_activation_bytes: int = 8 * 1024 * 1024
    """No further job is handed out in a step once its activations have so many bytes."""
    recheck_ms: int = 250
    """How often to look again while jobs wait for a channel that isn't open."""

    def __post_init__(self) -> None:
        SharedRules.__post_init__(self)
        if not 0 <= self.partition < self.partitions:
            raise ValueError(f"partition must be from 0 to {self.partitions - 1}, not {self.partition}")
        for name in ("window", "lease_expiries_max", "redispatch_after_ms", "lease_ms_min", "batch_jobs_max",
                     "step_timers", "step_activations", "step_activation_bytes", "recheck_ms"):  # fmt: skip
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")

    def shared(self) -> dict[str, Any]:
        """The part that must be equal in the whole cluster, by name."""
        everything = asdict(self)
        return {field.name: everything[field.name] for field in fields(SharedRules)}
