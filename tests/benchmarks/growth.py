"""What one job costs beside many others, by how many: cost that grows with the state would show here.

``python growth.py WHAT SIZE…`` prints one line of JSON. By size, ``us``: the microseconds of processor time
that a job takes from its creation to its end, the least of some repeats, without Python's collector. By size,
``longest_ms``: the longest pause, be it a step of the machine or a walk of the collector, which is set as in
a node, while the others grow to that number and while jobs pass once they are there; a pause that grows with
the number shows here and not in the first. ``bytes_each``: the resident memory that one of the others takes,
null where the system doesn't tell. One machine is filled up from size to size.

It imports nothing of this repository but the packages themselves, so that it measures another revision too.
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

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
COLLECTOR: Final = (50_000, 1, 750)
"""How a node sets Python's collector (`relevo_engine.node`)."""


class Found(NamedTuple):
    """What was measured beside so many others."""

    us: float
    """Processor time of one job."""
    longest_ms: float
    """The longest pause since the size before."""
    others: int
    """Open jobs, or finished keys, that the machine holds."""
    resident: int | None
    """Memory of this process, in bytes."""


class Pauses:
    """The longest of all, steps and walks of the collector alike, in seconds of processor time."""

    def __init__(self) -> None:
        self.longest_s = self._began = 0.0
        gc.callbacks.append(self._collects)

    def _collects(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.process_time()
        else:
            self.longest_s = max(self.longest_s, time.process_time() - self._began)

    def over(self) -> float:
        """The longest so far; begins anew."""
        longest_s, self.longest_s = self.longest_s, 0.0
        return longest_s

    def close(self) -> None:
        """Watch no longer."""
        gc.callbacks.remove(self._collects)


def resident() -> int | None:
    """This process' memory in bytes; None where the system doesn't tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


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
        self.pauses = Pauses()
        gc.enable()

    def step(self, commands: Sequence[Any]) -> None:
        """One batch, five milliseconds later."""
        self.now += 5
        batch = [Incoming(self.offset + n, None, encode(command)) for n, command in enumerate(commands)]
        self.offset += len(batch)
        self.timed(batch)

    def timed(self, batch: Sequence[Incoming]) -> float:
        """Seconds of processor time that one step takes."""
        began = time.process_time()
        self.machine.step(batch, self.now)
        spent = time.process_time() - began
        self.pauses.longest_s = max(self.pauses.longest_s, spent)
        return spent

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

    def probe(self, act: Callable[[], Iterator[Sequence[Any]]]) -> Found:
        """What ``act`` gives to be decided, measured."""
        said, memory = self.machine.summary(), resident()
        self._through(act)
        longest_s = self.pauses.over()
        gc.disable()  # collected before each repeat instead
        found = []
        for _ in range(REPEATS):
            gc.collect()
            found.append(self._through(act) / PROBE * 1e6)
        gc.enable()
        self.pauses.over()
        return Found(min(found), longest_s * 1e3, said["open"] or said["remembered"], memory)

    def _through(self, act: Callable[[], Iterator[Sequence[Any]]]) -> float:
        """Seconds that the machine takes for what ``act`` gives."""
        batches = [[Incoming(-1, None, encode(command)) for command in commands] for commands in act()]
        spent = 0.0
        for batch in batches:
            self.now += 5
            numbered = [each._replace(offset=self.offset + n) for n, each in enumerate(batch)]
            self.offset += len(batch)
            spent += self.timed(numbered)
        return spent

    def pass_through(self, **fields: Any) -> Iterator[Sequence[Any]]:
        """Jobs of the type ``probe``, created and completed batch by batch."""
        for _ in range(PROBE // BATCH):
            keys = self.keys(BATCH)
            yield [CreateJob(job_spec(key=key, type="probe", **fields)) for key in keys]
            yield [CompleteJob(key, 0, 1, b"null") for key in keys]


def ready(sizes: Sequence[int]) -> Iterator[Found]:
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


def timers(sizes: Sequence[int]) -> Iterator[Found]:
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


def leases(sizes: Sequence[int]) -> Iterator[Found]:
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


def finished(sizes: Sequence[int]) -> Iterator[Found]:
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


def types(sizes: Sequence[int]) -> Iterator[Found]:
    """Job types with jobs that wait behind full windows."""
    names = [f"type-{number}" for number in range(sizes[-1])]
    grown = Grown(names, window=BATCH)
    filled = 0
    for size in sizes:
        for name in names[filled:size]:
            grown.create(grown.keys(BATCH + 1), name)
        filled = size
        yield grown.probe(grown.pass_through)


WAYS: Final[dict[str, Callable[[Sequence[int]], Iterator[Found]]]] = {
    way.__name__: way for way in (ready, timers, leases, finished, types)
}


def main(arguments: Sequence[str]) -> None:
    """Measure one of them."""
    sizes = [int(size) for size in arguments[1:]]
    gc.set_threshold(*COLLECTOR)
    found = dict(zip(arguments[1:], WAYS[arguments[0]](sizes), strict=True))
    told = {
        "us": {size: round(each.us, 2) for size, each in found.items()},
        "longest_ms": {size: round(each.longest_ms, 1) for size, each in found.items()},
        "bytes_each": bytes_each(list(found.values())),
    }
    sys.stdout.write(json.dumps(told) + "\n")


def bytes_each(found: Sequence[Found]) -> int | None:
    """Memory that one more of the others takes, from the first size to the last."""
    first, last = found[0], found[-1]
    if first.resident is None or last.resident is None or last.others == first.others:
        return None
    return round((last.resident - first.resident) / (last.others - first.others))


if __name__ == "__main__":
    main(sys.argv[1:])
