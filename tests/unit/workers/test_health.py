"""A worker that hangs is told from one that works, and nobody who asks can hang the one who answers."""

from __future__ import annotations

import http.client
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import relevo
from relevo.cli.main import main
from relevo.dedup.store import MINE, Unknown
from relevo.errors import ConfigurationError, NotSent, StoreUnsafe, Unreachable
from relevo.health import health
from relevo.health import server as health_server
from relevo.health.pages import health_server as serve
from relevo.health.server import CONNECTIONS_MAX, REQUEST_BYTES_MAX, Answer, HealthServer, parse_address
from relevo.worker.worker import Workers
from tests.support.waiting import wait_until

LOOPBACK = "127.0.0.1:0"


class FakeThread:
    def __init__(self) -> None:
        self.alive = True

    def is_alive(self) -> bool:
        return self.alive


class FakeType:
    """One type's worker, as far as its health is looked at."""

    def __init__(self, kind: str) -> None:
        now = time.monotonic()
        self.spec = SimpleNamespace(type=kind, delivery="at-least-once")
        self.gate = SimpleNamespace(thread=FakeThread(), turned_at=now, fault=None)
        self.consumer = SimpleNamespace(
            thread=FakeThread(),
            subscribed=threading.Event(),
            reading=SimpleNamespace(turned_at=now, member=True),
        )
        self.consumer.subscribed.set()


class FakeWorkers:
    """A worker process in which all is well, until the test changes something."""

    def __init__(self) -> None:
        now = time.monotonic()
        self.workers = [FakeType("send-email"), FakeType("charge-card")]
        self.started_at = now - 1_000
        self.stopping = False
        self.kafka: BaseException | None = None
        self.store: Any = MINE
        self.hangs = threading.Event()
        self.shared: Any = SimpleNamespace(
            cluster="c",
            identity="me",
            drain_s=10.0,
            leases=SimpleNamespace(alive=True, turned_at=now),
            claims=SimpleNamespace(alive=True, turned_at=now),
            sender=SimpleNamespace(alive=True, fault=None, partitions=self._partitions),
            store=SimpleNamespace(release=self._release),
        )

    def _partitions(self, topic: str, timeout: float) -> int:
        if self.kafka is not None:
            raise self.kafka
        return 2

    def _release(self, claims: list[Any]) -> list[Any]:
        if self.store is None:
            self.hangs.wait(30)
        return [self.store]


@pytest.fixture
def workers() -> FakeWorkers:
    return FakeWorkers()


@pytest.fixture
def server(workers: FakeWorkers) -> Iterator[HealthServer]:
    server = serve(LOOPBACK, cast("Workers", workers))
    server.start()
    yield server
    server.close()


def get(server: HealthServer, path: str, method: str = "GET") -> tuple[int, str]:
    host, _, port = server.address.rpartition(":")
    with closing(http.client.HTTPConnection(host, int(port), timeout=30)) as connection:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def reasons(server: HealthServer, path: str) -> list[str]:
    status, body = get(server, path)
    found = json.loads(body)
    assert (status == 200) == found["ok"] == (not found["reasons"])
    return cast("list[str]", found["reasons"])


def test_a_worker_that_works(server: HealthServer) -> None:
    assert reasons(server, "/healthz") == []
    assert reasons(server, "/readyz") == []


def test_a_poll_loop_that_hangs_is_told(workers: FakeWorkers, server: HealthServer) -> None:
    """Its thread lives, its connection too, and no job is run: nothing else would ever notice."""
    workers.workers[1].consumer.reading.turned_at = time.monotonic() - health.STUCK_S - 11
    (reason,) = reasons(server, "/healthz")
    assert reason.startswith("charge-card: the thread that reads Kafka hasn't come round for 7")
    workers.workers[1].consumer.reading.turned_at = time.monotonic() - health.STUCK_S - 5
    assert reasons(server, "/healthz") == [], "it may be handing over partitions, which takes `drain`"


def test_a_gate_that_hangs_is_told(workers: FakeWorkers, server: HealthServer) -> None:
    """A dedup store of the user's own that never answers looks like this."""
    workers.workers[0].gate.turned_at = time.monotonic() - health.STUCK_S - 1
    (reason,) = reasons(server, "/healthz")
    assert reason.startswith("send-email: the thread that starts handlers hasn't come round for 6")


def test_threads_that_have_ended_are_told(workers: FakeWorkers, server: HealthServer) -> None:
    workers.workers[0].consumer.thread.alive = False
    workers.workers[1].gate.thread.alive = False
    workers.shared.leases.alive = False
    workers.shared.claims.alive = False
    workers.shared.sender.alive = False
    assert reasons(server, "/healthz") == [
        "send-email: the thread that reads Kafka has ended",
        "charge-card: the thread that starts handlers has ended",
        "the thread that renews leases has ended",
        "the thread that renews claims has ended",
        "the thread that hears of Kafka's acknowledgements has ended",
    ]


