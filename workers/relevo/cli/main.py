"""Entry point: finds the command, runs it, and turns errors into one clear line and an exit code."""

from __future__ import annotations

import contextlib
import importlib
import select
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, NoReturn, TextIO

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
_SHOW: Final = frozenset({("events", "tail"), ("jobs", "get"), ("jobs", "list")})
"""Commands that only show something: whoever closes their output has seen enough. Others are cut off in the
middle of their work, or have an answer in their exit code."""
_HELP: Final = frozenset({"-h", "--help"})


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


class _BrokenPipe(Exception):  # noqa: N818 - stands for another error
    """A `BrokenPipeError`: by its own name click would keep it, and end the process with code 1."""

    def __init__(self, error: BrokenPipeError) -> None:
        super().__init__(str(error))
        self.error = error


@contextlib.contextmanager
def _kept_from_click() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise _BrokenPipe(error) from error


class LazyGroup(click.Group):
    """Knows its commands by name and one line each, and imports one when it is called."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """As click does; may raise `_BrokenPipe`."""
        with _kept_from_click():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """As click does; may raise `_BrokenPipe`."""
        with _kept_from_click():
            return super().invoke(ctx)

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

    Exit codes: 0 done, 1 refused, failed or cut off, 2 wrong usage or settings, 6 Kafka, ZooKeeper or a node
    not reached, 130 interrupted; `relevo node --help` has those of a node.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        outcome: Any = cli.main(args=arguments, prog_name="relevo", standalone_mode=False)
        code = outcome if isinstance(outcome, int) else 0
    except click.exceptions.Exit as done:
        code = done.exit_code
    except click.ClickException as error:
        with contextlib.suppress(OSError):
            error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        _tell("interrupted")
        code = 130
    except _BrokenPipe as broken:
        if _is_closed(sys.stdout) or _is_closed(sys.stderr):
            code = _cut_off(arguments)
        else:  # some other pipe's or connection's
            code = _report(broken.error, arguments)
    except Exception as error:
        code = _report(error, arguments)
    lost = _lost_output()
    sys.exit(code or int(lost))


def _cut_off(arguments: list[str]) -> int:
    """With which code to end where somebody has closed our output."""
    words = [word for word in arguments if not word.startswith("-")]
    if tuple(words[:2]) in _SHOW or not _HELP.isdisjoint(arguments):
        return 0
    _tell("Error: nobody reads standard output any more: ended before all was done or told")
    return 1


def _is_closed(stream: TextIO | None) -> bool:
    """Whether nobody can read any more what is written there."""
    poll = select.poll()
    try:
        if stream is None:
            return False
        poll.register(stream, 0)
    except (OSError, ValueError):  # no file
        return False
    return bool(poll.poll(0))


def _lost_output() -> bool:
    """Whether something that was written came nowhere, though somebody would read it.

    A stream that fails is let go: Python would complain of it while it ends, with an exit code of its own.
    """
    lost = False
    for name in ("stdout", "stderr"):
        stream: TextIO | None = getattr(sys, name)
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError) as error:
            lost |= not isinstance(error, BrokenPipeError)
            setattr(sys, name, None)
    return lost


def _tell(text: str, *, err: bool = True) -> None:
    """Writes a line. Where that fails, what the line is about counts for more."""
    with contextlib.suppress(OSError):
        click.echo(text, err=err)


def _report(error: Exception, arguments: list[str]) -> int:
    """Tells the user what went wrong, and programs on standard output, and says with which code to end."""
    debug = "--debug" in arguments
    if debug:
        with contextlib.suppress(OSError):
            traceback.print_exception(error)
    text = scrub(str(error) or type(error).__name__)
    cause = error.__cause__ if type(error).__module__ == "relevo.cli.worker" else error
    if isinstance(cause, ImportError):
        text = _missing(cause) or text
    _tell(f"Error: {text}")
    if "--json" in arguments:
        _tell(as_json(fields_of(error)), err=False)
    if not debug and not _is_for_users(error):
        _tell(f"({type(error).__name__}; `relevo --debug …` shows where it came from)")
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
