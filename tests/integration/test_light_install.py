"""The wheel as users get it: installed into an empty environment with nothing but what it asks for.

A client or a worker needs neither ZooKeeper's library nor a web server's. A forgotten import of either makes
every light install fail at once.
"""

from __future__ import annotations

import re
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest

from tests.support.docs_code import blocks_of

ROOT = Path(__file__).parents[2]
HEAVY = ("aiohttp", "kazoo", "prometheus_client", "pydantic", "redis", "psycopg", "opentelemetry", "rich")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=100)
    (built,) = folder.glob("*.whl")
    return built


def asked_for(requirements: list[str]) -> Iterator[str]:
    """Names of distributions without extras, and of what these ask for in turn."""
    for each in requirements:
        if "extra ==" in each or ("python_version" in each and "<" in each):
            continue
        name = re.split(r"[^\w.-]", each, maxsplit=1)[0]
        yield name
        yield from asked_for(distribution(name).requires or [])


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel and its dependencies, these linked from ours."""
    home = tmp_path_factory.mktemp("light")
    venv.create(home, with_pip=False, symlinks=True)
    interpreter = home / "bin" / "python"
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(interpreter), "install", "--no-deps", "--no-index",
         "--quiet", str(wheel)],
        check=True, capture_output=True, timeout=100,
    )  # fmt: skip
    (packages,) = home.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        lines = archive.read(metadata).decode().splitlines()
    light = [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")]
    for name in dict.fromkeys(asked_for(light)):
        for top in {file.parts[0] for file in distribution(name).files or () if file.parts[0] != ".."}:
            link = packages / top
            if not link.exists():
                link.symlink_to(distribution(name).locate_file(top))  # type: ignore[arg-type]
    return interpreter


def run(python: Path, script: str) -> str:
    done = subprocess.run(
        [python, "-I", "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_wheel_says_that_it_is_typed(wheel: Path) -> None:
    """Without the marks every type checker takes all of it for Any, and finds no slip."""
    with zipfile.ZipFile(wheel) as archive:
        marks = {name for name in archive.namelist() if name.endswith("py.typed")}
    assert marks >= {f"{name}/py.typed" for name in ("relevo", "relevo_schemas", "relevo_engine")}


def test_everything_public_is_there_without_any_extra(python: Path) -> None:
    script = f"""
import sys, importlib.util
import relevo, relevo.testing
for module in (relevo, relevo.testing):
    assert all(getattr(module, name) is not None for name in module.__all__)
assert "site-packages" in relevo.__file__, relevo.__file__
print([name for name in {HEAVY!r} if importlib.util.find_spec(name) or name in sys.modules])
"""
    assert run(python, script) == "[]"


def test_a_missing_extra_is_named_where_it_is_needed(python: Path, tmp_path: Path) -> None:
    script = f"""
import relevo
for make in (
    lambda: relevo.RedisDedupStore("redis://localhost"),
    lambda: relevo.SqlDedupStore("postgresql://localhost/jobs"),
    lambda: relevo.SqlDedupStore("sqlite:///{tmp_path}/jobs.db"),
):
    try:
        print(type(make()).__name__)
    except relevo.MissingExtra as error:
        print(error.extra, error.outcome, error.retry, error)
"""
    redis, sql, sqlite = run(python, script).splitlines()
    assert redis.startswith("redis not_done stop ")
    assert "pip install 'relevo[redis]'" in redis
    assert sql.startswith("sql not_done stop ")
    assert "pip install 'relevo[sql]'" in sql
    assert sqlite == "SqlDedupStore"


def test_a_client_and_a_worker_can_be_made_and_a_handler_be_tested(python: Path) -> None:
    script = """
import relevo, relevo.testing
app = relevo.WorkerApp("127.0.0.1:1")
@app.job("greet")
def greet(job):
    return {"hello": job.variables["name"]}
with relevo.testing.Engine() as engine:
    engine.run(app)
    print(engine.await_result(engine.create("greet", {"name": "Ada"})).value)
with relevo.Client("127.0.0.1:1") as client:
    try:
        client.create("greet", timeout=0.1)
    except relevo.RelevoError as error:
        print(type(error).__name__)
    client.close(0.1)
"""
    assert run(python, script).splitlines() == ["{'hello': 'Ada'}", "OutcomeUnknown"]


def test_the_first_ten_minutes_of_the_guide_need_no_more(python: Path, tmp_path: Path) -> None:
    """A newcomer has the wheel and the guide, and not what lies about in this project's environment."""
    code = {block.module: block.code for block in blocks_of(ROOT / "docs/worker-guide.md")}
    for name in ("orders_worker", "test_orders_worker"):
        (tmp_path / f"{name}.py").write_text(code[name])
    script = f"""
import os, sys
os.chdir({str(tmp_path)!r}); sys.path.insert(0, "")
import test_orders_worker
test_orders_worker.test_an_order_is_placed_once()
print(test_orders_worker.count_orders() > 0)
"""
    assert run(python, script) == "True"


def test_the_command_is_there_and_says_what_it_lacks(python: Path) -> None:
    command = python.parent / "relevo"
    shown = subprocess.run([command, "jobs", "retry", "--help"], capture_output=True, text=True, timeout=60)
    assert "--all-incidents" in shown.stdout, shown.stderr
    lacking = subprocess.run([command, "dev"], capture_output=True, text=True, timeout=60)
    assert lacking.returncode == 1
    assert "pip install 'relevo[engine]'" in lacking.stderr
    assert "Traceback" not in lacking.stderr