def test_leases_that_are_not_renewed_are_told(workers: FakeWorkers, server: HealthServer) -> None:
    workers.shared.leases.turned_at = time.monotonic() - health.STUCK_S - 1
    assert "renews leases hasn't come round" in reasons(server, "/healthz")[0]


def test_claims_that_are_not_renewed_are_told(workers: FakeWorkers, server: HealthServer) -> None:
    """A store of the user's own that never answers: their loss would never be told to the handlers either."""
    workers.shared.claims.turned_at = time.monotonic() - health.STUCK_S - 1
    assert "renews claims hasn't come round" in reasons(server, "/healthz")[0]


def test_a_producer_that_was_given_up_is_told(workers: FakeWorkers, server: HealthServer) -> None:
    """All threads live and come round, and no outcome of any job gets to the engine any more."""
    workers.shared.sender.fault = NotSent("librdkafka has given up this producer for good")
    (reason,) = reasons(server, "/healthz")
    assert reason.startswith("nothing can be reported to the engine any more: librdkafka has given up")
    assert reasons(server, "/readyz") == [reason]


def test_a_fault_says_why_and_keeps_foreign_texts_to_itself(
    workers: FakeWorkers, server: HealthServer
) -> None:
    """An exception of a library may quote an address with its password."""
    workers.workers[0].gate.fault = StoreUnsafe("Redis evicts")
    workers.workers[1].gate.fault = ValueError("redis://:secret@host")
    assert reasons(server, "/healthz") == [
        "send-email: can't go on: Redis evicts",
        "charge-card: can't go on: ValueError",
    ]


def test_while_it_waits_for_its_topic_it_lives_and_is_not_ready(
    workers: FakeWorkers, server: HealthServer
) -> None:
    """To be killed again and again for a topic that isn't made yet helps nobody."""
    workers.workers[0].consumer.subscribed.clear()
    workers.workers[0].consumer.reading.turned_at = 0.0
    workers.workers[1].consumer.reading.member = False
    assert reasons(server, "/healthz") == []
    assert reasons(server, "/readyz") == [
        "send-email: waits for Kafka, or for its topic to be made",
        "charge-card: is not in its consumer group yet",
    ]


def test_draining_is_alive_and_not_ready(workers: FakeWorkers, server: HealthServer) -> None:
    """A worker that is killed while it drains repeats its jobs elsewhere."""
    workers.workers[0].consumer.thread.alive = False
    workers.stopping = True
    assert reasons(server, "/healthz") == []
    assert reasons(server, "/readyz") == ["it is stopping"]


def test_kafka_and_the_store_are_asked(
    workers: FakeWorkers, server: HealthServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "FRESH_S", 0.0)
    workers.kafka = Unreachable("Kafka at h:1 doesn't answer")
    workers.store = Unknown("TimeoutError")
    kafka, store = reasons(server, "/readyz")
    assert kafka.startswith("Kafka: Kafka at h:1 doesn't answer")
    assert store == "the dedup store gives no answer: TimeoutError"
    workers.kafka, workers.store = None, MINE
    assert reasons(server, "/readyz") == []


