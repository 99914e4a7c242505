"""The worker guide: its code runs, its handlers get duplicates on a real cluster, its translation is true."""

from __future__ import annotations

import io
import re
import shlex
import sqlite3
import tokenize
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import psycopg
import pytest
import redis
from confluent_kafka import Producer

import relevo
from relevo.cli.main import cli
from relevo.worker.job import Job
from relevo_schemas.codec import decode, encode, job_spec
from relevo_schemas.delivery import Activation
from tests.support.brokers import Brokers
from tests.support.docs_code import Block, blocks_of, run_page
from tests.support.engine_thread import EngineThread
from tests.support.jobs import activations, kinds_of
from tests.support.outside_services import HttpService, MailServer, http_service, mail_server
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "worker-guide.md"
SPANISH = ROOT / "docs" / "es" / "guia-de-workers.md"
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)#]*)(?:#([^)]*))?\)")

# Job type: how its job is created
JOBS: dict[str, dict[str, Any]] = {
    "place-order": {"variables": {"id": "o-1", "total": 20}},
    "ship-order": {"variables": {"order": "o-1"}},
    "write-invoice": {"variables": {"amount": 20}, "correlation_id": "o-1"},
    "print-label": {"variables": {"order": "o-1"}},
    "send-email": {"variables": {"to": "ana@example.com", "subject": "hola", "text": "..."}},
    "charge-card": {"variables": {"card": "c-1", "amount": 20}},
    "book-payment": {"variables": {"order": "o-1", "amount": 20}},
    "create-customer": {"variables": {"email": "ana@example.com"}, "correlation_id": "ana"},
    "call-webhook": {"variables": {"order": "o-1"}},
    "export-orders": {"variables": {"pages": 3}},
    "move-money": {"variables": {"amount": 20}, "correlation_id": "account-1"},
    "suggest": {"variables": {"product": "p-1"}},
}
# Without a word of it in the store, these happen again: so the guide says.
REPEATED_WITHOUT_MARK = {"print-label": 2, "send-email": 2}


@dataclass
class World:
    """What surrounds the guide's handlers."""

    folder: Path
    database: psycopg.Connection[tuple[Any, ...]]
    http: HttpService
    mail: MailServer

    def effects(self) -> dict[str, int]:
        """How often each job type has had its effect."""
        with sqlite3.connect(self.folder / "shop.db") as shop:
            orders = shop.execute("SELECT count(*) FROM orders").fetchone()[0]
        return {
            "place-order": orders,
            "ship-order": self._count("shipments WHERE status = 'shipped'"),
            "write-invoice": self._count("invoices"),
            "print-label": self.http.effects["/labels"],
            "send-email": len(self.mail.message_ids),
            "charge-card": self.http.effects["/charges"],
            "book-payment": self._count("ledger"),
            "create-customer": self._count("customers"),
            "call-webhook": self.http.effects["/hooks"],
            "export-orders": self._count("exported_pages"),
            "move-money": self._count("movements"),
            "suggest": self.http.effects["/push"],
        }

    def _count(self, rows: str) -> int:
        found = self.database.execute(f"SELECT count(*) FROM {rows}").fetchone()
        assert found is not None
        return int(found[0])


