"""What one job costs beside many others, by how many: cost that grows with the state would show here.

``python growth.py WHAT SIZE…`` prints one line of JSON: for each size the microseconds of processor time that
a job takes from its creation to its end, the least of some repeats. One machine is filled up from size to
size.

It imports nothing of this repository but the packages themselves, so that it measures another revision too.
"""

from __future__ import annotations

import gc
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from relevo_engine.core.channels import FixedChannels
from relevo_engine.core.rules import Rules
from relevo_engine.machine import PartitionMachine
from relevo_partitions.statemachine import Incoming, Term
from relevo_schemas.codec import encode, job_spec
from relevo_schemas.commands import CompleteJob, CreateJob, LeaseRef, StartJobs

BATCH: Final = 500
PROBE: Final = 2_000
"""Jobs of one repeat."""
REPEATS: Final = 7
NOW: Final = 1_800_000_000_000
DAY_MS: Final = 86_400_000


class Grown:
    """A machine that is filled up, and probed in between.

    Args:
        types: Of the jobs that there may be, besides ``probe``.
        rules: Changed ones.
    """

    def __init__(self, types: Sequence[str] = ("parked",), **rules: Any) -> None:
        channels = FixedChannels(dict.fromkeys((*types, "probe"), 1))
        self.machine = PartitionMachine(Rules(partition=0, partitions=1, **rules), channels)
        self.now = NOW
        self.offset = self.made = 0
        self.machine.lead(Term("n", "i"), self.now)

    def step(self, commands: Sequence[Any]) -> None:
        """One batch, five milliseconds later."""
        self.now += 5
        batch = [Incoming(self.offset + n, None, encode(command)) for n, command in enumerate(commands)]
        self.offset += len(batch)
        self.machine.step(batch, self.now)

    def keys(self, count: int) -> list[str]:
        """So many new ones."""
        self.made += count
        return [f"job-{number:09d}" for number in range(self.made - count, self.made)]

    def create(self, keys: Sequence[str], job_type: str, **fields: Any) -> None:
        """New jobs."""
        self.step([CreateJob(job_spec(key=key, type=job_type, **fields)) for key in keys])

    def complete(self, keys: Sequence[str]) -> None:
        """Their ends."""
        self.step([CompleteJob(key, 0, 1, b"null") for key in keys])

    def probe(self, act: Callable[[], Iterator[Sequence[Any]]]) -> float:
        """Microseconds per job of what ``act`` gives to be decided, the least of all repeats."""
        found = []
        for _ in range(REPEATS):
            batches = [[Incoming(-1, None, encode(command)) for command in commands] for commands in act()]
            gc.collect()
            spent = 0.0
            for batch in batches:
                self.now += 5
                numbered = [each._replace(offset=self.offset + n) for n, each in enumerate(batch)]
                self.offset += len(batch)
                began = time.process_time()
                self.machine.step(numbered, self.now)
                spent += time.process_time() - began
            found.append(spent / PROBE * 1e6)
        return min(found)

    def pass_through(self, **fields: Any) -> Iterator[Sequence[Any]]:
        """Jobs of the type ``probe``, created and completed batch by batch."""
        for _ in range(PROBE // BATCH):
            keys = self.keys(BATCH)
            yield [CreateJob(job_spec(key=key, type="probe", **fields)) for key in keys]
            yield [CompleteJob(key, 0, 1, b"null") for key in keys]


def ready(sizes: Sequence[int]) -> Iterator[float]:
    """Jobs that wait behind a full window: a new one queues at the end, a completion takes the first."""
    window = BATCH
    grown = Grown(window=window)
    waiting = grown.keys(window)
    grown.create(waiting, "probe")

    def through() -> Iterator[Sequence[Any]]:
        for _ in range(PROBE // BATCH):
            keys = grown.keys(BATCH)
            waiting.extend(keys)
            done, waiting[:BATCH] = waiting[:BATCH], []
            yield [CreateJob(job_spec(key=key, type="probe")) for key in keys]
            yield [CompleteJob(key, 0, 1, b"null") for key in done]

    for size in sizes:
        while len(waiting) < size + window:
            keys = grown.keys(BATCH)
            waiting.extend(keys)
            grown.create(keys, "probe")
        yield grown.probe(through)


def timers(sizes: Sequence[int]) -> Iterator[float]:
    """Jobs to be run at some time of the next day; the one measured is due at once, by its own timer."""
    grown, random_ = Grown(), random.Random(7)
    parked = 0

    def through() -> Iterator[Sequence[Any]]:
        at = grown.now
        for nth in range(PROBE // BATCH):
            keys, due = grown.keys(BATCH), at + 15 * nth + 6
            yield [CreateJob(job_spec(key=key, type="probe", run_at=due)) for key in keys]
            yield []
            yield [CompleteJob(key, 0, 1, b"null") for key in keys]

    for size in sizes:
        while parked < size:
            fields = [grown.now + DAY_MS + random_.randrange(DAY_MS) for _ in range(BATCH)]
            specs = [
                job_spec(key=key, type="parked", run_at=at)
                for key, at in zip(grown.keys(BATCH), fields, strict=True)
            ]
            grown.step([CreateJob(spec) for spec in specs])
            parked += BATCH
        yield grown.probe(through)


def leases(sizes: Sequence[int]) -> Iterator[float]:
    """Jobs that run elsewhere, each with a lease; the one measured is started too."""
    grown = Grown(window=10_000_000)
    running = 0

    def through() -> Iterator[Sequence[Any]]:
        for _ in range(PROBE // BATCH):
            keys = grown.keys(BATCH)
            yield [CreateJob(job_spec(key=key, type="probe")) for key in keys]
            yield [StartJobs("w", tuple(LeaseRef(key, 0, 1, DAY_MS) for key in keys))]
            yield [CompleteJob(key, 0, 1, b"null") for key in keys]

    for size in sizes:
        while running < size:
            keys = grown.keys(BATCH)
            grown.create(keys, "parked")
            grown.step([StartJobs("w", tuple(LeaseRef(key, 0, 1, DAY_MS) for key in keys))])
            running += BATCH
        yield grown.probe(through)


def finished(sizes: Sequence[int]) -> Iterator[float]:
    """Finished keys that are remembered; behind the last size each new one makes an old one forgotten."""
    grown = Grown(finished_count_max=sizes[-1])
    done = 0
    for size in sizes:
        while done < size:
            keys = grown.keys(BATCH)
            grown.create(keys, "probe")
            grown.complete(keys)
            done += BATCH
        yield grown.probe(grown.pass_through)


def types(sizes: Sequence[int]) -> Iterator[float]:
    """Job types with jobs that wait behind full windows."""
    names = [f"type-{number}" for number in range(sizes[-1])]
    grown = Grown(names, window=BATCH)
    filled = 0
    for size in sizes:
        for name in names[filled:size]:
            grown.create(grown.keys(BATCH + 1), name)
        filled = size
        yield grown.probe(grown.pass_through)


WAYS: Final[dict[str, Callable[[Sequence[int]], Iterator[float]]]] = {
    way.__name__: way for way in (ready, timers, leases, finished, types)
}


def main(arguments: Sequence[str]) -> None:
    """Measure one of them."""
    sizes = [int(size) for size in arguments[1:]]
    gc.disable()  # collected before each probe instead, as a node collects rarely
    found = dict(zip(arguments[1:], (round(each, 2) for each in WAYS[arguments[0]](sizes)), strict=True))
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
