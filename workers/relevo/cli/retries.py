"""Retrying many jobs, named ones or all incidents: each is told, and a refused one holds up no other."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from relevo.cli.failures import fields_of
from relevo.cli.output import as_json
from relevo.cli.progress import Progress
from relevo.errors import Closed, Outcome, QueueFull, Unreachable

if TYPE_CHECKING:
    from relevo import BulkResult, Client
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
    done = failed = unknown = 0
    progress = Progress(total)
    began = time.monotonic()
    ended_by: Exception | None = None
    for result in client.retry_many(keys, retries, timeout=timeout_s):
        error = result.error
        done += error is None
        failed += error is not None and error.outcome is Outcome.NOT_DONE
        unknown += error is not None and error.outcome is not Outcome.NOT_DONE
        if error is not None or json_ or total:
            progress.clear()
        _tell(result, json_=json_, quiet=not total)
        progress.update(done + failed + unknown, f"{done:,} ready again, {failed + unknown:,} not")
        if isinstance(error, _GIVE_UP):
            ended_by = error
            break
    progress.clear()
    if not total or done + failed + unknown > 1:
        parts = [f"{done:,} ready again"]
        parts += [f"{failed:,} not"] * bool(failed)
        parts += [f"{unknown:,} unknown"] * bool(unknown)
        click.echo(f"{', '.join(parts)} in {time.monotonic() - began:.1f} s", err=True)
    if ended_by is not None:
        click.echo("ended early; run it again to go on: what is ready by now is left alone", err=True)
        return 6 if isinstance(ended_by, Unreachable) else 1
    return 1 if failed or unknown else 0


def _tell(result: BulkResult, *, json_: bool, quiet: bool) -> None:
    if result.error is None:
        if json_:
            click.echo(as_json({"key": result.key, "outcome": Outcome.DONE}))
        elif not quiet:
            click.echo(f"{result.key} ready again")
        return
    fields = fields_of(result.error)
    said = f"{fields['error']}" if fields["outcome"] == Outcome.NOT_DONE else str(result.error)
    click.echo(f"Error: {said}", err=True)
    if json_:
        click.echo(as_json({"key": result.key, **fields}))
