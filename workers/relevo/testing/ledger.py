"""The independent ledger of a drill: which jobs Kafka took, and which effects happened.

Every process writes a file of its own, a line for each fact, by one append that the kernel makes whole. So
it survives the death of its writer at any moment, and it knows nothing of the engine. Times are milliseconds
since the Unix epoch.

    A key sent accepted      Kafka acknowledged the job
    R key at reason          it was not accepted
    C key at worker          a worker asks the dedup store for the job
    D key at worker          and is told that it is done
    B key attempt at worker  its effect begins
    E key attempt at worker  it has happened
    F key attempt at worker  its handler has ended with an exception instead
    Q kind at took tries why a call that somebody waited for has been answered; why: how it failed, else -
"""

from __future__ import annotations

import math
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

SUFFIX: Final = ".ledger"


def now_ms() -> float:
    """The wall clock, which all processes of a machine share."""
    return time.time() * 1000


class LedgerFile:
    """One process's file, made at once.

    Args:
        folder: Where all files of a drill lie.
        name: Of this process; no other has the same.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.path = folder / f"{name}{SUFFIX}"
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def accepted(self, key: str, sent_ms: float) -> None:
        """Kafka acknowledged a job."""
        self._write("A", key, f"{sent_ms:.3f}", f"{now_ms():.3f}")

    def refused(self, key: str, reason: str) -> None:
        """A job was not accepted, as far as its creator knows."""
        self._write("R", key, f"{now_ms():.3f}", " ".join(reason.split()))

    def claiming(self, keys: Iterable[str]) -> None:
        """A worker asks whether it may run these."""
        at = f"{now_ms():.3f}"
        self._append("".join(f"C\t{key}\t{at}\t{self.name}\n" for key in keys))

    def suppressed(self, keys: Iterable[str]) -> None:
        """A worker was told that these are done, and runs none of them."""
        at = f"{now_ms():.3f}"
        self._append("".join(f"D\t{key}\t{at}\t{self.name}\n" for key in keys))

    def begun(self, key: str, attempt: int) -> None:
        """An effect begins."""
        self._write("B", key, str(attempt), f"{now_ms():.3f}", self.name)

    def ended(self, key: str, attempt: int) -> None:
        """An effect has happened."""
        self._write("E", key, str(attempt), f"{now_ms():.3f}", self.name)

    def failed(self, key: str, attempt: int) -> None:
        """A handler has ended with an exception; whether its effect has happened isn't known."""
        self._write("F", key, str(attempt), f"{now_ms():.3f}", self.name)

    def called(self, call: Call) -> None:
        """A call that somebody waited for is over."""
        why = " ".join(call.failed.split()) or "-"
        self._write("Q", call.kind, f"{call.at:.3f}", f"{call.took_ms:.3f}", str(call.tries), why)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def _write(self, *words: str) -> None:
        self._append("\t".join(words) + "\n")

    def _append(self, text: str) -> None:
        line = text.encode()
        written = os.write(self._descriptor, line)
        if written != len(line):
            raise OSError(
                f"only {written} of {len(line)} bytes were written to {self.path}: is the disk full?"
            )


@dataclass(frozen=True, slots=True)
class Call:
    """A call that somebody waited for.

    Attributes:
        kind: ``create`` or ``read``.
        at: When it was made.
        took_ms: How long it took until it was answered or given up, in milliseconds, asking again included.
        tries: How often it was asked: more than once where the answer said so.
        failed: How it failed; empty: it didn't.
    """

    kind: str
    at: float
    took_ms: float
    tries: int
    failed: str = ""


@dataclass(slots=True)
class EffectRun:
    """One run of a handler.

    Attributes:
        key: The job.
        attempt: As the engine numbered it.
        worker: Who ran it.
        begun: When.
        ended: When its effect had happened; None: not known to have.
        claimed: When the worker asked the dedup store for it; None: not known to have.
        failed: When its handler had ended with an exception instead; None: not known to have.
    """

    key: str
    attempt: int
    worker: str
    begun: float
    ended: float | None = None
    claimed: float | None = None
    failed: float | None = None

    @property
    def under_way(self) -> float:
        """Since when it was."""
        return self.begun if self.claimed is None else min(self.claimed, self.begun)


@dataclass(frozen=True, slots=True)
class Moment:
    """When a process was killed or frozen.

    Attributes:
        at: Right before the signal was sent.
        worker: The worker it happened to; empty where it was none of them.
        until: When it had taken effect: the process may have run on up to then. None: at once.
    """

    at: float
    worker: str = ""
    until: float | None = None

    @property
    def over(self) -> float:
        """When it had taken effect."""
        return self.at if self.until is None else self.until


@dataclass(slots=True)
class Repeat:
    """An effect that was begun although it had been before.

    Attributes:
        run: The run that repeats.
        in_flight: Whether a fault explains it, one that came before: see `repeats`.
    """

    run: EffectRun
    in_flight: bool


class LedgerError(ValueError):
    """A line of a ledger can't be read."""


