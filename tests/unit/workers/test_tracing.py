"""A trace goes from who creates a job to who runs it, and nothing that goes wrong with it hurts a job."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, cast

import pytest
from opentelemetry import context, trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import relevo
from relevo import tracing
from relevo.client.bulk import Bulk
from relevo.client.core import Core
from relevo.client.requests import HEADERS_BYTES_MAX, HEADERS_MAX, NewJob
from relevo.errors import ConfigurationError
from relevo.testing import Engine, KeptDedupStore
from relevo.tracing import TraceHeaders
from relevo.worker.outcomes import Completed
from relevo_schemas.codec import decode
from relevo_schemas.commands import CreateJob
from tests.unit.workers.fakes import activation

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SECRET = "hunter2"


@pytest.fixture
def provider() -> Iterator[TracerProvider]:
    provider = TracerProvider()
    yield provider
    provider.shutdown()


@pytest.fixture
def spans(provider: TracerProvider, monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """What ends as a span; the process' own provider, which can be set only once, is left alone."""
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    api = tracing._Api(trace, context, TraceContextTextMapPropagator(), provider.get_tracer("relevo"))
    monkeypatch.setattr(tracing, "_installed", lambda: api)
    return exporter


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[CreateJob]:
    """The commands that a `Core` sends."""
    found: list[CreateJob] = []

    class FakeSender:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            pass

        def check(self) -> None:
            pass

        def try_send(self, topic: str, key: bytes, value: bytes, report: Any, partition: int = -1) -> bool:
            found.append(cast("CreateJob", decode(value)))
            return True

    monkeypatch.setattr("relevo.client.core.Sender", FakeSender)
    return found


def headers_of(command: CreateJob) -> dict[str, str]:
    return dict(command.job.headers)


# The client


def test_a_job_carries_the_trace_of_its_creator(
    spans: InMemorySpanExporter, provider: TracerProvider, sent: list[CreateJob]
) -> None:
    """Without it, what a request has caused is lost at the queue."""
    core = Core("h:1", "c", {})
    with provider.get_tracer("app").start_as_current_span("request") as span:
        core.creation(NewJob(type="work", headers={"tenant": "a"}))
        bulk = Bulk(core, 10)
        assert bulk.offer({"type": "work", "key": "k"})
        _, encoded = core.creation(NewJob(type="work", headers={"tenant": "a"}))
    ids = span.get_span_context()
    trace_id, span_id = trace.format_trace_id(ids.trace_id), trace.format_span_id(ids.span_id)
    expected = f"00-{trace_id}-{span_id}-{ids.trace_flags:02x}"
    assert headers_of(sent[0]) == {"traceparent": expected}
    assert headers_of(cast("CreateJob", decode(encoded))) == {"tenant": "a", "traceparent": expected}


def test_what_the_caller_gives_stands(spans: InMemorySpanExporter, provider: TracerProvider) -> None:
    with provider.get_tracer("app").start_as_current_span("request"):
        for headers in ({"traceparent": PARENT}, {"Traceparent": PARENT}, {"tracestate": "a=b"}):
            job = NewJob(type="work", headers=headers)
            assert TraceHeaders(True).add_to(job).headers == headers


