"""Entry point: finds the command, runs it, and turns errors into one clear line and an exit code."""

from __future__ import annotations

import importlib
import sys
import traceback
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, NoReturn

import click

from relevo.cli.failures import fields_of
from relevo.cli.output import as_json, scrub
from relevo.errors import Unreachable

# Packages of the extra `engine`. One that is missing is named to the user together with the extra.
_ENGINE_PACKAGES: Final = frozenset(
    {"aiohttp", "kazoo", "prometheus_client", "pydantic", "pydantic_settings", "rich", "structlog"}
)
_OTHER_EXTRAS: Final = {"redis": "redis", "psycopg": "sql"}
_UNREACHABLE: Final = 6
"""The exit code that the engine's errors of the same kind carry."""


@dataclass(frozen=True)
class _Entry:
    """A command that isn't imported yet."""

    module: str
    summary: str


# In the order of a newcomer's day. Each module has an object `command`.
COMMANDS: Final = {
    "dev": _Entry("relevo.cli.dev", "Run a local cluster in the foreground, with a live table."),
    "jobs": _Entry("relevo.cli.jobs", "Create, look at, cancel and retry jobs."),
    "events": _Entry("relevo.cli.events", "Follow what happens to jobs."),
    "worker": _Entry("relevo.cli.worker", "Run handlers."),
    "node": _Entry("relevo.cli.node", "Run one engine node."),
    "topics": _Entry("relevo.cli.topics", "Create and check the Kafka topics of a cluster."),
    "cluster": _Entry("relevo.cli.cluster", "See how a cluster is doing."),
    "drill": _Entry("relevo.cli.drill", "Hurt a cluster under load, and prove that nothing was lost."),
    "bench": _Entry("relevo.cli.bench", "Measure a cluster: jobs per second, and how long a job takes."),
    "verify": _Entry("relevo.cli.verify", "Prove that the job log is sound and no job was lost."),
}


class LazyGroup(click.Group):
    """Knows its commands by name and one line each, and imports one when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports the command."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        try:
            module = importlib.import_module(entry.module)
            # One whose flags come from the engine's settings is made when it is needed.
            make = getattr(module, "make_command", None)
            command: click.Command = make() if make is not None else module.command
        except ImportError as error:
            if error.name == entry.module:
                raise click.ClickException(f"`relevo {cmd_name}` is not part of this installation") from error
            raise
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in COMMANDS.items()])


def _version() -> str:
    try:
        return version("relevo")
    except PackageNotFoundError:
        return "unknown"


@click.group(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(_version(), prog_name="relevo", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_context
def cli(ctx: click.Context, debug: bool) -> None:
    """Relevo runs jobs at least once, on a Kafka log, and goes on when a leader dies.

    A client creates jobs, the engine hands each to a worker, the worker does it and completes it. Kafka holds
    the truth, ZooKeeper says who leads.

    \b
    Try it on this machine:
      relevo dev                                       a cluster in the foreground
      relevo jobs create --type hello --variables '{"name": "Ada"}'
      relevo worker run my_handlers:app
      relevo events tail

    \b
    Options come from flags, or from the environment:
      RELEVO_KAFKA=host:9092        Kafka brokers             (default localhost:9092)
      RELEVO_ZOOKEEPER=host:2181    ZooKeeper servers         (default localhost:2181)
      RELEVO_CLUSTER=name           name of the cluster       (default relevo)
      RELEVO_API=host:port          HTTP API of any node
      RELEVO_KAFKA_OPTIONS='{...}'  more librdkafka options, as JSON

    `relevo COMMAND --help` explains each command, with examples.
    """
    ctx.ensure_object(dict)
    ctx.obj["debug"] = debug


def main(arguments: list[str] | None = None) -> NoReturn:
    """Runs the command line and ends the process.

    Exit codes: 0 done, 1 refused or failed, 2 wrong usage or settings, 6 Kafka, ZooKeeper or a node not
    reached, 130 interrupted; `relevo node --help` has those of a node.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        outcome: Any = cli.main(args=arguments, prog_name="relevo", standalone_mode=False)
        code = outcome if isinstance(outcome, int) else 0
    except click.exceptions.Exit as done:
        code = done.exit_code
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        code = 130
    except BrokenPipeError:
        # Whoever read our output has enough of it. Python would complain once more while it ends.
        sys.stdout = None
        code = 0
    except Exception as error:
        code = _report(error, debug="--debug" in arguments, json_="--json" in arguments)
    sys.exit(code)


def _report(error: Exception, *, debug: bool, json_: bool) -> int:
    """Tells the user what went wrong, and programs on standard output, and says with which code to end."""
    if debug:
        traceback.print_exc()
    text = scrub(str(error) or type(error).__name__)
    cause = error.__cause__ if type(error).__module__ == "relevo.cli.worker" else error
    if isinstance(cause, ImportError):
        text = _missing(cause) or text
    click.echo(f"Error: {text}", err=True)
    if json_:
        click.echo(as_json(fields_of(error)))
    if not debug and not _is_for_users(error):
        click.echo(f"({type(error).__name__}; `relevo --debug …` shows where it came from)", err=True)
    return int(getattr(error, "exit_code", _UNREACHABLE if isinstance(error, Unreachable) else 1))


def _is_for_users(error: Exception) -> bool:
    """Whether the message of ``error`` was written for users: ours are, and those of the system calls."""
    return type(error).__module__.startswith("relevo") or isinstance(error, (OSError, ImportError))


def _missing(error: ImportError) -> str | None:
    """What to install, where it is a part of ours that is missing."""
    package = (error.name or "").split(".")[0]
    extra = "engine" if package in _ENGINE_PACKAGES else _OTHER_EXTRAS.get(package)
    if extra is None:
        return None
    return f"this command needs {package}, which isn't installed: pip install 'relevo[{extra}]'"


if __name__ == "__main__":
    main()
