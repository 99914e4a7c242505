"""The state has one writer, the appliers: a rule that a reviewer would overlook one day."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import relevo_engine.core
from relevo_engine.core.job import Job
from relevo_engine.core.queues import ReadyQueue
from relevo_engine.core.state import Lane, State
from relevo_engine.core.timers import Timers

CORE = Path(relevo_engine.core.__file__).parent
MODULES = sorted(CORE.glob("*.py"))
PRIVATE_TO_APPLIERS = {name for cls in (Job, State, Lane) for name in cls.__slots__}
"""Attributes that only the appliers may write."""
WRITERS = {
    name for cls in (ReadyQueue, Timers) for name in ("push", "drop", "arm", "disarm") if hasattr(cls, name)
} | {
    "add",
    "append",
    "appendleft",
    "clear",
    "extend",
    "insert",
    "move_to_end",
    "pop",
    "popitem",
    "popleft",
    "remove",
    "reverse",
    "setdefault",
    "sort",
    "update",
}
LEADERS_MEMORY = {"leases", "_leases"}


def chain(node: ast.expr) -> list[str]:
    """``turn.state.jobs[key]`` as its names: turn, state, jobs."""
    names: list[str] = []
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        if isinstance(node, ast.Attribute):
            names.append(node.attr)
        node = node.func if isinstance(node, ast.Call) else node.value
    names.append(node.id if isinstance(node, ast.Name) else "")
    return names[::-1]


def targets(node: ast.stmt) -> list[ast.expr]:
    if isinstance(node, ast.Assign | ast.Delete):
        found = node.targets
    elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.For):
        found = [node.target]
    else:
        return []
    return [each for target in found for each in (target.elts if isinstance(target, ast.Tuple) else [target])]


def writes(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Lines that write to the state, or to something that hangs on it."""
    constructors = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == "__init__"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            for target in targets(node):
                names = chain(target)
                own = (
                    names[0] == "self"
                    and len(names) == 2
                    and (id(node) in constructors or names[1].startswith("_"))
                )
                if isinstance(target, ast.Attribute | ast.Subscript) and not own and is_state(names):
                    yield node.lineno, ".".join(names)
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in WRITERS
        ):
            names = chain(node.func.value)
            if is_state(names) and not LEADERS_MEMORY & set(names):
                yield node.lineno, ".".join([*names, node.func.attr])


def is_state(names: list[str]) -> bool:
    return bool(PRIVATE_TO_APPLIERS & set(names[1:])) or names[0] in {"job", "lane", "state"}


@pytest.mark.parametrize("path", [*MODULES, CORE.parent / "machine.py"], ids=lambda path: path.stem)
def test_only_the_appliers_write_to_the_state(path: Path) -> None:
    """A second writer changes the live state and not the replayed one: the next leader differs."""
    # A state is filled from a copy of one that the appliers made, and only while it is empty.
    if path.stem in {"appliers", "restore"}:
        return
    # A turn has fields of its own that are called as those of a job or state; who is told of events before
    # they are applied isn't what they lead to.
    found = [
        (line, what)
        for line, what in writes(ast.parse(path.read_text()))
        if what not in {"self.at", "self.source", "self.state.keep"}
    ]
    assert not found, f"{path.name} writes: {found}"


@pytest.mark.parametrize(
    "code",
    [
        "job.retries = 3",
        "turn.state.jobs[key].retries -= 1",
        "del state.jobs[key]",
        "self.state.finished.pop(key)",
        "lane.counts[where] += 1",
        "state.unclaimed[key] = 3",
        "state.timers.arm(3, 0, key)",
        "lane.queue.drop()",
        "turn.state.position, x = 3, 4",
        "for job.attempt in x: pass",
        "self.machine.state.epoch = 4",
    ],
)
def test_the_check_sees_a_second_writer(code: str) -> None:
    assert list(writes(ast.parse(code)))
