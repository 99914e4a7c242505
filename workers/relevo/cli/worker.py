"""`relevo worker`: run handlers."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from relevo.cli.output import addresses, as_json, parse_kafka_options

if TYPE_CHECKING:
    from relevo import JobWorker, WorkerApp

_OURS: Final = Path(__file__).parents[1]


class ModuleFaultError(Exception):
    """The user's module could not be imported; the message says where in it the fault lies."""


@click.group()
def command() -> None:
    """Run handlers."""


@command.command()
@click.argument("target", metavar="MODULE:APP")
@click.option(
    "--kafka",
    default=None,
    metavar="HOST:PORT",
    callback=addresses,
    help="Kafka brokers, separated by commas.  [env RELEVO_KAFKA]",
)
@click.option("--cluster", default=None, metavar="NAME", help="Name of the cluster.  [env RELEVO_CLUSTER]")
@click.option(
    "--kafka-option",
    multiple=True,
    metavar="NAME=VALUE",
    help="One more librdkafka option; repeatable. Secrets belong in RELEVO_KAFKA_OPTIONS.",
)
@click.option(
    "--drain",
    type=click.FloatRange(0),
    default=None,
    metavar="SECONDS",
    help="How long running handlers may finish on the first signal.",
)
@click.option(
    "--http",
    default=None,
    metavar="HOST:PORT",
    callback=addresses,
    envvar="RELEVO_WORKER_HTTP",
    help="Serve /healthz, /readyz and /metrics here.  [env RELEVO_WORKER_HTTP]",
)
@click.option(
    "--log-level",
    default="info",
    show_default=True,
    type=click.Choice(("debug", "info", "warning", "error"), case_sensitive=False),
    help="Least level logged.",
)
def run(
    target: str, kafka: str | None, cluster: str | None, kafka_option: tuple[str, ...], drain: float | None,
    http: str | None, log_level: str,
) -> None:  # fmt: skip
    """Run the handlers of a WorkerApp or JobWorker until SIGTERM or SIGINT.

    MODULE is imported as Python does it, the current folder included; APP is the object in it.

    \b
    my_handlers.py:
      import relevo
      app = relevo.WorkerApp()

    \b
      @app.job("send-email", lease=30, concurrency=50)
      async def send_email(job: relevo.Job) -> None:
          ...

    A WorkerApp() made without arguments, as above, takes Kafka's address, the cluster's name and options for
    librdkafka from --kafka, --cluster and --kafka-option, or from RELEVO_KAFKA, RELEVO_CLUSTER and
    RELEVO_KAFKA_OPTIONS. One that is made with an explicit address keeps it.

    \b
    Examples:
      relevo worker run my_handlers:app
      relevo worker run my_handlers:app --kafka b1:9092,b2:9092 --cluster billing
      relevo worker run shop.workers:app --log-level debug
      relevo worker run my_handlers:app --http 127.0.0.1:9101

    The first signal drains: no new job is started, running handlers may finish. A second one ends the process
    at once; what was running is delivered again.
    """
    logging.basicConfig(
        level=log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s"
    )
    choose_cluster(kafka, cluster, kafka_option)
    app = load(target)
    if http is not None:
        app.http = http
    app.run() if drain is None else app.run(drain)


def choose_cluster(kafka: str | None, cluster: str | None, kafka_option: tuple[str, ...]) -> None:
    """Hands the flags to what the user's module makes without arguments, by this process's environment."""
    if kafka is not None:
        os.environ["RELEVO_KAFKA"] = kafka
    if cluster is not None:
        os.environ["RELEVO_CLUSTER"] = cluster
    if kafka_option:
        os.environ["RELEVO_KAFKA_OPTIONS"] = as_json(parse_kafka_options(kafka_option))


def load(target: str) -> WorkerApp | JobWorker:
    """The object that ``module:attribute`` names.

    Raises:
        click.BadParameter: There is no such module or object, or it is no worker.
        ModuleFaultError: The module is there and can't be imported.
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
        # A module that the handlers' own module lacks is theirs to mend.
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise ModuleFaultError(_fault(module_name, error)) from error
        raise click.BadParameter(
            f"there is no module {module_name!r} in {folder}", param_hint="MODULE:APP"
        ) from error
    except Exception as error:
        raise ModuleFaultError(_fault(module_name, error)) from error
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


def _fault(module: str, error: Exception) -> str:
    """What went wrong while the module was imported, and at which line of the user's code."""
    what = f"{type(error).__name__}: {error}".rstrip(": ")
    if isinstance(error, SyntaxError) and error.filename:
        # It was never run, so no frame is its.
        what = f"{type(error).__name__}: {error.msg}"
        return f"{_shown(error.filename)}, line {error.lineno}: {what}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
    if not frames:
        return f"module {module!r} can't be imported: {what}"
    line = f"\n    {frames[-1].line}" if frames[-1].line else ""
    return f"{_shown(frames[-1].filename)}, line {frames[-1].lineno}: {what}{line}"


def _is_users(filename: str) -> bool:
    """Whether a line of this file is the user's to mend: not ours, not Python's, not a library's."""
    if filename.startswith("<"):
        return False
    path = Path(filename).resolve()
    libraries = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    return not any(path.is_relative_to(folder) for folder in (_OURS, *(Path(each) for each in libraries)))


def _shown(filename: str) -> str:
    """The path as the user knows it: from the current folder where it lies in that."""
    path = Path(filename)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else filename
