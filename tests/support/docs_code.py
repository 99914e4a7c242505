"""Runs the Python of a documentation page, as its reader would.

A page's ```` ```python ```` blocks are run in order:

- one that begins with a comment that is a file's name (``# my_handlers.py``) is written to that file, which
  later blocks import. Where the name begins with ``test_``, its tests are run instead;
- any other is run in one namespace for the page, and its tests (functions ``test_…``) right after it.

Tests may be coroutines and take fixtures. ``<!-- not run: why -->`` in the line before leaves a block out.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# (\w+)\.py\n")
_NOT_RUN = re.compile(r"<!-- not run: .+ -->\n\Z")

Fixture = Callable[[str], Any]


@dataclass(frozen=True)
class Block:
    """One block of Python.

    Attributes:
        page: Where it stands.
        line: Its first line there.
        code: Its text.
        module: The file that it is, without ``.py``; empty where it is none.
    """

    page: Path
    line: int
    code: str
    module: str

    def compiled(self) -> CodeType:
        """Its code; a traceback names the page and the line there."""
        return compile("\n" * (self.line - 1) + self.code, str(self.page), "exec")


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page that are to be run."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _FENCE.finditer(text):
        language, code = match.groups()
        if language != "python" or _NOT_RUN.search(text[: match.start()]):
            continue
        named = _FILE.match(code)
        line = text.count("\n", 0, match.start(2)) + 1
        found.append(Block(page, line, code, named[1] if named else ""))
    return found


def run_page(page: Path, folder: Path, fixture: Fixture) -> list[str]:
    """Run all of a page; returns the names of the tests that were run.

    Args:
        page: The page.
        folder: An empty folder for its files.
        fixture: Gives the fixtures that its tests ask for, by name.
    """
    ran: list[str] = []
    page_names: dict[str, Any] = {"__name__": page.stem}
    with _importable(folder):
        for block in blocks_of(page):
            for name, test in _tests(block, folder, page_names):
                _run_test(test, fixture)
                ran.append(name)
    return ran


def _tests(block: Block, folder: Path, page_names: dict[str, Any]) -> list[tuple[str, Callable[..., Any]]]:
    """Run a block, or write it to its file; returns the tests in it."""
    if block.module and not block.module.startswith("test_"):
        (folder / f"{block.module}.py").write_text(block.code, encoding="utf-8")
        importlib.invalidate_caches()
        return []
    before = dict(page_names)
    names = {"__name__": block.module} if block.module else page_names
    exec(block.compiled(), names)
    return [
        (name, each)
        for name, each in names.items()
        if name.startswith("test_") and inspect.isfunction(each) and before.get(name) is not each
    ]


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Modules in ``folder`` can be imported, and are forgotten afterwards."""
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            place = getattr(sys.modules[name], "__file__", None)
            if place is not None and Path(place).is_relative_to(folder):
                del sys.modules[name]


def _run_test(test: Callable[..., Any], fixture: Fixture) -> None:
    found = test(**{name: fixture(name) for name in inspect.signature(test).parameters})
    if inspect.iscoroutine(found):
        asyncio.run(found)
