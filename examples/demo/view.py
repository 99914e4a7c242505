"""What the demo shows: a live line on a terminal, plain lines elsewhere, and a table at the end."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import Self

from report import Report
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

PLAIN_EVERY_S = 1.0


class View:
    """Shows how far created, done and completed jobs are.

    Args:
        jobs: How many there will be.
    """

    def __init__(self, jobs: int) -> None:
        self._console = Console(highlight=False)
        self._jobs = jobs
        self._progress = Progress(
            TextColumn("{task.description:>10}"),
            BarColumn(bar_width=40),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[status]}"),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._tasks = [
            self._progress.add_task(name, total=jobs, status="")
            for name in ("accepted", "effects", "completed")
        ]
        self._shown_at = 0.0

    def __enter__(self) -> Self:
        """Begin the live part."""
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the live part."""
        self._progress.stop()

    def say(self, line: str) -> None:
        """A line that stays."""
        self._console.print(f"[dim]{time.strftime('%H:%M:%S')}[/dim]  {line}")

    def show(self, accepted: int, completed: int, effects: int, status: str) -> None:
        """How things stand."""
        for task, count in zip(self._tasks, (accepted, effects, completed), strict=True):
            self._progress.update(task, completed=count, status="")
        self._progress.update(self._tasks[-1], status=status)
        if self._progress.disable and time.monotonic() - self._shown_at >= PLAIN_EVERY_S:
            self._shown_at = time.monotonic()
            self.say(
                f"{accepted} accepted, {effects} effects, {completed} completed of {self._jobs}; {status}"
            )

    def finish(self, report: Report, faults: list[str], path: Path) -> None:
        """The result as a table."""
        table = Table(
            title="What the receiver's database and the job log say", title_justify="left", min_width=60
        )
        table.add_column("fact")
        table.add_column("value", justify="right")
        for name, value in report.as_dict().items():
            table.add_row(name, str(value))
        self._console.print(table)
        for fault in faults:
            self._console.print(f"[red]{fault}[/red]")
        verdict = "[green]no job was lost[/green]" if report.sound else "[red]this is not as it must be[/red]"
        self._console.print(f"{verdict}; written to {path}")
