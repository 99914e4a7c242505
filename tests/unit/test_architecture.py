"""The layout holds: each floor knows only the floors below it, the core is pure, a light install is light."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support import import_rules, source_files

FAST_TIERS = ("unit", "simulation")


def _no_violations(found: list[str]) -> None:
    assert not found, "\n".join(["", *found])


def test_the_four_packages_are_found() -> None:
    """An empty walk would make every rule pass."""
    found = {file.module for file in source_files.package_files()}
    assert found >= set(import_rules.FLOORS)


def test_each_floor_imports_only_lower_floors() -> None:
    """A lower floor that knows a higher one can't be used, tested or reasoned about alone."""
    files = source_files.package_files()
    _no_violations([line for file in files for line in import_rules.floor_violations(file.module, file.text)])


def test_each_package_uses_only_its_libraries() -> None:
    """A worker's image would need the server's libraries."""
    files = source_files.package_files()
    _no_violations(
        [line for file in files for line in import_rules.library_violations(file.module, file.text)]
    )


def test_the_core_is_pure() -> None:
    """A replay on another node, at another time, would give another state."""
    files = source_files.package_files()
    _no_violations([line for file in files for line in import_rules.core_violations(file.module, file.text)])


def test_no_modules_import_each_other() -> None:
    """Two modules in a circle are one module that nobody can take apart."""
    sources = {file.module: file.text for file in source_files.package_files()}
    _no_violations(import_rules.circles(sources))


@pytest.mark.parametrize("tier", FAST_TIERS)
def test_fast_tests_need_no_broker(tier: str) -> None:
    """A test that reaches for a broker hangs where there is none."""
    files = source_files.files_of_tests(tier)
    _no_violations(
        [line for file in files for line in import_rules.client_violations(file.module, file.text)]
    )


def test_nothing_importable_lies_in_deploy() -> None:
    """Code outside the packages escapes types, tests and these rules."""
    assert not list((source_files.REPOSITORY / "deploy").rglob("*.py"))


BLOCK_EXTRAS = """
import importlib, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ImportError(f"{{name}} is not in the light install")

sys.meta_path.insert(0, Blocked())
importlib.import_module({module!r})
"""


@pytest.mark.parametrize("module", ["relevo", "relevo.cli.main"])
def test_a_light_install_is_enough(module: str) -> None:
    """`pip install relevo` followed by `import relevo` or `relevo --help` would fail on a missing library."""
    code = BLOCK_EXTRAS.format(blocked=set(import_rules.EXTRAS), module=module)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


# Planted violations: each rule must see what it is there for, and leave the rest alone.

WRONG_FLOORS = [
    ("relevo_schemas.codec", "import relevo_partitions.term.leadership"),
    ("relevo_partitions.term.leadership", "from relevo_engine.core import state"),
    ("relevo_partitions.term.leadership", "def f():\n    import relevo"),
    ("relevo_partitions.term.leadership", "if TYPE_CHECKING:\n    from relevo_engine import node"),
    ("relevo_engine.node", "from relevo.client import Client"),
    ("relevo_engine.node", "import importlib\nimportlib.import_module('relevo.client')"),
    ("relevo_engine.node", "from . import settings"),
    ("relevo.client", "def f():\n    from relevo_engine import node"),
    ("relevo.cli.cluster", "from relevo_engine import node"),
    ("relevo.cli.cluster", "try:\n    import relevo_engine\nexcept ImportError:\n    pass"),
    ("relevo.testing.cluster", "class C:\n    import relevo_partitions"),
]

RIGHT_FLOORS = [
    ("relevo_partitions.term.leadership", "from relevo_schemas import codec"),
    ("relevo_engine.node", "import relevo_engine.settings\nimport relevo_partitions\nimport relevo_schemas"),
    ("relevo.client", "from relevo_schemas.codec import encode\nfrom relevo.job import Job"),
    ("relevo.cli.cluster", "def f():\n    from relevo_engine import node"),
    ("relevo.testing", "if TYPE_CHECKING:\n    from relevo_engine import node"),
    ("relevo.client", "import relevo_engineering_of_somebody_else"),
]


@pytest.mark.parametrize(("module", "source"), WRONG_FLOORS)
def test_a_wrong_floor_is_seen(module: str, source: str) -> None:
    assert len(import_rules.floor_violations(module, source)) == 1


@pytest.mark.parametrize(("module", "source"), RIGHT_FLOORS)
def test_a_right_floor_is_let_be(module: str, source: str) -> None:
    assert import_rules.floor_violations(module, source) == []


WRONG_LIBRARIES = [
    ("relevo_schemas.codec", "import socket"),
    ("relevo_schemas.codec", "import confluent_kafka"),
    ("relevo_partitions.term.leadership", "import aiohttp"),
    ("relevo_engine.node", "import redis"),
    ("relevo.client", "import structlog"),
    ("relevo.cli.jobs", "from rich.progress import Progress"),
    ("relevo.dedup.redis", "import psycopg"),
    ("relevo.client", "def f():\n    import requests"),
]

RIGHT_LIBRARIES = [
    ("relevo_schemas.codec", "import fastavro, struct, zlib"),
    ("relevo_partitions.election.election", "from kazoo.client import KazooClient"),
    ("relevo_engine.api.server", "from aiohttp import web"),
    ("relevo.client", "import asyncio, confluent_kafka"),
    ("relevo.cli.jobs", "def f():\n    from rich.progress import Progress"),
    ("relevo.dedup.redis", "import redis.asyncio"),
]


@pytest.mark.parametrize(("module", "source"), WRONG_LIBRARIES)
def test_a_wrong_library_is_seen(module: str, source: str) -> None:
    assert len(import_rules.library_violations(module, source)) == 1


@pytest.mark.parametrize(("module", "source"), RIGHT_LIBRARIES)
def test_a_right_library_is_let_be(module: str, source: str) -> None:
    assert import_rules.library_violations(module, source) == []


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "from datetime import datetime",
        "import random",
        "import uuid",
        "import os.path",
        "import orjson",
        "import relevo_partitions",
        "from relevo_engine.settings import Settings",
        "def f():\n    import threading",
        "x = hash('a')",
        "open('file')",
    ],
)
def test_an_impure_core_is_seen(source: str) -> None:
    assert len(import_rules.core_violations("relevo_engine.core.state", source)) == 1
    assert import_rules.core_violations("relevo_engine.node", source) == []


def test_a_pure_core_is_let_be() -> None:
    source = "import heapq\nfrom relevo_schemas.job import JobSpec\nhashed = state.hash()\n"
    assert import_rules.core_violations("relevo_engine.core.state", source) == []


def test_a_client_in_a_fast_test_is_seen() -> None:
    assert import_rules.client_violations("tests.unit.test_x", "def f():\n    import confluent_kafka")
    assert not import_rules.client_violations("tests.unit.test_x", "import fastavro")


def test_a_circle_is_seen() -> None:
    sources = {
        "p": "",
        "p.a": "from p import b",
        "p.b": "def f():\n    from p.c import thing",
        "p.c": "import p.a",
    }
    assert import_rules.circles(sources) == ["p.a -> p.b -> p.c -> p.a"]


def test_a_facade_and_a_type_import_make_no_circle() -> None:
    sources = {
        "p": "from p.a import A",
        "p.a": "from p import b",
        "p.b": "if TYPE_CHECKING:\n    from p.a import A",
    }
    assert import_rules.circles(sources) == []
