"""The public face of Relevo: client, worker, dedup stores and job events."""

from __future__ import annotations

from relevo.client.aclient import AsyncClient
from relevo.client.client import Client
from relevo.client.requests import JobDefaults, NewJob
from relevo.client.results import BulkResult, JobHandle, JobResult
from relevo.dedup import DedupStore, MemoryDedupStore, RedisDedupStore, SqlDedupStore
from relevo.errors import (
    ClaimLost,
    Closed,
    ClusterNotFound,
    ConfigurationError,
    DecisionTimeout,
    InvalidRequest,
    JobNotCompleted,
    LogGap,
    MissingExtra,
    NotSent,
    Outcome,
    OutcomeUnknown,
    QueueFull,
    Refused,
    Rejected,
    RelevoError,
    ResultTimeout,
    Retry,
    StoreUnavailable,
    StoreUnsafe,
    Unreachable,
    UsedAfterFork,
    VariablesError,
)
from relevo.events.aevents import AsyncJobEvents
from relevo.events.events import JobEvents
from relevo.events.job_event import JobEvent, LogPosition, Skipped
from relevo.stats import WorkerStats
from relevo.worker.app import JobWorker, WorkerApp
from relevo.worker.job import Fail, Job, JobError

__all__ = [
    "AsyncClient",
    "AsyncJobEvents",
    "BulkResult",
    "ClaimLost",
    "Client",
    "Closed",
    "ClusterNotFound",
    "ConfigurationError",
    "DecisionTimeout",
    "DedupStore",
    "Fail",
    "InvalidRequest",
    "Job",
    "JobDefaults",
    "JobError",
    "JobEvent",
    "JobEvents",
    "JobHandle",
    "JobNotCompleted",
    "JobResult",
    "JobWorker",
    "LogGap",
    "LogPosition",
    "MemoryDedupStore",
    "MissingExtra",
    "NewJob",
    "NotSent",
    "Outcome",
    "OutcomeUnknown",
    "QueueFull",
    "RedisDedupStore",
    "Refused",
    "Rejected",
    "RelevoError",
    "ResultTimeout",
    "Retry",
    "Skipped",
    "SqlDedupStore",
    "StoreUnavailable",
    "StoreUnsafe",
    "Unreachable",
    "UsedAfterFork",
    "VariablesError",
    "WorkerApp",
    "WorkerStats",
]