@pytest.fixture
def world(
    tmp_path: Path, redis_url: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    """A reader's empty folder, with the servers and tables that the guide asks for."""
    monkeypatch.chdir(tmp_path)
    with http_service() as http, mail_server() as mail, psycopg.connect(postgres_url, autocommit=True) as sql:
        for name, value in {
            "DATABASE_URL": postgres_url,
            "REDIS_URL": redis_url,
            "SMTP_HOST": "127.0.0.1",
            "SMTP_PORT": str(mail.port),
            "LABEL_API": f"{http.url}/labels",
            "PAYMENT_API": f"{http.url}/charges",
            "WEBHOOK_URL": f"{http.url}/hooks",
            "PUSH_API": f"{http.url}/push",
        }.items():
            monkeypatch.setenv(name, value)
        for text in fenced(PAGE, "sql"):
            sql.execute(text)
        sql.execute("INSERT INTO shipments VALUES ('o-1', 'packed')")
        yield World(tmp_path, sql, http, mail)


def fenced(page: Path, language: str) -> list[str]:
    """The blocks of a language on a page."""
    return [code for name, code in _FENCE.findall(page.read_text(encoding="utf-8")) if name == language]


def load(block: Block) -> dict[str, Any]:
    """What a block of the page defines, as in a process of its own."""
    names: dict[str, Any] = {"__name__": block.module or "page"}
    exec(block.compiled(), names)
    return names


def worker_blocks() -> list[Block]:
    return [
        each for each in blocks_of(PAGE) if each.module.endswith("_worker") and each.module[:5] != "test_"
    ]


def test_the_code_of_the_page_runs(world: World, request: pytest.FixtureRequest) -> None:
    """A reader who copies it is lost with the first error."""
    ran = run_page(PAGE, world.folder, request.getfixturevalue)
    assert ran == ["test_an_order_is_placed_once", "test_a_card_is_charged_once"]


class Cluster:
    """A real cluster with all of the guide's workers."""

    def __init__(self, engine: EngineThread) -> None:
        self.engine = engine
        self._producer = Producer({"bootstrap.servers": engine.kafka})

    def start(self, running: ExitStack) -> dict[str, relevo.WorkerApp]:
        """New worker processes, as far as their memory goes; by job type."""
        apps = {}
        for block in worker_blocks():
            app: relevo.WorkerApp = load(block)["app"]
            running.enter_context(app)
            apps[app.types[0].type] = app
        assert set(apps) == set(JOBS)
        return apps

    def deliver_again(self, job_type: str, value: bytes, times: int, app: relevo.WorkerApp) -> None:
        """The same activation, as after a lost commit; returns when the worker is through with it."""
        before = _handled(app)
        for _ in range(times):
            self._producer.produce(f"{self.engine.cluster}.activations.{job_type}", value, b"k", 0)
        self._producer.flush(10)
        wait_until(lambda: _handled(app) >= before + times, f"{job_type} has seen them", timeout_s=60)


def _handled(app: relevo.WorkerApp) -> int:
    stats = app.stats
    return stats.done + stats.duplicates_suppressed + stats.errored + stats.stale_dropped


def _again(value: bytes) -> bytes:
    """A further hand-over of a job that is run at most once is a further attempt."""
    found = decode(value)
    assert isinstance(found, Activation)
    return encode(replace(found, attempt=2)) if found.job.type == "suggest" else value


@pytest.mark.timeout(300)
def test_every_handler_of_the_page_survives_duplicates(
    brokers: Brokers, cluster_name: str, world: World, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler that is copied from the guide and charges twice discredits all of it."""
    monkeypatch.setenv("RELEVO_KAFKA", brokers.kafka)
    monkeypatch.setenv("RELEVO_CLUSTER", cluster_name)
    once = dict.fromkeys(JOBS, 1) | {"export-orders": 3}
    with EngineThread(brokers.kafka, cluster_name, 1, list(JOBS)) as engine:
        cluster = Cluster(engine)
        with relevo.Client() as client, ExitStack() as running:
            apps = cluster.start(running)
            jobs = {name: client.create(name, key=f"{name}-1", **job) for name, job in JOBS.items()}
            for name, job in jobs.items():
                assert client.await_result(job, timeout=60).state == "COMPLETED", name
            assert world.effects() == once
            copies = {name: _again(activations(engine, name)[0]) for name in JOBS}
            for name, value in copies.items():
                cluster.deliver_again(name, value, 2, apps[name])
            assert world.effects() == once

        # Another process, with nothing in its memory; and what was shipped has come back meanwhile.
        world.database.execute("UPDATE shipments SET status = 'returned'")
        returned = once | {"ship-order": 0}
        with ExitStack() as running:
            apps = cluster.start(running)
            for name, value in copies.items():
                cluster.deliver_again(name, value, 2, apps[name])
            assert world.effects() == returned

            # As if the first worker had died between effect and done mark.
            with redis.Redis.from_url(redis_url) as store:
                for mark in store.scan_iter(f"relevo:{cluster_name}:*"):
                    store.delete(mark)
            for name, value in copies.items():
                cluster.deliver_again(name, value, 1, apps[name])
            assert world.effects() == returned | REPEATED_WITHOUT_MARK
        assert "CommandRejected" in kinds_of(engine, "print-label-1")  # its stored result was sent again
    assert world.http.wrong == []
    assert world.http.requests["/charges"] > 1
    assert len(set(world.mail.message_ids)) == 1


@pytest.mark.timeout(180)
def test_what_the_page_says_of_failures(
    brokers: Brokers, cluster_name: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELEVO_KAFKA", brokers.kafka)
    monkeypatch.setenv("RELEVO_CLUSTER", cluster_name)
    keys: list[tuple[int, str, dict[str, str]]] = []
    failing = relevo.WorkerApp()

    @failing.job("fails-once")
    def fails_once(job: relevo.Job) -> None:
        keys.append((job.attempt, job.idempotency_key, job.idempotency_headers))
        if job.attempt == 1:
            raise ValueError("the first time")

    order_label = next(load(each) for each in blocks_of(PAGE) if "def order_label" in each.code)[
        "order_label"
    ]
    types = [*JOBS, "fails-once"]
    with EngineThread(brokers.kafka, cluster_name, 1, types) as engine, ExitStack() as running:
        running.enter_context(failing)
        Cluster(engine).start(running)
        client = running.enter_context(relevo.Client())

        declined = client.await_result(client.create("charge-card", {"card": "declined", "amount": 1}))
        assert (declined.state, declined.code) == ("ERRORED", "CARD_DECLINED")

        client.await_result(client.create("fails-once", key="k 1", backoff=0.05))
        headers = {"Idempotency-Key": "workflow-k%201"}
        assert keys == [(1, "workflow-k 1", headers), (2, "workflow-k 1", headers)]

        assert order_label("o-7").key == order_label("o-7").key == "label-o-7"
        labels = [client.create("print-label", {"order": "o-8"}, correlation_id="o-8") for _ in range(2)]
        assert len({client.await_result(each).value["label"] for each in labels}) == 1
        assert kinds_of(engine, "label-o-7").count("JobCreated") == 1

        client.create("suggest", {"card": "declined"}, key="refused", retries=5, backoff=0.05)
        wait_until(lambda: "JobIncident" in kinds_of(engine, "refused"), "an incident, at once")
        client.retry("refused", wait="decided")
        wait_until(lambda: "JobErrored" in kinds_of(engine, "refused"), "MAYBE_RUN")
    assert world.http.requests["/push"] == 1
    assert world.http.effects["/labels"] == 2


def test_a_lost_export_stops_before_its_next_page(world: World) -> None:
    """A lost attempt that returns would count as done."""
    export = next(load(each) for each in worker_blocks() if each.module == "export_worker")["export_orders"]
    spec = job_spec(key="e-1", type="export-orders", variables=b'{"pages": 3}')
    job = Job(Activation(0, 1, 1, 1, 1, 3, 0, b"", spec))
    job._mark_lost("the job is CANCELLED already")
    with pytest.raises(relevo.Fail, match="stopped at page 0: the job is CANCELLED already"):
        export(job)
    assert world._count("exported_pages") == 0


@pytest.mark.parametrize("page", [PAGE, SPANISH], ids=lambda page: page.stem)
def test_shell_commands_and_their_flags_exist(page: Path) -> None:
    lines = [line for block in fenced(page, "sh") for line in block.splitlines()]
    assert lines
    extras = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for line in lines:
        program, *words = shlex.split(line)
        match program:
            case "relevo":
                check_command(words)
            case "pip":
                for extra in re.findall(r"\[(.*?)\]", line)[0].split(","):
                    assert f"\n{extra} = [" in extras, extra
            case _:
                assert program in ("export", "pytest"), line


def check_command(words: list[str]) -> None:
    command: click.Command | None = cli
    while isinstance(command, click.Group):
        name, *words = words
        command = command.get_command(click.Context(command), name)
    assert command is not None, words
    command.make_context("relevo", list(words))


@pytest.mark.parametrize("page", [PAGE, SPANISH], ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for target, part in _LINK.findall(page.read_text(encoding="utf-8")):
        if target.startswith("http"):
            continue
        found = (page.parent / target).resolve() if target else page
        assert found.is_file(), target
        if part:
            assert part in anchors(found), f"{target}#{part}"


def anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_the_translation_has_the_same_code() -> None:
    """A mended block that is not mended in the other language."""
    for language in ("python", "sql", "sh"):
        ours, theirs = fenced(PAGE, language), fenced(SPANISH, language)
        assert len(ours) == len(theirs)
        for mine, other in zip(ours, theirs, strict=True):
            assert code_only(mine, language) == code_only(other, language)


def code_only(code: str, language: str) -> list[str]:
    """Without comments, and without strings that are text for people."""
    if language != "python":
        return [line.partition(" #")[0] for line in code.splitlines()]
    left = []
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type in (tokenize.COMMENT, tokenize.NL):
            continue
        is_text = token.type == tokenize.STRING or "FSTRING" in tokenize.tok_name[token.type]
        left.append("text" if is_text and " " in token.string else token.string)
    return left
