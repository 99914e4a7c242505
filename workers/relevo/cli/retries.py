"""Retrying and cancelling many jobs: each is told, and one that is refused holds up no other."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from relevo.cli.failures import fields_of
from relevo.cli.job_lines import BadLine
from relevo.cli.output import as_json, cell
from relevo.cli.progress import Progress
from relevo.errors import Closed, Outcome, QueueFull, RelevoError, Retry, Unreachable

if TYPE_CHECKING:
    from relevo import Client
    from relevo_engine.api.client import ApiClient

PAGE: Final = 1_000
"""Most jobs that a node lists at once."""
_GIVE_UP: Final = (Unreachable, QueueFull, Closed)
"""Kafka is away: the others would fare the same, each after its time."""


class Incidents:
    """Keys of incidents, page by page: of all types or of one, the oldest jobs first, each once.

    A job that fails again while this runs isn't taken again.

    Args:
        api: Any node.
        job_type: Only of this type.
        limit: At most so many.
    """

    def __init__(self, api: ApiClient, job_type: str | None, limit: int) -> None:
        self._api = api
        self._type = job_type
        self._limit = limit
        self._seen: set[str] = set()
        self.not_reached: list[dict[str, Any]] = []
        self.hidden = False
        """Whether a whole page failed again meanwhile, and may hide others."""
        self.cut = False
        """Whether there may be more than the limit."""

    def __iter__(self) -> Iterator[str]:
        while True:
            answer = self._api.get("/v1/jobs", {"state": "INCIDENT", "type": self._type, "limit": PAGE})
            self.not_reached = answer["not_reached"]
            keys = [job["key"] for job in answer["jobs"]]
            new = [key for key in keys if key not in self._seen]
            for key in new:
                if len(self._seen) >= self._limit:
                    self.cut = True
                    return
                self._seen.add(key)
                yield key
            if len(keys) < PAGE:
                return
            if not new:
                self.hidden = True
                return


def retry_all(
    client: Client, keys: Iterable[str], retries: int, *, total: int, timeout_s: float, json_: bool
) -> int:
    """Retries each and tells what became of it: on standard output what was done, on standard error what not.

    Ends early where Kafka doesn't answer. Repeating it is safe and goes on where it ended.

    Args:
        client: Where to.
        keys: The jobs.
        retries: Failures that each may have from now on.
        total: How many keys there are; 0 where that isn't known.
        timeout_s: Longest wait for one, in seconds.
        json_: One JSON object for each on standard output.

    Returns:
        The exit code: 0 where all are ready again.
    """
    tally = _Tally("ready again")
    progress = Progress(total)
    ended_by: RelevoError | None = None
    for result in client.retry_many(keys, retries, timeout=timeout_s):
        tally.count(result.error)
        if result.error is not None or json_ or total:
            progress.clear()
        _tell(result.key, result.error, "" if not total else "ready again", json_=json_)
        progress.update(tally.all, f"{tally.done:,} ready again, {tally.all - tally.done:,} not")
        if isinstance(result.error, _GIVE_UP):
            ended_by = result.error
            break
    progress.clear()
    if not total or tally.all > 1:
        tally.tell()
    if ended_by is not None:
        click.echo("ended early; run it again to go on: what is ready by now is left alone", err=True)
    return _exit_code(ended_by, good=tally.done == tally.all)


def cancel_all(
    client: Client, keys: Iterable[str | BadLine], reason: str, *, timeout_s: float, json_: bool
) -> int:
    """Cancels each, one after the other, and tells what became of it: as `retry_all`.

    Ends early where Kafka doesn't answer, and tells the keys that were not tried.

    Args:
        client: Where to.
        keys: The jobs; lines that name none are told and passed over.
        reason: Why, for the log.
        timeout_s: Longest wait for one, in seconds.
        json_: One JSON object for each on standard output.

    Returns:
        The exit code: 0 where all are cancelled.
    """
    tally = _Tally("cancelled")
    ended_by: RelevoError | None = None
    bad = 0
    source = iter(keys)
    for key in source:
        if isinstance(key, BadLine):
            bad += 1
            _tell_bad(key, json_=json_)
            continue
        error = _cancel(client, key, reason, timeout_s)
        tally.count(error)
        _tell(key, error, "cancelled", json_=json_)
        if isinstance(error, _GIVE_UP):
            ended_by = error
            break
    if tally.all + bad > 1:
        tally.tell()
    if ended_by is not None:
        _tell_untried([key for key in source if not isinstance(key, BadLine)], ended_by, json_=json_)
    return _exit_code(ended_by, good=tally.done == tally.all and not bad)


def _cancel(client: Client, key: str, reason: str, timeout_s: float) -> RelevoError | None:
    try:
        client.cancel(key, reason, wait="decided", timeout=timeout_s)
    except RelevoError as error:
        return error
    return None


class _Tally:
    """How many went well, and how many not.

    Args:
        did: What became of those that went well, in words.
    """

    def __init__(self, did: str) -> None:
        self._did = did
        self._began = time.monotonic()
        self.done = self.failed = self.unknown = 0

    @property
    def all(self) -> int:
        """How many were tried."""
        return self.done + self.failed + self.unknown

    def count(self, error: RelevoError | None) -> None:
        """One more, and why it didn't go well."""
        self.done += error is None
        self.failed += error is not None and error.outcome is Outcome.NOT_DONE
        self.unknown += error is not None and error.outcome is not Outcome.NOT_DONE

    def tell(self) -> None:
        """Says it on standard error."""
        parts = [f"{self.done:,} {self._did}"]
        parts += [f"{self.failed:,} not"] * bool(self.failed)
        parts += [f"{self.unknown:,} unknown"] * bool(self.unknown)
        click.echo(f"{', '.join(parts)} in {time.monotonic() - self._began:.1f} s", err=True)


def _exit_code(ended_by: RelevoError | None, *, good: bool) -> int:
    if ended_by is not None:
        return 6 if isinstance(ended_by, Unreachable) else 1
    return 0 if good else 1


def _tell(key: str | None, error: RelevoError | None, did: str, *, json_: bool) -> None:
    """Tells what became of one; of one that went well only programs hear where ``did`` is empty."""
    if error is None:
        if json_:
            click.echo(as_json({"key": key, "outcome": Outcome.DONE}))
        elif did:
            click.echo(f"{cell(str(key))} {did}")
        return
    fields = fields_of(error)
    said = str(fields["error"])
    if repr(key) not in said:
        said = f"job {key!r}: {said}"
    if fields["outcome"] != Outcome.NOT_DONE:
        said += f" [outcome={fields['outcome']} retry={fields['retry']}]"
    click.echo(f"Error: {cell(said)}", err=True)
    if json_:
        click.echo(as_json({"key": key, **fields}))


def _tell_bad(line: BadLine, *, json_: bool) -> None:
    click.echo(f"Error: {cell(str(line))}", err=True)
    if json_:
        told = {"error": line.reason, "outcome": Outcome.NOT_DONE, "retry": Retry.STOP}
        click.echo(as_json({"line": line.number, **told}))


def _tell_untried(keys: list[str], why: RelevoError, *, json_: bool) -> None:
    """Tells the keys that nothing was sent for; whoever runs it again may name just them."""
    text = f"ended early, {len(keys):,} not tried"
    click.echo(cell(f"{text}: {', '.join(map(repr, keys))}" if keys else text), err=True)
    if json_:
        fields = fields_of(why)
        fields |= {
            "error": f"not tried, as one before it met: {fields['error']}",
            "outcome": Outcome.NOT_DONE,
        }
        for key in keys:
            click.echo(as_json({"key": key, **fields}))
