"""Who may import whom: the floors of the layout, as functions from source text to violations.

A violation is one line of text that names the place and what to do. The functions take text, not files, so
that planted violations can show that each rule bites.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

# Our packages, each with those of ours it may import.
FLOORS = {
    "relevo_schemas": frozenset[str](),
    "relevo_partitions": frozenset({"relevo_schemas"}),
    "relevo_engine": frozenset({"relevo_schemas", "relevo_partitions"}),
    "relevo": frozenset({"relevo_schemas"}),
}

# The parts of the public face that may reach the floors between, and only inside functions: the light
# install has neither these packages' needs nor their extras.
REACHING_DOWN = ("relevo.cli", "relevo.testing")

LIGHT = frozenset({"click", "confluent_kafka", "fastavro", "orjson"})
EXTRAS = {
    "aiohttp": "engine",
    "kazoo": "engine",
    "opentelemetry": "otel",
    "prometheus_client": "engine",
    "psycopg": "sql",
    "psycopg_pool": "sql",
    "pydantic": "engine",
    "pydantic_settings": "engine",
    "pytest": "dev",
    "redis": "redis",
    "rich": "engine",
    "structlog": "engine",
}

# Libraries by package. `relevo` may use the extras' too, but only inside functions.
LIBRARIES = {
    "relevo_schemas": frozenset({"fastavro", "orjson"}),
    "relevo_partitions": frozenset({"confluent_kafka", "kazoo"}),
    "relevo_engine": LIGHT | {name for name, extra in EXTRAS.items() if extra == "engine"},
    "relevo": LIGHT,
}

# Modules that are an extra, imported only by who asked for it.
EXTRA_MODULES = {
    "relevo.dedup.redis": "redis",
    "relevo.dedup.sql": "sql",
    "relevo.testing.pytest_plugin": "dev",
}

CORE = "relevo_engine.core"

# What a pure state machine can use. Not here, on purpose: time, random, os, io, threading, asyncio, logging.
CORE_LIBRARY = frozenset(
    {
        "__future__",
        "abc",
        "bisect",
        "collections",
        "copy",
        "dataclasses",
        "enum",
        "functools",
        "hashlib",
        "heapq",
        "itertools",
        "math",
        "operator",
        "re",
        "string",
        "struct",
        "types",
        "typing",
    }
)

# Built-ins that differ from process to process or leave the process. `hash` of text is salted.
CORE_BANNED_CALLS = frozenset({"hash", "id", "open", "print", "input", "exec", "eval", "__import__"})

# The schemas are contracts: they open no connection and start nothing.
SCHEMAS_BANNED = frozenset(
    {"asyncio", "http", "multiprocessing", "socket", "ssl", "subprocess", "threading", "urllib"}
)

CLIENTS = frozenset({"confluent_kafka", "kazoo"})


@dataclass(frozen=True)
class Import:
    """One imported module, and the names taken from it (none for a plain import)."""

    module: str
    names: tuple[str, ...]
    line: int
    eager: bool  # it runs when the importing module is imported
    typing_only: bool = False

    @property
    def top(self) -> str:
        return self.module.partition(".")[0]


@cache  # several rules ask for the same files' imports
def imports_of(source: str) -> tuple[Import, ...]:
    """Every import of a module, wherever it stands, dynamic ones with a literal name included."""
    return tuple(_imports(ast.parse(source).body, eager=True, typing_only=False))


def _imports(nodes: Iterable[ast.AST], *, eager: bool, typing_only: bool) -> Iterator[Import]:
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, (), node.lineno, eager, typing_only)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield Import(module, tuple(alias.name for alias in node.names), node.lineno, eager, typing_only)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from _imports(node.body, eager=False, typing_only=True)
            yield from _imports(node.orelse, eager=eager, typing_only=typing_only)
        else:
            if isinstance(node, ast.Call) and (name := _dynamic_import(node)):
                yield Import(name, (), node.lineno, eager, typing_only)
            in_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _imports(
                ast.iter_child_nodes(node), eager=eager and not in_function, typing_only=typing_only
            )


def _dynamic_import(call: ast.Call) -> str | None:
    function = ast.unparse(call.func)
    if function.rpartition(".")[2] not in ("import_module", "__import__") or not call.args:
        return None
    first = call.args[0]
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else None


def floor_violations(module: str, source: str) -> list[str]:
    """Imports of ours that go up, sideways past a floor, or down too early."""
    package = module.partition(".")[0]
    found = []
    for item in imports_of(source):
        if item.module.startswith("."):
            found.append(f"{module}:{item.line} imports relatively; write the whole name")
        elif item.top not in FLOORS or item.top == package or item.top in FLOORS[package]:
            continue
        elif not _within(module, REACHING_DOWN):
            found.append(f"{module}:{item.line} imports {item.module}, which {package} may not know")
        elif item.eager:
            found.append(f"{module}:{item.line} imports {item.module} at its top; do it inside the function")
    return found


def library_violations(module: str, source: str) -> list[str]:
    """Libraries that a package may not use, or not before its extra is asked for."""
    package = module.partition(".")[0]
    found = []
    for item in imports_of(source):
        library = item.top
        if library in FLOORS or item.module.startswith("."):
            continue
        if library in sys.stdlib_module_names:
            if package == "relevo_schemas" and library in SCHEMAS_BANNED:
                found.append(f"{module}:{item.line} imports {library}; the schemas do no I/O")
        elif library in LIBRARIES[package]:
            continue
        elif package != "relevo" or library not in EXTRAS:
            found.append(f"{module}:{item.line} imports {library}, which {package} may not use")
        elif item.eager and EXTRA_MODULES.get(module) != EXTRAS[library]:
            found.append(
                f"{module}:{item.line} imports {library} of relevo[{EXTRAS[library]}] at its top; "
                "do it inside the function"
            )
    return found


def core_violations(module: str, source: str) -> list[str]:
    """Whatever would let a clock, a socket, a thread, chance or a disk into the core."""
    if not _within(module, (CORE,)):
        return []
    found = []
    for item in imports_of(source):
        if _within(item.module, (CORE, "relevo_schemas")) or item.top in CORE_LIBRARY:
            continue
        found.append(f"{module}:{item.line} imports {item.module}; the core is pure")
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    for call in calls:
        if isinstance(call.func, ast.Name) and call.func.id in CORE_BANNED_CALLS:
            found.append(f"{module}:{call.lineno} calls {call.func.id}(); the core is pure")
    return found


def client_violations(module: str, source: str) -> list[str]:
    """Tests of the fast tiers that reach for Kafka or ZooKeeper."""
    return [
        f"{module}:{item.line} imports {item.top}; move the test to tests/integration"
        for item in imports_of(source)
        if item.top in CLIENTS
    ]


def circles(sources: Mapping[str, str]) -> list[str]:
    """Modules that import each other, given the text of each; imports for type checkers don't count."""
    graph = {module: sorted(_targets(module, source, sources)) for module, source in sources.items()}
    finished: set[str] = set()
    found = []

    def visit(module: str, trail: tuple[str, ...]) -> None:
        if module in trail:
            found.append(" -> ".join((*trail[trail.index(module) :], module)))
        elif module not in finished:
            for target in graph[module]:
                visit(target, (*trail, module))
            finished.add(module)

    for module in sorted(graph):
        visit(module, ())
    return found


def _targets(module: str, source: str, known: Mapping[str, str]) -> set[str]:
    targets = set()
    for item in imports_of(source):
        if item.typing_only:
            continue
        submodules = {f"{item.module}.{name}" for name in item.names} & known.keys()
        takes_more_than_modules = len(submodules) < len(item.names) or not item.names
        targets |= submodules
        if item.module in known and takes_more_than_modules:
            targets.add(item.module)
    return targets - {module}


def _within(module: str, parents: Iterable[str]) -> bool:
    return any(module == parent or module.startswith(f"{parent}.") for parent in parents)
