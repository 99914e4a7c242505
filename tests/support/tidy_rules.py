"""Sizes and leftovers, as functions from source text to what was found."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70

# In two halves, so that this file holds no leftover itself.
_LEFTOVER = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
_BROAD = frozenset({"Exception", "BaseException"})


@dataclass(frozen=True)
class Size:
    """How large something is, and by what name an exception would list it."""

    name: str
    lines: int


def file_lines(source: str) -> int:
    return len(source.splitlines())


def functions(source: str) -> Iterator[Size]:
    """Each function with the lines of its signature and body; docstring and decorators are not counted."""
    yield from _functions(ast.parse(source), ())


def _functions(parent: ast.AST, names: tuple[str, ...]) -> Iterator[Size]:
    for node in ast.iter_child_nodes(parent):
        inner = names
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = (*names, node.name)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield Size(".".join(inner), _span(node) - _docstring_lines(node))
        yield from _functions(node, inner)


def _span(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _docstring_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return _span(node.body[0]) if ast.get_docstring(node) is not None else 0


def leftovers(source: str) -> list[int]:
    """The numbers of the lines that promise work instead of doing it."""
    return [n for n, line in enumerate(source.splitlines(), 1) if _LEFTOVER.search(line)]


def swallowed_errors(source: str) -> list[int]:
    """The numbers of the lines where any error at all is dropped without a trace."""
    nodes = list(ast.walk(ast.parse(source)))
    handlers = [node for node in nodes if isinstance(node, ast.ExceptHandler)]
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    dropped = [node.lineno for node in handlers if _is_broad(node.type) and _does_nothing(node.body)]
    suppressed = [node.lineno for node in calls if _is_suppress(node) and any(map(_is_broad, node.args))]
    return sorted(dropped + suppressed)


def _is_suppress(call: ast.Call) -> bool:
    return ast.unparse(call.func).rpartition(".")[2] == "suppress"


def _is_broad(expression: ast.expr | None) -> bool:
    if expression is None:
        return True
    parts = expression.elts if isinstance(expression, ast.Tuple) else [expression]
    return any(ast.unparse(part).rpartition(".")[2] in _BROAD for part in parts)


def _does_nothing(body: list[ast.stmt]) -> bool:
    return all(
        isinstance(statement, ast.Pass | ast.Continue)
        or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
        for statement in body
    )
