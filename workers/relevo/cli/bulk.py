"""Many jobs from JSON lines: streamed, with progress, each bad line told, no good one lost."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, BinaryIO

import click

from relevo import BulkResult, Client, JobEvents, NewJob, Outcome, QueueFull, Retry
from relevo.cli.answers import Answer, Answers
from relevo.cli.job_lines import BadLine, read_lines
from relevo.cli.output import as_json, cell, result_fields
from relevo.cli.progress import Progress


def create_lines(client: Client, file: BinaryIO, *, wait: str, timeout_s: float, json_: bool) -> bool:
    """Creates a job for each line that is one, and says what became of each.

    Args:
        client: Where to.
        file: JSON lines.
        wait: ``accepted``, ``decided`` or ``result``.
        timeout_s: Longest wait for one answer, in seconds.
        json_: One JSON object for each line on standard output, once what was waited for is known.

    Returns:
        Whether all lines were jobs and none was refused.
    """
    # Opened before anything is sent, so that no answer can come before it listens.
    with ExitStack() as stack:
        answers = None
        if wait != "accepted":
            events = JobEvents(client.bootstrap, client.cluster, "now", **client.kafka_options)
            answers = Answers(stack.enter_context(events), decided_is_enough=wait == "decided")
        awaited = "not decided" if wait == "decided" else "has not ended"
        task = _Bulk(client, file, answers, awaited, json_)
        try:
            task.send(timeout_s)
            task.await_answers(timeout_s)
        except (BrokenPipeError, KeyboardInterrupt):
            task.tell_where()
            raise
        return task.finish()


class _Bulk:
    def __init__(
        self, client: Client, file: BinaryIO, answers: Answers | None, awaited: str, json_: bool
    ) -> None:
        self._client = client
        self._file = file
        self._answers = answers
        self._awaited = awaited
        self._json = json_
        self._progress = Progress(_size(file))
        self._read = self._line = self._accepted = self._there = self._bad = self._refused = 0
        # Line numbers of jobs that were handed to the client and not answered for yet, in their order.
        self._numbers: deque[int] = deque()
        self._began = time.monotonic()

    def send(self, timeout_s: float) -> None:
        try:
            for result in self._client.create_many(self._jobs(), timeout=timeout_s):
                self._answered(self._numbers.popleft(), result)
                self._progress.update(self._read, self._text())
        except QueueFull:
            self._progress.clear()
            click.echo(
                f"{self._text()}; ended at line {self._numbers.popleft()}, which was not sent", err=True
            )
            raise

    def await_answers(self, timeout_s: float) -> None:
        """Waits for what becomes of the accepted jobs, as long as something comes within the time."""
        answers = self._answers
        if answers is None:
            return
        self._progress = Progress(self._accepted)
        silent_since = time.monotonic()
        while answers.pending and time.monotonic() - silent_since < timeout_s:
            before = answers.pending
            for answer in answers.read():
                self._tell_answer(answer)
            if answers.pending < before:
                silent_since = time.monotonic()
            done = self._accepted - answers.pending
            self._progress.update(done, f"{done:,} of {self._accepted:,}")
        for answer in answers.unanswered():
            self._tell_if_there(answer)
            text = f"job {answer.key!r} is accepted, and {self._awaited} after {timeout_s:g} s"
            text += f"; last heard: {answer.trouble}"
            self._problem(answer.number, answer.key, text, answer.outcome, Retry.SAME, _known(answer))

    def finish(self) -> bool:
        self._progress.clear()
        seconds = max(time.monotonic() - self._began, 1e-6)
        rate = f"{self._accepted / seconds:,.0f}/s"
        click.echo(f"{self._text()} in {seconds:.1f} s ({rate})", err=True)
        return not (self._bad or self._refused)

    def tell_where(self) -> None:
        """Says how far it came, where it was interrupted or nobody takes its output any more."""
        self._progress.clear()
        text = f"{self._text()}; stopped at line {self._line}"
        if self._numbers:
            text += f", with {len(self._numbers):,} line(s) from {self._numbers[0]} on not answered by Kafka"
        if self._answers is not None and self._answers.pending:
            text += f"; what became of {self._answers.pending:,} of those accepted was not waited for"
        click.echo(text, err=True)

    def _jobs(self) -> Iterator[NewJob]:
        for line in read_lines(self._lines(), now_ms=int(time.time() * 1000)):
            self._line = line.number
            if isinstance(line, BadLine):
                self._bad += 1
                self._progress.clear()
                click.echo(cell(str(line)), err=True)
                if self._json:
                    told = {"error": line.reason, "outcome": Outcome.NOT_DONE, "retry": Retry.STOP}
                    click.echo(as_json({"line": line.number, **told}))
                continue
            self._numbers.append(line.number)
            yield line.job

    def _lines(self) -> Iterator[bytes]:
        for line in self._file:
            self._read += len(line)
            yield line

    def _answered(self, number: int, result: BulkResult) -> None:
        if result.error is not None:
            error = result.error
            self._problem(number, result.key, error.text, error.outcome, error.retry)
            return
        if result.handle is None:
            return
        self._accepted += 1
        if self._answers is not None:
            self._answers.expect(number, result.handle)
        elif self._json:
            shown: dict[str, Any] = {"line": number, "key": result.key, "partition": result.handle.partition}
            click.echo(as_json(shown))

    def _tell_answer(self, answer: Answer) -> None:
        self._tell_if_there(answer)
        if answer.trouble:
            known = _known(answer)
            self._problem(answer.number, answer.key, answer.trouble, answer.outcome, Retry.STOP, known)
        elif self._json:
            told = {"line": answer.number, "key": answer.key, "outcome": answer.outcome}
            click.echo(as_json(told | _known(answer)))

    def _tell_if_there(self, answer: Answer) -> None:
        if answer.created is not False:
            return
        self._there += 1
        if not self._json:
            self._progress.clear()
            click.echo(f"line {answer.number}: {cell(answer.key)} already there: {answer.state}")

    def _problem(
        self, number: int, key: str | None, reason: str, outcome: Outcome, retry: Retry,
        known: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self._refused += 1
        self._progress.clear()
        click.echo(cell(f"line {number}: {reason}"), err=True)
        if self._json:
            told = {"error": reason, "outcome": outcome, "retry": retry}
            click.echo(as_json({"line": number, "key": key, **told, **(known or {})}))

    def _text(self) -> str:
        parts = [f"{self._accepted:,} accepted"]
        parts += [f"{self._there:,} of them already there"] * bool(self._there)
        parts += [f"{self._bad:,} bad line(s)"] * bool(self._bad)
        parts += [f"{self._refused:,} refused, not done or unknown"] * bool(self._refused)
        return ", ".join(parts)


def _known(answer: Answer) -> dict[str, Any]:
    """What the engine said of a line's job, for programs."""
    result = result_fields(answer.result) if answer.result is not None else None
    return {"partition": answer.partition, "created": answer.created, "state": answer.state, "result": result}


def _size(file: BinaryIO) -> int:
    """Bytes of a plain file, 0 for a pipe."""
    try:
        return os.fstat(file.fileno()).st_size
    except (OSError, AttributeError, ValueError):
        return 0
