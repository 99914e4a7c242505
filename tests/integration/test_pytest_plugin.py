"""The plugin as a user has it: a test file of theirs, a pytest of its own."""

from __future__ import annotations

import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLUGIN = "relevo.testing.pytest_plugin"

pytestmark = pytest.mark.timeout(300)

USERS_TESTS = """
import threading
from collections import Counter

import pytest

done = Counter()
shared = []


@pytest.mark.relevo(nodes=2, partitions=2, types=["greet"], settings={"session_timeout_s": 1.0})
def test_every_greeting_is_sent_though_the_leader_dies(relevo_cluster):
    shared.append((relevo_cluster.kafka, relevo_cluster.name))
    app = relevo_cluster.worker()
    some = threading.Event()

    @app.job("greet")
    def greet(job):
        done[job.key] += 1
        if len(done) > 20:
            some.set()

    with app, relevo_cluster.client() as client:
        jobs = [client.create("greet", {"n": n}) for n in range(50)]
        assert some.wait(60)
        killed = relevo_cluster.kill_leader(0)
        jobs += [client.create("greet", {"n": n}) for n in range(50)]
        relevo_cluster.await_leader(0, not_=killed.target)
        relevo_cluster.await_done(jobs)
    assert done.keys() == {job.key for job in jobs}
    relevo_cluster.kill_broker()


@pytest.mark.relevo(nodes=1, partitions=1)
class TestOne:
    def test_the_next_test_finds_its_own_cluster_on_the_same_brokers_and_well(self, relevo_cluster):
        assert relevo_cluster.nodes == ["node-1"]
        [(kafka, name)] = shared
        assert relevo_cluster.kafka == kafka
        assert relevo_cluster.name != name
        from confluent_kafka.admin import AdminClient
        topics = AdminClient({"bootstrap.servers": kafka}).list_topics(timeout=20).topics
        assert not [topic for topic in topics if topic.startswith(name)], "what it left is removed"
        relevo_cluster.servers.broker(1).freeze()

    def test_that_fails(self, relevo_cluster):
        relevo_cluster.freeze("node-1")
        raise ValueError("on purpose")
"""

TRIVIAL = """
def test_it(relevo_cluster):
    pass
"""

WRONG_MARK = """
import pytest

@pytest.mark.relevo(node=3)
def test_it(relevo_cluster):
    pass
"""

NO_ENGINE = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "aiohttp":
            raise ModuleNotFoundError("No module named 'aiohttp'", name="aiohttp")

sys.meta_path.insert(0, Blocked())
"""


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    """A pytest of its own, with the plugin as an installed package has it."""
    installed = entry_points(group="pytest11", name="relevo")
    chosen = () if installed else ("-p", PLUGIN)
    quiet = ("-p", "no:cacheprovider", "-p", "no:asyncio", "-W", "error")
    return pytester.runpytest_subprocess(*chosen, *quiet, *arguments)


def test_a_users_own_drill_loses_no_job(pytester: pytest.Pytester) -> None:
    """A fixture that breaks more than the test asked for, or cleans up less, is no use to anybody."""
    pytester.makepyfile(USERS_TESTS)
    result = run(pytester, "-v")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*ValueError: on purpose*", "*relevo_cluster: faults*", "*freeze node-1*"])


def test_without_the_engine_it_says_what_to_install(pytester: pytest.Pytester) -> None:
    """An ImportError from deep inside tells a user nothing."""
    pytester.makeconftest(NO_ENGINE)
    pytester.makepyfile(TRIVIAL)
    result = run(pytester, "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*pip install 'relevo[[]engine]'*"])


def test_without_java_it_says_so_and_fails_where_that_is_wanted(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A suite that skips its drills for ever looks green: CI asks for failures."""
    monkeypatch.setenv("JAVA_HOME", str(pytester.path / "nowhere"))
    pytester.makepyfile(TRIVIAL)
    result = run(pytester, "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*the Java that JAVA_HOME names*"])
    result = run(pytester, "-o", "relevo_missing=fail")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*the Java that JAVA_HOME names*"])


def test_a_slip_in_the_mark_is_told_before_anything_starts(pytester: pytest.Pytester) -> None:
    """``node=3`` would otherwise give the default, and the test would be about another cluster."""
    pytester.makepyfile(WRONG_MARK)
    result = run(pytester)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*takes relevo(nodes=3,*not node*"])
    result = run(pytester, "-o", "relevo_missing=maybe")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result = run(pytester, "--markers")
    result.stdout.fnmatch_lines(["@pytest.mark.relevo(nodes=3, partitions=4*"])


def test_the_package_names_its_plugin() -> None:
    """Without the entry point a user has to find out about ``-p``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"relevo": PLUGIN}
