"""Carries a trace from whoever creates a job to the handler that runs it, where OpenTelemetry is installed.

What is carried are the W3C headers ``traceparent`` and ``tracestate``, among the job's own. Without
OpenTelemetry nothing is imported, and headers pass as their creator gave them.

A span says which job ran, where, and how it ended: no variables, no results, no headers, and of an exception
only its type, as its text may hold anything. Nothing here may break a job: whatever OpenTelemetry or a
header from outside does, the handler runs.
"""

from __future__ import annotations

import importlib
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from relevo.client.requests import HEADERS_BYTES_MAX, HEADERS_MAX
from relevo.environment import on_or_off
from relevo.worker.outcomes import Completed, Ending, NotOurs, counted_as

if TYPE_CHECKING:
    from relevo.client.requests import NewJob
    from relevo.worker.job import Job

_log: Final = logging.getLogger("relevo.tracing")

ENVIRONMENT: Final = "RELEVO_TRACING"
PARENT: Final = "traceparent"
STATE: Final = "tracestate"
_VALUE_MAX: Final = 512
"""Longest header that is looked at, in characters; the standard asks for no more."""
_LOOK_S: Final = 1.0


class _Api(NamedTuple):
    """The parts of OpenTelemetry that are used."""

    trace: Any
    context: Any
    headers: Any
    tracer: Any


@cache
def _installed() -> _Api | None:
    try:
        trace = importlib.import_module("opentelemetry.trace")
        context = importlib.import_module("opentelemetry.context")
        headers = importlib.import_module("opentelemetry.trace.propagation.tracecontext")
    except ImportError:
        return None
    try:
        ours = version("relevo")
    except PackageNotFoundError:
        ours = ""
    # Finds the application's provider whenever that is set, also later.
    tracer = trace.get_tracer("relevo", ours)
    return _Api(trace, context, headers.TraceContextTextMapPropagator(), tracer)


def _chosen(tracing: bool | None) -> _Api | None:
    """OpenTelemetry, where it is installed and wanted; None: as the environment says, else wanted."""
    wanted = on_or_off(ENVIRONMENT, os.environ.get(ENVIRONMENT), True) if tracing is None else tracing
    return _installed() if wanted else None


class TraceHeaders:
    """Puts the caller's trace into the headers of the jobs it creates.

    Args:
        tracing: Whether to; None: unless ``RELEVO_TRACING`` in the environment says ``off``.

    Raises:
        ConfigurationError: ``RELEVO_TRACING`` is neither on nor off.
    """

    def __init__(self, tracing: bool | None) -> None:
        self._api = _chosen(tracing)

    def add_to(self, job: NewJob) -> NewJob:
        """The job with the current trace, unless it has one already, or no room for it."""
        if self._api is None:
            return job
        try:
            found: dict[str, str] = {}
            self._api.headers.inject(found)
            if found and _has_room(job.headers, found):
                return replace(job, headers={**job.headers, **found})
        except Exception as error:
            _log.debug("the trace is not carried on: %s", error)
        return job


def _has_room(headers: Mapping[str, str], found: Mapping[str, str]) -> bool:
    """Whether these may be added: the creator gave none, and the job stays within its limits."""
    if any(str(name).lower() in (PARENT, STATE) for name in headers):
        return False
    both = {**headers, **found}
    size = sum(len(str(name).encode()) + len(str(value).encode()) for name, value in both.items())
    return len(both) <= HEADERS_MAX and size <= HEADERS_BYTES_MAX


class AttemptSpan:
    """The span of one attempt, current in the thread or task that opened it until its end."""

    __slots__ = ("_api", "_span", "_token")

    def __init__(self, api: _Api, span: Any, token: Any) -> None:
        self._api = api
        self._span = span
        self._token = token

    def end(self, outcome: Ending, raised: type[BaseException] | None) -> None:
        """The handler has ended."""
        try:
            self._api.context.detach(self._token)
            if isinstance(outcome, NotOurs):
                self._span.set_attribute("relevo.job.outcome", "claim_lost")
            else:
                self._span.set_attribute("relevo.job.outcome", counted_as(outcome))
                if not isinstance(outcome, Completed):
                    kind = counted_as(outcome) if raised is None else raised.__qualname__
                    self._span.set_attribute("error.type", kind)
                    self._span.set_status(self._api.trace.StatusCode.ERROR)
            self._span.end()
        except Exception as error:
            _log.debug("a span was not ended: %s", error)


class Tracer:
    """Opens a span around each attempt of one job type, a child of what created the job.

    Args:
        api: OpenTelemetry.
        job_type: The job type.
        group: The consumer group of its workers.
    """

    def __init__(self, api: _Api, job_type: str, group: str) -> None:
        self._api = api
        self._name = f"process {job_type}"
        self._look_at = float("-inf")
        self._unrecorded = False
        self._fixed = {
            "messaging.system": "relevo",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": job_type,
            "messaging.consumer.group.name": group,
        }

    def begin(self, job: Job) -> AttemptSpan | None:
        """Open it, as the current one; None: it can't be."""
        try:
            api = self._api
            if PARENT not in job.headers and self._nobody_records():
                return None
            headers = {
                name: value
                for name in (PARENT, STATE)
                if (value := job.headers.get(name)) is not None and len(value) <= _VALUE_MAX
            }
            # Not the surroundings' context: what runs in this thread otherwise is no part of the job.
            context = api.headers.extract(headers, api.context.Context())
            span = api.tracer.start_span(
                self._name,
                context,
                api.trace.SpanKind.CONSUMER,
                {
                    **self._fixed,
                    "messaging.destination.partition.id": str(job.partition),
                    "messaging.message.id": job.key,
                    "relevo.job.attempt": job.attempt,
                },
            )
            return AttemptSpan(api, span, api.context.attach(api.trace.set_span_in_context(span, context)))
        except Exception as error:
            _log.debug("no span for %r: %s", job, error)
            return None

    def _nobody_records(self) -> bool:
        """Whether the application has set up no provider, so that no span would be kept: most workers.

        Asking costs as much as half a job does; a provider that is set later is found within `_LOOK_S`.
        """
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + _LOOK_S
            trace = self._api.trace
            self._unrecorded = isinstance(self._api.tracer, trace.ProxyTracer) and isinstance(
                trace.get_tracer_provider(), trace.ProxyTracerProvider
            )
        return self._unrecorded


def tracer_for(job_type: str, group: str, tracing: bool | None) -> Tracer | None:
    """What opens the spans of a job type; None: nobody does.

    Args:
        job_type: The job type.
        group: The consumer group of its workers.
        tracing: Whether to; None: unless ``RELEVO_TRACING`` in the environment says ``off``.

    Raises:
        ConfigurationError: ``RELEVO_TRACING`` is neither on nor off.
    """
    api = _chosen(tracing)
    return Tracer(api, job_type, group) if api is not None else None


__all__ = ["AttemptSpan", "TraceHeaders", "Tracer", "tracer_for"]
