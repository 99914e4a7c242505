"""Which ready jobs are handed to workers, and by which partition of their activation topic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from relevo_engine.core.channels import ChannelState
from relevo_engine.core.job import Job, JobState
from relevo_engine.core.state import Lane
from relevo_engine.core.turn import Turn
from relevo_schemas.codec import decode_job
from relevo_schemas.delivery import Activation
from relevo_schemas.events import JobActivated


class Handover(NamedTuple):
    """A job on its way to the workers: the event, and what its activation record is made of."""

    event: JobActivated
    type: str
    partition: int
    created_seq: int
    retries: int
    expiries: int
    checkpoint: bytes
    """What an earlier attempt stored last; empty where none did."""
    body: bytes
    """The encoded `JobSpec`, for copying."""

    def activation(self) -> Activation:
        """The record for the workers, whole. A writer copies `body` instead."""
        event = self.event
        job = decode_job(self.body)
        return Activation(
            self.partition, event.epoch, event.at, self.created_seq, event.attempt, self.retries,
            self.expiries, self.checkpoint, job,
        )  # fmt: skip


class Dispatcher:
    """Hands out ready jobs, type by type. Remembers only whose turn it is."""

    def __init__(self) -> None:
        self._spread: dict[str, int] = {}
        self._retries = 0
        self._first = 0

    def shares(self, turn: Turn, limit: int) -> Iterator[tuple[Lane, int, int]]:
        """Lanes that may hand out jobs now, each with the slots of its channel and its share of ``limit``.

        ``limit`` is for all together. Every lane gets an equal share at least, and what others leave of
        theirs.
        """
        lanes = self._able(turn)
        if not lanes:
            return
        self._first += 1
        first = self._first % len(lanes)
        left = limit
        for nth, (lane, slots, most) in enumerate(lanes[first:] + lanes[:first]):
            share = min(most, -(-left // (len(lanes) - nth)))
            left -= share
            yield lane, slots, share

    @staticmethod
    def _able(turn: Turn) -> list[tuple[Lane, int, int]]:
        window = turn.rules.window
        able = []
        for lane in turn.state.waiting.values():
            free = window - lane.counts[JobState.ACTIVE]
            if free > 0:
                channel = turn.channels.channel(lane.name)
                if channel.state is ChannelState.OPEN and channel.slots >= turn.rules.partitions:
                    able.append((lane, channel.slots, min(free, lane.counts[JobState.READY])))
        return able

    def hand_over(self, turn: Turn, lane: Lane, slots: int) -> Handover | None:
        """The next job of ``lane``, None where none waits any more."""
        key = lane.queue.head()
        if key is None:
            return None
        job = turn.state.jobs[key]
        event = JobActivated(*turn.head(), key, job.attempt + 1, self._slot(turn, job, slots))
        checkpoint = turn.state.checkpoints.get(key, b"")
        return Handover(
            event, lane.name, turn.rules.partition, job.created_seq, job.retries, job.lease_expiries,
            checkpoint, job.body,
        )  # fmt: skip

    def _slot(self, turn: Turn, job: Job, slots: int) -> int:
        """Where to send ``job``: to the partition's own slots in turn.

        After a lease expiry it is another one than before, of another worker where workers have told what
        they read, so that it can't land behind the one that is stuck.
        """
        rules = turn.rules
        count = rules.partitions
        if job.slot >= 0:
            own = range(rules.partition, slots, count)
            allowed = turn.readers.allowed(job.type, job.slot, slots, own)
            if allowed:
                nth = self._retries = self._retries + 1
                return allowed[nth % len(allowed)]
        per_partition = slots // count
        if per_partition == 1:
            # Only the neighbours have other slots. Moving on from the last one passes several stuck workers.
            return rules.partition if job.slot < 0 else (job.slot + 1) % count
        if job.slot >= 0:
            nth = (job.slot // count + 1) % per_partition
        else:
            nth = self._spread[job.type] = (self._spread.get(job.type, -1) + 1) % per_partition
        return rules.partition + nth * count


def waits_for_channel(turn: Turn) -> tuple[bool, bool]:
    """Whether some lane could hand out jobs at once, and whether some lane waits for its channel."""
    able = blocked = False
    for lane in turn.state.waiting.values():
        if lane.counts[JobState.ACTIVE] < turn.rules.window:
            channel = turn.channels.channel(lane.name)
            if channel.state is ChannelState.OPEN and channel.slots >= turn.rules.partitions:
                able = True
            else:
                blocked = True
    return able, blocked
