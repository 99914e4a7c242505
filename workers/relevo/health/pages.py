"""What a worker serves over HTTP: ``/healthz``, ``/readyz`` and ``/metrics``."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING

import orjson

from relevo.errors import MissingExtra
from relevo.health.health import Health
from relevo.health.metrics import CONTENT_TYPE, exposition
from relevo.health.server import Answer, HealthServer

if TYPE_CHECKING:
    from relevo.worker.worker import Workers


def health_server(address: str, workers: Workers) -> HealthServer:
    """A server for these workers, which listens already.

    Raises:
        ConfigurationError: The address can't be right, or can't be had.
    """
    health = Health(workers)
    render: Callable[[], bytes] | None = None

    async def healthz() -> Answer:
        return _judged(health.ailments())

    async def readyz() -> Answer:
        return _judged(await health.hindrances())

    async def metrics() -> Answer:
        nonlocal render
        try:
            render = render or exposition(lambda: workers.workers)
        except MissingExtra as error:
            return Answer(HTTPStatus.NOT_IMPLEMENTED, f"{error}\n".encode(), "text/plain; charset=utf-8")
        return Answer(HTTPStatus.OK, render(), CONTENT_TYPE)

    return HealthServer(address, {"/healthz": healthz, "/readyz": readyz, "/metrics": metrics})


def _judged(reasons: list[str]) -> Answer:
    status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
    return Answer(status, orjson.dumps({"ok": not reasons, "reasons": reasons}) + b"\n")


__all__ = ["health_server"]