@dataclass
class Ledger:
    """All files of a drill, read as far as they are written.

    Attributes:
        folder: Where they lie.
        accepted: When Kafka acknowledged each job, by key.
        sent: When each was sent, by key.
        refused: Why, and when, by key; those that were not accepted.
        runs: Runs of handlers by key, in the order in which they began.
        suppressed: How often a worker was told that a job is done already.
        at_work: Worker processes that have asked for a job.
        calls: Calls that somebody waited for, in the order in which they were over.
    """

    folder: Path
    accepted: dict[str, float] = field(default_factory=dict)
    sent: dict[str, float] = field(default_factory=dict)
    refused: dict[str, tuple[float, str]] = field(default_factory=dict)
    runs: dict[str, list[EffectRun]] = field(default_factory=lambda: defaultdict(list))
    suppressed: int = 0
    at_work: set[str] = field(default_factory=set)
    calls: list[Call] = field(default_factory=list)
    _offsets: dict[Path, int] = field(default_factory=dict)
    _claims: dict[tuple[str, str], float] = field(default_factory=dict)
    _running: dict[tuple[str, int, str], EffectRun] = field(default_factory=dict)

    def refresh(self) -> None:
        """Take in what was written since. A last line without its end is left for later.

        Raises:
            LedgerError: A line is none of those above.
        """
        for path in sorted(self.folder.glob(f"*{SUFFIX}")):
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                data = file.read()
            whole, newline, _torn = data.rpartition(b"\n")
            self._offsets[path] = self._offsets.get(path, 0) + len(whole) + len(newline)
            for line in whole.decode().splitlines():
                self._take(path, line)

    @property
    def redelivered(self) -> int:
        """How often a job came to yet another worker process."""
        return len(self._claims) - len({key for key, _ in self._claims})

    def running(self, worker: str) -> int:
        """How many effects a worker has begun and not ended."""
        return sum(name == worker for _, _, name in self._running)

    def _take(self, path: Path, line: str) -> None:
        try:
            kind, key, *rest = line.split("\t")
            if kind == "A":
                self.sent[key], self.accepted[key] = float(rest[0]), float(rest[1])
            elif kind == "R":
                self.refused[key] = (float(rest[0]), rest[1])
            elif kind == "C":
                self._claims[key, rest[1]] = float(rest[0])
                self.at_work.add(rest[1])
            elif kind == "D":
                self.suppressed += 1
            elif kind == "B":
                claimed = self._claims.get((key, rest[2]))
                run = EffectRun(key, int(rest[0]), rest[2], float(rest[1]), claimed=claimed)
                self.runs[key].append(run)
                self._running[key, run.attempt, run.worker] = run
            elif kind == "E":
                self._running.pop((key, int(rest[0]), rest[2])).ended = float(rest[1])
            elif kind == "F":
                self._running.pop((key, int(rest[0]), rest[2])).failed = float(rest[1])
            elif kind == "Q":
                why = rest[3] if rest[3] != "-" else ""
                self.calls.append(Call(key, float(rest[0]), float(rest[1]), int(rest[2]), why))
            else:
                raise ValueError(f"kind {kind!r}")
        except (ValueError, IndexError, KeyError) as error:
            raise LedgerError(f"{path}: {line[:200]!r} is no line of a ledger ({error!r})") from error


def repeats(
    runs: Mapping[str, Sequence[EffectRun]], moments: Iterable[Moment], completed: Mapping[str, float]
) -> list[Repeat]:
    """Every run beyond the first of its job, and whether that is a fault's doing.

    A run is under way from the moment at which the worker asks for it until its effect has happened; for the
    worker that was hit, until the job log has its completion. A fault explains what begins after it, as long
    as nobody has come to an end undisturbed and the log has no completion: from then on, whoever asks the
    store is told that the job is done.

    A run that was hit itself, between its claim and its effect, goes on when it wakes up, and can't know what
    others did meanwhile.

    Args:
        runs: Runs by key.
        moments: When something was killed or frozen.
        completed: When each job was completed, by the job log.
    """
    hits = sorted(moments, key=lambda moment: moment.at)
    found = []
    for key, of_job in runs.items():
        in_order = sorted(of_job, key=lambda run: run.begun)
        for place, run in enumerate(in_order[1:], 1):
            before = [hit for hit in hits if hit.at <= run.begun]
            undisturbed = []
            caught = False
            for each in in_order[:place]:
                over = _over(each, hits)
                if any(_was_caught(each, over, hit, run, completed.get(key)) for hit in before):
                    caught = True
                elif each.ended is not None:
                    undisturbed.append(each.ended)
            done = min(undisturbed, default=math.inf)
            slept = any(hit.worker == run.worker and run.under_way <= hit.over for hit in before)
            # One that slept has been told before that the job is its own.
            found.append(Repeat(run, (caught and done >= run.begun) or (slept and done >= run.under_way)))
    return found


def _over(run: EffectRun, hits: Iterable[Moment]) -> float | None:
    """Until when a run was under way, as far as anybody knows: at most until its worker was hit."""
    if run.ended is not None:
        return run.ended
    if run.failed is not None:
        return run.failed
    return next((hit.over for hit in hits if hit.worker == run.worker and hit.over >= run.under_way), None)


def _was_caught(
    run: EffectRun, over: float | None, hit: Moment, repeat: EffectRun, completed: float | None
) -> bool:
    """Whether a fault can be why ``repeat`` was begun after ``run``, which was under way until ``over``."""
    if run.under_way > hit.over or (completed is not None and completed < repeat.under_way):
        return False
    if hit.worker == run.worker:
        return over is None or over >= hit.at or completed is None or completed >= hit.at
    # A run without an end whose own worker was never hit is no concern of what happened to another worker.
    return not hit.worker if over is None else over >= hit.at
