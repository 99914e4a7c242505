"""`State`: everything a partition knows, made of events alone."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable

from relevo_engine.core.job import Finished, Job, JobState
from relevo_engine.core.queues import ReadyQueue
from relevo_engine.core.rules import SharedRules
from relevo_engine.core.timers import Timers
from relevo_schemas.records import Event


class Lane:
    """The jobs of one type.

    Attributes:
        name: The type.
        queue: Its ready jobs.
        counts: For an open state, how many jobs are in it; for a finished one, how many ever ended so.
    """

    __slots__ = ("counts", "name", "queue")

    def __init__(self, name: str, queue: ReadyQueue) -> None:
        self.name = name
        self.queue = queue
        self.counts: dict[JobState, int] = dict.fromkeys(JobState, 0)


class State:
    """A partition's state. Written by `relevo_engine.core.appliers` only.

    Attributes:
        rules: What applying depends on.
        jobs: Open jobs by key, in the order of their creation.
        lanes: What is known per type.
        waiting: The lanes that have ready jobs, by type.
        timers: When scheduled jobs become due and open jobs expire.
        unclaimed: Activations that nobody has started, oldest first: key to the time of the activation.
        started: Leases of jobs that a worker has started, in milliseconds by key, oldest first.
        checkpoints: What attempts have stored of how far they came, by key; only of jobs that have any.
        finished: What is remembered of finished jobs, by key.
        finished_order: Their keys, oldest first.
        forget_at: No event before this time makes a finished key forgotten; 0: the next one has to look.
            Follows from `finished`, `finished_order` and the rules.
        last_seq: Number of the last event, 0 before the first.
        last_at: Its time.
        last_source: Its source.
        epoch: Number of the current term, 0 before the first.
        position: Offset of the first command that no event speaks of.
        keep: Told of each event before it changes anything, while somebody copies the state; None otherwise.
    """

    __slots__ = (
        "checkpoints",
        "epoch",
        "finished",
        "finished_order",
        "forget_at",
        "jobs",
        "keep",
        "lanes",
        "last_at",
        "last_seq",
        "last_source",
        "position",
        "rules",
        "started",
        "timers",
        "unclaimed",
        "waiting",
    )

    def __init__(self, rules: SharedRules) -> None:
        self.rules = rules
        self.jobs: dict[str, Job] = {}
        self.lanes: dict[str, Lane] = {}
        self.waiting: dict[str, Lane] = {}
        self.timers = Timers(self.jobs)
        self.unclaimed: OrderedDict[str, int] = OrderedDict()
        self.started: dict[str, int] = {}
        self.checkpoints: dict[str, bytes] = {}
        self.finished: dict[str, Finished] = {}
        self.finished_order: deque[str] = deque()
        self.forget_at = 0
        self.last_seq = 0
        self.last_at = 0
        self.last_source = -1
        self.epoch = 0
        self.position = 0
        self.keep: Callable[[Event], None] | None = None

    def state_of(self, key: str) -> JobState | None:
        """Where the job with ``key`` stands, None where there is none or it is forgotten."""
        job = self.jobs.get(key)
        if job is not None:
            return job.state
        finished = self.finished.get(key)
        return finished[0] if finished is not None else None