def test_a_store_that_hangs_holds_up_neither_answer(
    workers: FakeWorkers, server: HealthServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One more thread per question would hang with it, until there is no room for any."""
    monkeypatch.setattr(health, "PATIENCE_S", 0.05)
    workers.store = None
    before = threading.active_count()
    for _ in range(4):
        assert reasons(server, "/readyz") == ["the dedup store gives no answer in 0.05 s"]
        assert reasons(server, "/healthz") == []
    assert sum(each.name == "relevo-probe" for each in threading.enumerate()) == 1
    assert threading.active_count() <= before + 1
    workers.store = MINE
    workers.hangs.set()


def test_a_worker_that_was_not_started_is_not_ready() -> None:
    server = serve(LOOPBACK, Workers("h:1", "c", {}, None, 1.0))
    server.start()
    with closing(server):
        assert reasons(server, "/healthz") == []
        assert reasons(server, "/readyz") == ["it was not started yet"]


def test_without_the_library_metrics_say_what_to_install(
    server: HealthServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    status, body = get(server, "/metrics")
    assert (status, body) == (501, "/metrics needs an optional part: pip install 'relevo[metrics]'\n")
    assert get(server, "/healthz")[0] == 200


def test_other_paths_and_methods_are_refused(server: HealthServer) -> None:
    status, body = get(server, "/secrets")
    assert (status, body) == (404, "served are /healthz, /metrics, /readyz\n")
    assert get(server, "/healthz", "POST")[0] == 405
    assert get(server, "/healthz?verbose=1")[0] == 200
    assert get(server, "/healthz", "HEAD") == (200, "")


# The server, whoever asks


def raw(server: HealthServer, request: bytes) -> bytes:
    host, _, port = server.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(request)
        found = b""
        try:
            while received := connection.recv(65_536):
                found += received
        except ConnectionResetError:
            pass
        return found


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET /healthz\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", b"400"),
        (b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 2 * REQUEST_BYTES_MAX + b"\r\n\r\n", b"431"),
        (b"GET /%00\xff HTTP/1.1\r\n\r\n", b"404"),
    ],
)
def test_nonsense_gets_a_short_answer(server: HealthServer, request_: bytes, status: bytes) -> None:
    assert raw(server, request_).startswith(b"HTTP/1.1 " + status)
    assert get(server, "/healthz")[0] == 200


def test_clients_that_send_nothing_are_cut_off_and_others_served_meanwhile(
    server: HealthServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A probe that gets no answer, since somebody holds the line, has the worker killed."""
    monkeypatch.setattr(health_server, "DEADLINE_S", 2.0)
    host, _, port = server.address.rpartition(":")
    idle = [socket.create_connection((host, int(port)), timeout=30) for _ in range(CONNECTIONS_MAX - 1)]
    wait_until(lambda: server._connections == len(idle), "all are connected")
    assert get(server, "/healthz")[0] == 200
    for each in idle:
        each.sendall(b"GET /healthz HTTP/1.1\r\n")
    # The deadline is for the whole: whoever sends a byte now and then gains nothing.
    for each in idle:
        with suppress(ConnectionResetError):
            assert each.recv(1) == b""
        each.close()
    wait_until(lambda: server._connections == 0, "all were cut off")


def test_there_is_room_for_few(server: HealthServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_server, "CONNECTIONS_MAX", 0)
    assert raw(server, b"GET /healthz HTTP/1.1\r\n\r\n") == b""
    monkeypatch.undo()
    assert get(server, "/healthz")[0] == 200


def test_a_page_that_fails_is_an_answer_too() -> None:
    """A collector of the user's own that raises must not end the probes."""

    async def fails() -> Answer:
        raise RuntimeError("postgresql://user:secret@host")

    server = HealthServer(LOOPBACK, {"/": fails})
    server.start()
    with closing(server):
        assert get(server, "/") == (500, "it failed: RuntimeError\n")
        assert get(server, "/") == (500, "it failed: RuntimeError\n")


def test_it_ends_with_the_worker(server: HealthServer) -> None:
    host, _, port = server.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30):
        server.close()
    server.close()
    assert not server._thread.is_alive()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), timeout=30)


def test_a_port_in_use_is_told_before_anything_is_started(server: HealthServer) -> None:
    app = relevo.WorkerApp("127.0.0.1:1", http=server.address)
    app.job("work")(lambda job: None)
    before = threading.active_count()
    with pytest.raises(ConfigurationError, match=rf"{server.address}: the port is in use"):
        app.start()
    assert threading.active_count() == before
    assert not app.alive


def test_a_port_in_use_is_one_line_on_the_terminal(
    server: HealthServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "busy_handlers.py").write_text(
        "import relevo\napp = relevo.WorkerApp('127.0.0.1:1')\napp.job('work')(lambda job: None)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["worker", "run", "busy_handlers:app", "--http", server.address])
    assert ended.value.code == 1
    told = f"can't be served at {server.address}: the port is in use; choose another one"
    assert capsys.readouterr().err.splitlines() == [f"Error: health and metrics {told}"]


def test_a_worker_that_can_not_start_leaves_the_port_free() -> None:
    app = relevo.WorkerApp("127.0.0.1:1", http=LOOPBACK)
    with pytest.raises(ConfigurationError, match="no job type has a handler"):
        app.start()
    with pytest.raises(ConfigurationError, match="no job type has a handler"):
        app.start()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:9101", ("127.0.0.1", 9101)),
        (":9101", ("127.0.0.1", 9101)),
        ("9101", ("127.0.0.1", 9101)),
        ("[::1]:9101", ("::1", 9101)),
        ("0.0.0.0:0", ("0.0.0.0", 0)),
    ],
)
def test_addresses(text: str, expected: tuple[str, int]) -> None:
    assert parse_address(text) == expected


@pytest.mark.parametrize("text", ["", "host", "host:", "host:http", "host:65536", "::1:9101", "h:-1", "h:९"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ConfigurationError, match="http="):
        relevo.WorkerApp(http=text)


def test_a_host_that_is_not_here() -> None:
    with pytest.raises(ConfigurationError, match=r"can't be served at 192\.0\.2\.1:9101"):
        HealthServer("192.0.2.1:9101", {})
