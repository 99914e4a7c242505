"""Type checkers help users only where they know: right code passes them, and slips don't."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import relevo
from relevo import testing

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
RIGHT = HERE / "right_uses.py"
WRONG = HERE / "wrong_uses.txt"
FOUND = re.compile(r"(?P<file>[^:]+):(?P<line>\d+): error: (?P<text>.*)  \[(?P<code>[\w-]+)\]")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[int, str, str]]]:
    """What one run of mypy says of both modules, with this repository's settings and cache."""
    folder = tmp_path_factory.mktemp("users")
    for module, name in ((RIGHT, "right_uses.py"), (WRONG, "wrong_uses.py")):
        shutil.copy(module, folder / name)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context",
         str(folder / "right_uses.py"), str(folder / "wrong_uses.py")],
        capture_output=True, text=True, timeout=300, cwd=ROOT, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    errors: dict[str, list[tuple[int, str, str]]] = {}
    for line in done.stdout.splitlines():
        match = FOUND.fullmatch(line)
        if match is not None:
            errors.setdefault(Path(match["file"]).name, []).append(
                (int(match["line"]), match["code"], match["text"])
            )
        else:
            assert ": note: " in line, done.stdout
    return errors


def expected() -> Iterator[tuple[int, list[str]]]:
    """Lines of the wrong module, and the codes that belong to each."""
    for number, line in enumerate(WRONG.read_text().splitlines(), start=1):
        _, mark, codes = line.partition("  # E: ")
        if mark:
            yield number, sorted(codes.split())


@pytest.mark.timeout(300)
def test_right_code_passes(found: dict[str, list[tuple[int, str, str]]]) -> None:
    assert found.get("right_uses.py", []) == []


@pytest.mark.timeout(300)
def test_each_slip_is_found_where_it_is(found: dict[str, list[tuple[int, str, str]]]) -> None:
    told: dict[int, list[str]] = {}
    for line, code, _ in found["wrong_uses.py"]:
        told.setdefault(line, []).append(code)
    assert {line: sorted(codes) for line, codes in told.items()} == dict(expected()), found["wrong_uses.py"]


@pytest.mark.parametrize(
    ("module", "names"), [("relevo", relevo.__all__), ("testing", testing.__all__)], ids=["relevo", "testing"]
)
def test_right_code_uses_every_public_name(module: str, names: list[str]) -> None:
    """A name that nobody checks may have lost its types without anybody noticing."""
    used = {
        node.attr
        for node in ast.walk(ast.parse(RIGHT.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == module
    }
    assert set(names) - used == set()
