"""`relevo worker`: run handlers."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from relevo import JobWorker, WorkerApp


@click.group()
def command() -> None:
    """Run handlers."""


@command.command()
@click.argument("target", metavar="MODULE:APP")
@click.option(
    "--drain",
    type=click.FloatRange(0),
    default=None,
    metavar="SECONDS",
    help="How long running handlers may finish on the first signal.",
)
@click.option(
    "--log-level",
    default="info",
    show_default=True,
    type=click.Choice(("debug", "info", "warning", "error"), case_sensitive=False),
    help="Least level logged.",
)
def run(target: str, drain: float | None, log_level: str) -> None:
    """Run the handlers of a WorkerApp or JobWorker until SIGTERM or SIGINT.

    MODULE is imported as Python does it, the current folder included; APP is the object in it.

    \b
    my_handlers.py:
      import relevo
      app = relevo.WorkerApp("localhost:9092")

    \b
      @app.job("send-email", lease=30, concurrency=50)
      async def send_email(job: relevo.Job) -> None:
          ...

    \b
    Examples:
      relevo worker run my_handlers:app
      relevo worker run shop.workers:app --log-level debug

    The first signal drains: no new job is started, running handlers may finish. A second one ends the process
    at once; what was running is delivered again.
    """
    logging.basicConfig(
        level=log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s"
    )
    app = load(target)
    app.run() if drain is None else app.run(drain)


def load(target: str) -> WorkerApp | JobWorker:
    """The object that ``module:attribute`` names.

    Raises:
        click.BadParameter: There is no such module or object, or it is no worker.
    """
    from relevo import JobWorker, WorkerApp

    module_name, colon, attribute = target.partition(":")
    if not colon or not module_name or not attribute:
        raise click.BadParameter(f"{target!r} must be like my_handlers:app", param_hint="MODULE:APP")
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        found: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # A module that the handlers' own module lacks is theirs to mend, and keeps its traceback.
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise click.BadParameter(
            f"there is no module {module_name!r} in {folder}", param_hint="MODULE:APP"
        ) from error
    for name in attribute.split("."):
        found = getattr(found, name, None)
        if found is None:
            raise click.BadParameter(f"module {module_name!r} has no {attribute!r}", param_hint="MODULE:APP")
    if not isinstance(found, (WorkerApp, JobWorker)):
        kind = type(found).__name__
        raise click.BadParameter(
            f"{target} is a {kind}, not a WorkerApp or JobWorker", param_hint="MODULE:APP"
        )
    return found
