"""The entry point: quick help, a light install, and errors in a line."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from relevo.cli import main as entry
from relevo.errors import InvalidRequest

# As if the extras weren't installed.
WITHOUT_EXTRAS = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked}:
            raise ModuleNotFoundError("No module named " + name, name=name)
sys.meta_path.insert(0, Blocker())
from relevo.cli.main import main
main({arguments})
"""
EXTRAS = {
    "aiohttp", "kazoo", "prometheus_client", "pydantic", "pydantic_settings", "rich", "structlog", "redis",
    "psycopg",
}  # fmt: skip


def light(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = WITHOUT_EXTRAS.format(blocked=EXTRAS, arguments=list(arguments))
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        entry.main(list(arguments))
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0
    for name, entry_ in entry.COMMANDS.items():
        assert f"  {name} " in out
        assert entry_.summary.split(".")[0][:30] in out


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("--version",),
        ("jobs", "create", "--help"),
        ("events", "tail", "--help"),
        ("worker", "run", "--help"),
        ("topics", "init", "--help"),
        ("cluster", "status", "--help"),
        ("dev", "--help"),
    ],
)
def test_a_light_install_shows_help(arguments: tuple[str, ...]) -> None:
    ran = light(*arguments)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout


@pytest.mark.parametrize("arguments", [("node",), ("dev",), ("cluster", "status")])
def test_a_light_install_says_what_to_install(arguments: tuple[str, ...]) -> None:
    ran = light(*arguments)
    assert ran.returncode == 1, ran.stderr
    assert "pip install 'relevo[engine]'" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_an_unknown_command_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "jabs")
    assert code == 2
    assert "jabs" in err


def raising(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def command() -> None:
        raise error

    monkeypatch.setattr(entry.LazyGroup, "get_command", lambda *_: command)


def test_an_error_for_users_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    raising(InvalidRequest("key must not be empty"), monkeypatch)
    assert run(capsys, "jobs") == (1, "", "Error: key must not be empty\n")


def test_a_bug_says_how_to_see_more_and_debug_shows_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    raising(KeyError("x"), monkeypatch)
    code, _, err = run(capsys, "jobs")
    assert code == 1
    assert "Traceback" not in err
    assert "--debug" in err
    _, _, err = run(capsys, "--debug", "jobs")
    assert "Traceback" in err


def test_no_error_shows_a_secret(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    raising(InvalidRequest("at redis://u:hunter2@h:1, sasl.password=hunter2"), monkeypatch)
    _, _, err = run(capsys, "jobs")
    assert "hunter2" not in err


def test_ctrl_c_ends_with_130(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def command() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(entry.LazyGroup, "get_command", lambda *_: command)
    code, _, err = run(capsys, "jobs")
    assert code == 130
    assert "Traceback" not in err


def _all_commands(group: click.Group, context: click.Context) -> list[tuple[str, click.Command]]:
    found: list[tuple[str, click.Command]] = []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            found += _all_commands(command, context)
        else:
            found.append((name, command))
    return found


def test_every_command_explains_itself_with_examples() -> None:
    context = click.Context(entry.cli)
    for name, command in _all_commands(entry.cli, context):
        shown = CliRunner().invoke(command, ["--help"]).output
        assert "Example" in shown, name
        assert "\\b" not in shown, f"{name} shows a mark that only click should see"
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, f"{name} {parameter.name}"


@pytest.mark.parametrize("which", ["order-1", "--all-incidents"])
def test_retries_that_can_not_be_are_refused_before_kafka_is_asked(
    which: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With Kafka away the slip would show only after the outage."""
    arguments = ("jobs", "retry", which, "--retries", "-2", "--kafka", "127.0.0.1:1", "--timeout", "0.2")
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert "-2 is not in the range 0<=x<=1000" in err


def test_an_error_is_told_to_programs_too(capsys: pytest.CaptureFixture[str]) -> None:
    """A script that reads only standard output can't tell "not done" from "unknown"."""
    arguments = ("jobs", "cancel", "k", "--kafka", "127.0.0.1:1", "--timeout", "0.2", "--json")
    code, out, err = run(capsys, *arguments)
    told = json.loads(out)
    assert code == 6
    assert (told["kind"], told["outcome"], told["retry"]) == ("Unreachable", "not_done", "elsewhere")
    assert "127.0.0.1:1" in told["error"]
    assert "[outcome=not_done retry=elsewhere]" in err


TALKATIVE = """
import sys, click
from relevo.cli import main as entry
@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("rest", nargs=-1)
def command(rest):
    while True:
        click.echo("a line")
entry.LazyGroup.get_command = lambda *_: command
entry.main(sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("events", "tail", "--from", "start"), 0, ""),
        (("--debug", "jobs", "list"), 0, ""),
        (("jobs", "create", "-"), 1, "Error: nobody reads standard output any more"),
        (("verify",), 1, "Error: nobody reads standard output any more"),
    ],
)
def test_who_has_seen_enough_closes_our_output(arguments: tuple[str, ...], code: int, told: str) -> None:
    """`relevo events tail | head -1` has gone well; an import or a proof that was cut off has not."""
    command = [sys.executable, "-c", TALKATIVE, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert running.stdout.readline() == "a line\n"
        running.stdout.close()
        err = running.stderr.read()
        assert running.wait(60) == code, err
    assert err.startswith(told)
    assert err.count("\n") == bool(told)


def test_a_connection_that_breaks_is_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that dies while it is asked must not look like an answer."""

    @click.command()
    @click.argument("rest")
    def command(rest: str) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(entry.LazyGroup, "get_command", lambda *_: command)
    code, _, err = run(capsys, "jobs", "list")
    assert (code, err) == (1, "Error: [Errno 32] Broken pipe\n")


@pytest.mark.parametrize(
    ("arguments", "full", "code", "told"),
    [
        (("cluster", "status", "--api", "127.0.0.1:1", "--json"), "stdout", 6, "Error: no node answers at "),
        (("cluster", "status", "--api", "127.0.0.1:1", "--json"), "stderr", 6, '{"error":"no node answers'),
        (("jabs",), "stderr", 2, ""),
        (("--version",), "stdout", 1, "Error: [Errno 28] No space left on device"),
    ],
)
def test_an_error_that_can_not_be_told_keeps_its_exit_code(
    arguments: tuple[str, ...], full: str, code: int, told: str
) -> None:
    """With a full disk under the log a script would take "not reached" for "refused"."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with open("/dev/full", "wb") as nothing_fits:
        ran = subprocess.run(
            [sys.executable, "-m", "relevo", *arguments],
            **(pipes | {full: nothing_fits}),  # type: ignore[call-overload]
            env={name: each for name, each in os.environ.items() if not name.startswith("RELEVO_")},
            text=True,
            timeout=60,
        )
    other = ran.stderr if full == "stdout" else ran.stdout
    assert ran.returncode == code, other
    assert other.startswith(told)
    assert other.count("\n") == bool(told)  # and nothing of a traceback
