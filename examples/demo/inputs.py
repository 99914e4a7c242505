"""The demo's jobs: lines of a JSONL file, repeated with fresh keys up to the number asked for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from relevo import NewJob
from relevo.cli.job_lines import BadLine, GoodLine, read_lines


def read_jobs(path: Path) -> tuple[list[GoodLine], list[BadLine]]:
    """The good lines of ``path`` and the bad ones, read as ``relevo jobs create`` does it."""
    good: list[GoodLine] = []
    bad: list[BadLine] = []
    with path.open("rb") as file:
        for line in read_lines(file, now_ms=int(time.time() * 1000)):
            if isinstance(line, BadLine):
                bad.append(line)
            else:
                good.append(line)
    return good, bad


def repeated(lines: list[GoodLine], jobs: int) -> Iterator[NewJob]:
    """``jobs`` jobs: the lines again and again, each time under fresh keys."""
    for made in range(jobs):
        turn, place = divmod(made, len(lines))
        line = lines[place]
        key = line.job.key or f"line-{line.number}"
        yield replace(line.job, key=f"{key}-{turn}" if turn else key)


def made_of(lines: int, jobs: int) -> str:
    """How so many jobs come of so many lines, for people."""
    if jobs > lines:
        return f"{lines} lines, repeated to {jobs} jobs"
    return f"{lines} lines, of which the first {jobs} are jobs here" if jobs < lines else f"{jobs} jobs"
