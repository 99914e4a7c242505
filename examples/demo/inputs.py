"""The demo's jobs: lines of a JSONL file, repeated with fresh keys up to the number asked for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

FIELDS = frozenset({"type", "key", "variables", "priority", "run_at"})

Line = dict[str, Any]


def read_lines(path: Path) -> tuple[list[Line], list[str]]:
    """The good lines of ``path``, and what is wrong with each of the others, by number."""
    good: list[Line] = []
    bad: list[str] = []
    with path.open("rb") as file:
        for number, text in enumerate(file, start=1):
            if not text.strip():
                continue
            problem = _problem(text)
            if isinstance(problem, str):
                bad.append(f"{path}:{number}: {problem}")
            else:
                good.append(problem)
    return good, bad


def _problem(text: bytes) -> Line | str:
    try:
        line = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return f"not JSON: {error}"
    if not isinstance(line, dict):
        return f"must be an object, not {type(line).__name__}"
    if unknown := sorted(line.keys() - FIELDS):
        return f"unknown field {unknown[0]!r}; known are {', '.join(sorted(FIELDS))}"
    if not isinstance(line.get("type"), str):
        return "the field 'type' is missing or not a text"
    if not isinstance(line.get("key", ""), str):
        return "the field 'key' must be a text"
    return line


def repeated(lines: list[Line], jobs: int) -> Iterator[Line]:
    """``jobs`` jobs: the lines again and again, each time under fresh keys."""
    rounds = itertools.count()
    made = 0
    for turn in rounds:
        for number, line in enumerate(lines, start=1):
            if made == jobs:
                return
            key = line.get("key") or f"line-{number}"
            yield {"variables": {}, **line, "key": f"{key}-{turn}" if turn else key}
            made += 1