def test_without_a_trace_or_with_the_switch_off_nothing_is_added(
    spans: InMemorySpanExporter, provider: TracerProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = NewJob(type="work")
    assert TraceHeaders(True).add_to(job) is job
    with provider.get_tracer("app").start_as_current_span("request"):
        assert TraceHeaders(False).add_to(job) is job
        assert TraceHeaders(None).add_to(job) is not job
        monkeypatch.setenv("RELEVO_TRACING", "off")
        assert TraceHeaders(None).add_to(job) is job
        assert TraceHeaders(True).add_to(job) is not job
    monkeypatch.setenv("RELEVO_TRACING", "maybe")
    with pytest.raises(ConfigurationError, match="RELEVO_TRACING must be 'on' or 'off'"):
        TraceHeaders(None)


@pytest.mark.parametrize(
    "headers",
    [{f"h{n}": "v" for n in range(HEADERS_MAX)}, {"h": "v" * (HEADERS_BYTES_MAX - 1)}, 7, {"h": 7}, {7: "v"}],
)
def test_a_job_that_was_right_stays_right_and_a_wrong_one_is_told_as_ever(
    spans: InMemorySpanExporter, provider: TracerProvider, headers: Any
) -> None:
    """A job at the limit of its headers would be refused where a trace is on, and taken where it isn't."""
    job = NewJob(type="work", headers=headers)
    with provider.get_tracer("app").start_as_current_span("request"):
        traced = TraceHeaders(True).add_to(job)
    assert told(traced) == told(job)


def told(job: NewJob) -> object:
    """Its headers, or why it is refused."""
    try:
        return job.spec().headers
    except relevo.InvalidRequest as error:
        return str(error)


# The worker


async def run(handler: Any, *, headers: dict[str, str] | None = None, retries: int = 0, **job: Any) -> Engine:
    app = relevo.WorkerApp(dedup=KeptDedupStore())
    app.job("work")(handler)
    engine = Engine()
    async with engine:
        engine.run(app)
        await engine.create("work", headers=headers, retries=retries, key="k", **job)
        await engine.settle()
        await engine.advance(5)
        return engine


def current() -> int:
    return trace.get_current_span().get_span_context().span_id


async def test_an_attempt_is_a_child_of_what_created_the_job(spans: InMemorySpanExporter) -> None:
    seen = []

    async def handler(job: relevo.Job) -> None:
        seen.append((current(), job.headers["traceparent"]))
        await asyncio.sleep(0)
        seen.append((current(), job.headers["traceparent"]))

    await run(handler, headers={"traceparent": PARENT, "tracestate": "vendor=1"})
    (span,) = spans.get_finished_spans()
    assert span.name == "process work"
    assert span.kind is SpanKind.CONSUMER
    assert span.parent is not None
    assert trace.format_span_id(span.parent.span_id) == "b7ad6b7169203331"
    assert trace.format_trace_id(span.context.trace_id) == "0af7651916cd43dd8448eb211c80319c"
    assert span.context.trace_state.to_header() == "vendor=1"
    assert seen == [(span.context.span_id, PARENT)] * 2
    assert span.status.status_code is StatusCode.UNSET
    attributes = dict(span.attributes or {})
    assert attributes.pop("messaging.destination.partition.id") in ("0", "1")
    assert str(attributes.pop("messaging.consumer.group.name")).endswith("work")
    assert attributes == {
        "messaging.system": "relevo",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "work",
        "messaging.message.id": "k",
        "relevo.job.attempt": 1,
        "relevo.job.outcome": "done",
    }


def a_job(**headers: str) -> relevo.Job:
    return relevo.Job(activation("k", headers=headers))


def test_where_nobody_records_a_job_without_a_trace_gets_no_span_until_somebody_does(
    provider: TracerProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that never set OpenTelemetry up must not pay for it with every job."""
    proxy = trace.ProxyTracerProvider()
    api = tracing._Api(trace, context, TraceContextTextMapPropagator(), proxy.get_tracer("relevo"))
    monkeypatch.setattr(tracing, "_installed", lambda: api)
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: proxy)
    monkeypatch.setattr(tracing, "_LOOK_S", 0.0)
    tracer = tracing.tracer_for("mail", "group", None)
    assert tracer is not None
    assert tracer.begin(a_job()) is None
    carried = tracer.begin(a_job(traceparent=PARENT))
    assert carried is not None, "what the handler calls goes on with its creator's trace"
    carried.end(Completed(b"null"), None)
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    late = tracer.begin(a_job())
    assert late is not None
    late.end(Completed(b"null"), None)


async def test_every_attempt_has_a_span_of_its_own_and_a_failed_one_says_so(
    spans: InMemorySpanExporter,
) -> None:
    def handler(job: relevo.Job) -> None:
        if job.attempt == 1:
            raise ValueError(SECRET)

    await run(handler, retries=1, headers={"authorization": SECRET}, variables={"card": SECRET})
    first, second = spans.get_finished_spans()
    assert [(each.attributes or {})["relevo.job.attempt"] for each in (first, second)] == [1, 2]
    assert first.status.status_code is StatusCode.ERROR
    assert (first.attributes or {})["error.type"] == "ValueError"
    assert (first.attributes or {})["relevo.job.outcome"] == "exception"
    assert second.status.status_code is StatusCode.UNSET
    assert SECRET not in first.to_json() + second.to_json()


@pytest.mark.parametrize(
    ("end", "outcome", "kind"),
    [
        (lambda: object(), "result", "result"),
        (lambda: throw(relevo.JobError("NO", SECRET)), "errored", "JobError"),
        (lambda: throw(relevo.Fail(SECRET)), "fail", "Fail"),
        (lambda: throw(SystemExit(1)), "exception", "SystemExit"),
    ],
)
async def test_how_an_attempt_ended(spans: InMemorySpanExporter, end: Any, outcome: str, kind: str) -> None:
    await run(lambda job: end())
    (span,) = spans.get_finished_spans()
    attributes = dict(span.attributes or {})
    assert (attributes["relevo.job.outcome"], attributes["error.type"]) == (outcome, kind)
    assert span.status.status_code is StatusCode.ERROR
    assert SECRET not in span.to_json()


def throw(error: BaseException) -> None:
    raise error


async def test_jobs_side_by_side_see_their_own_span_and_none_is_left_behind(
    spans: InMemorySpanExporter,
) -> None:
    """The calls of one customer would show up in another's trace."""
    seen: dict[str, set[int]] = {}
    together = asyncio.Barrier(2)
    app = relevo.WorkerApp(dedup=KeptDedupStore())

    @app.job("work")
    async def work(job: relevo.Job) -> None:
        before = current()
        await together.wait()
        seen[job.key] = {before, current()}

    @app.job("plain", concurrency=1)
    def plain(job: relevo.Job) -> None:
        seen[job.key] = {current()}

    async with Engine() as engine:
        engine.run(app)
        for key in "ab":
            await engine.create("work", key=key)
            await engine.create("plain", key=key * 2)
        await engine.settle()
    mine = {
        str((each.attributes or {})["messaging.message.id"]): each.context.span_id
        for each in spans.get_finished_spans()
    }
    assert seen == {key: {span} for key, span in mine.items()}
    assert len(set(mine.values())) == 4
    assert current() == 0


@pytest.mark.parametrize(
    "headers",
    [
        {"traceparent": ""},
        {"traceparent": "nonsense"},
        {"traceparent": "00-" + "0" * 32 + "-" + "0" * 16 + "-01"},
        {"traceparent": "ff" + PARENT[2:]},
        {"traceparent": PARENT + "-extra"},
        {"traceparent": "0" * 16_000},
        {"traceparent": "\r\n\x00"},
        {"tracestate": "a=b"},
    ],
)
async def test_a_bad_trace_from_outside_breaks_no_job(
    spans: InMemorySpanExporter, headers: dict[str, str]
) -> None:
    """Anybody may create jobs, by another program too."""
    engine_jobs = []
    await run(lambda job: engine_jobs.append(dict(job.headers)), headers=headers)
    assert engine_jobs == [headers]
    (span,) = spans.get_finished_spans()
    assert span.parent is None


@pytest.mark.parametrize("state", ["=", "a=b," * 2_000, "\x00"])
async def test_a_bad_state_loses_the_state_only(spans: InMemorySpanExporter, state: str) -> None:
    await run(lambda job: None, headers={"traceparent": PARENT, "tracestate": state})
    (span,) = spans.get_finished_spans()
    assert span.parent is not None
    assert span.context.trace_state.to_header() == ""


class Broken(SpanProcessor):
    def __init__(self, at: str) -> None:
        self._at = at

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        if self._at == "start":
            raise RuntimeError("the exporter is broken")

    def on_end(self, span: ReadableSpan) -> None:
        if self._at == "end":
            raise RuntimeError("the exporter is broken")


@pytest.mark.parametrize("at", ["start", "end"])
async def test_a_broken_exporter_breaks_no_job(
    spans: InMemorySpanExporter, provider: TracerProvider, at: str
) -> None:
    provider.add_span_processor(Broken(at))
    ran = []

    async def handler(job: relevo.Job) -> None:
        ran.append(job.key)

    await run(handler)
    assert ran == ["k"]
    assert current() == 0


def test_without_opentelemetry_nothing_is_imported_and_headers_pass() -> None:
    script = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "opentelemetry":
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Blocker())
import relevo, relevo.testing
seen = []
app = relevo.WorkerApp()
app.job("work")(lambda job: seen.append(job.headers["traceparent"]))
with relevo.testing.Engine() as engine:
    engine.run(app)
    engine.create("work", headers={"traceparent": "anything"})
    engine.settle()
print(seen, [name for name in sys.modules if name.startswith("opentelemetry")])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['anything'] []"


def test_importing_it_does_not_import_opentelemetry() -> None:
    """A second of start-up for those who have it installed for something else."""
    script = "import sys, relevo; print([name for name in sys.modules if name.startswith('opentelemetry')])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
