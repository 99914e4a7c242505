"""A pytest plugin: `relevo_cluster`, a cluster of the test's own that it may break.

    @pytest.mark.relevo(nodes=3, partitions=4)
    def test_no_job_is_lost(relevo_cluster):
        app = relevo_cluster.worker()
        app.job("greet")(greet)
        with app, relevo_cluster.client() as client:
            jobs = [client.create("greet", {"n": n}) for n in range(100)]
            relevo_cluster.kill_leader(0)
            relevo_cluster.await_done(jobs)

Kafka and ZooKeeper are shared by the tests of a session that ask for as many of them. A test may hurt those
too: the next one finds them well.
"""

from __future__ import annotations

import importlib
import logging
import re
import secrets
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pytest

if TYPE_CHECKING:
    from relevo.testing.cluster import DrillCluster
    from relevo.testing.servers import DrillServers

_log: Final = logging.getLogger("relevo.testing")
_MARKER: Final = (
    "relevo(nodes=3, partitions=4, brokers=1, zookeepers=1, kafka_proxies=False, types=(), settings=None):"
    " what the test's `relevo_cluster` is like"
)
_OF_SERVERS: Final = frozenset({"brokers", "zookeepers"})
_OF_NODES: Final = frozenset({"nodes", "partitions", "kafka_proxies", "types", "settings"})
_NEEDED: Final = ("relevo_engine.node", "relevo_engine.local.cluster", "kazoo.client")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the setting."""
    parser.addini(
        "relevo_missing",
        "what `relevo_cluster` does where the engine extra, a JDK or Maven is missing: skip or fail",
        default="skip",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Makes the mark known."""
    config.addinivalue_line("markers", _MARKER)
    if (chosen := config.getini("relevo_missing")) not in ("skip", "fail"):
        raise pytest.UsageError(f"relevo_missing must be skip or fail, not {chosen!r}")


class Servers:
    """The Kafka and ZooKeeper of a session: one set at a time, another only where a test asks for another."""

    def __init__(self) -> None:
        self._shape: tuple[int, int, int] | None = None
        self._running: DrillServers | None = None

    def get(self, brokers: int, zookeepers: int, kafka_slots: int) -> DrillServers:
        """Servers of this shape, all of them well: new ones, where those there are can't be healed."""
        shape = (brokers, zookeepers, kafka_slots)
        running = self._running
        if running is not None and self._shape == shape:
            try:
                running.heal()
                return running
            except Exception:
                _log.warning(
                    "starting another Kafka and ZooKeeper: those there are can't be healed", exc_info=True
                )
        return self._start(*shape)

    def _start(self, brokers: int, zookeepers: int, kafka_slots: int) -> DrillServers:
        from relevo.testing.servers import DrillServers

        self.stop()
        starting = DrillServers(brokers, zookeepers, kafka_slots=kafka_slots)
        starting.start()
        self._running, self._shape = starting, (brokers, zookeepers, kafka_slots)
        return starting

    def stop(self) -> None:
        """Ends them."""
        running, self._running = self._running, None
        if running is not None:
            running.stop()


@pytest.fixture(scope="session")
def relevo_servers() -> Iterator[Servers]:
    """Starts nothing by itself; ends what tests had started."""
    servers = Servers()
    try:
        yield servers
    finally:
        servers.stop()


@pytest.fixture
def relevo_cluster(request: pytest.FixtureRequest, relevo_servers: Servers) -> Iterator[DrillCluster]:
    """A running cluster of the test's own, a `relevo.testing.DrillCluster`. Its nodes end with the test."""
    for module in _NEEDED:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            _missing(request, f"relevo_cluster needs an extra: pip install 'relevo[engine]' ({error})")
    from relevo.testing.cluster import DrillCluster
    from relevo_engine.local.errors import InstallError

    wanted = _wanted(request)
    nodes = wanted.get("nodes", 3)
    slots = nodes if wanted.get("kafka_proxies") else 0
    try:
        servers = relevo_servers.get(wanted.pop("brokers", 1), wanted.pop("zookeepers", 1), slots)
    except InstallError as error:
        _missing(request, f"relevo_cluster can't start Kafka and ZooKeeper: {error}")
    name = _name(request.node.name)
    try:
        with DrillCluster(name=name, servers=servers, **wanted) as cluster:
            yield cluster
    finally:
        servers.heal()  # a test may have left a broker down
        servers.forget(name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tells, with a failed test, what was done to its cluster before."""
    report = yield
    cluster = getattr(item, "funcargs", {}).get("relevo_cluster")
    if report.when == "call" and report.failed and cluster is not None:
        lines = [
            f"{mark.at_wall / 1000 - call.start:8.3f} s  {mark.kind} {mark.target}" for mark in cluster.faults
        ]
        report.sections.append(("relevo_cluster: faults", "\n".join(lines) or "none"))
    return report


def _wanted(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What the marks ask for; the closest one counts."""
    wanted: dict[str, Any] = {}
    for mark in reversed(list(request.node.iter_markers("relevo"))):
        unknown = sorted(mark.kwargs.keys() - _OF_SERVERS - _OF_NODES)
        if mark.args or unknown:
            raise pytest.UsageError(
                f"{request.node.nodeid}: the mark `relevo` takes {_MARKER.partition(':')[0]}, by name;"
                f" not {', '.join(unknown) or 'values without a name'}"
            )
        wanted |= mark.kwargs
    return wanted


def _missing(request: pytest.FixtureRequest, reason: str) -> NoReturn:
    if request.config.getini("relevo_missing") == "fail":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def _name(test: str) -> str:
    """A cluster's name that no other test has, legal in topic names and ZooKeeper paths."""
    readable = re.sub(r"[^a-z0-9]+", "-", test.lower().removeprefix("test_")).strip("-")[:24].strip("-")
    return f"{readable or 'test'}-{secrets.token_hex(4)}"
