"""The HTTP server: on loopback unless told otherwise, in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import threading
from concurrent.futures import Future
from typing import Final

import aiohttp
from aiohttp import web

from relevo_engine import queries
from relevo_engine.api.answers import ASKED_BY, Answers
from relevo_engine.api.backend import Backend
from relevo_engine.api.problems import AnswerError, as_json, reply
from relevo_engine.core.job import OPEN_STATES, JobState
from relevo_engine.errors import EngineError, StopUnfinishedError
from relevo_engine.metrics import CONTENT_TYPE
from relevo_schemas.job import KEY_LENGTH_MAX

_START_TIMEOUT_S: Final = 10.0
_LIMIT_DEFAULT: Final = 100


class ApiServer:
    """A node's HTTP API.

    Args:
        host: Address to listen on.
        port: Port to listen on; 0: a free one.
    """

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._loop = asyncio.new_event_loop()
        self._thread: threading.Thread | None = None
        self._stop: asyncio.Event | None = None

    def start(self, backend: Backend) -> str:
        """Listens, and answers from ``backend``.

        Returns:
            ``host:port`` as it listens.

        Raises:
            EngineError: The address can't be listened on.
        """
        listening: Future[str] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(backend, listening), name="relevo-api", daemon=True
        )
        self._thread.start()
        try:
            return listening.result(_START_TIMEOUT_S)
        except OSError as error:
            raise EngineError(
                f"the HTTP API can't listen on {self._host}:{self._port}: {error.strerror or error}."
                " Choose another --api-port, or 0 for a free one."
            ) from error

    def stop(self, timeout_s: float) -> None:
        """Ends it; requests in progress are cut off.

        Raises:
            StopUnfinishedError: It didn't end in time.
        """
        if self._thread is None:
            return
        if self._stop is not None:
            with contextlib.suppress(RuntimeError):  # its loop has ended by itself
                self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise StopUnfinishedError(f"the HTTP API did not end within {timeout_s:g} s")

    def _run(self, backend: Backend, listening: Future[str]) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve(backend, listening))
        except Exception as error:
            if listening.done():
                raise
            listening.set_exception(error)
        finally:
            self._loop.close()

    async def _serve(self, backend: Backend, listening: Future[str]) -> None:
        self._stop = asyncio.Event()
        async with aiohttp.ClientSession() as session:
            runner = web.AppRunner(make_app(backend, session), access_log=None, shutdown_timeout=1.0)
            await runner.setup()
            try:
                site = web.TCPSite(runner, self._host, self._port)
                await site.start()
                port = runner.addresses[0][1]
                host = f"[{self._host}]" if ":" in self._host else self._host  # IPv6, as addresses have it
                listening.set_result(f"{host}:{port}")
                await self._stop.wait()
            finally:
                await runner.cleanup()


def make_app(backend: Backend, session: aiohttp.ClientSession) -> web.Application:
    """The routes."""
    handlers = _Handlers(backend, Answers(backend, session))
    app = web.Application(middlewares=[as_json])
    app.router.add_get("/healthz", handlers.alive)
    app.router.add_get("/readyz", handlers.ready)
    app.router.add_get("/metrics", handlers.metrics)
    app.router.add_get("/v1/partitions", handlers.partitions)
    app.router.add_get("/v1/takeovers", handlers.takeovers)
    app.router.add_get("/v1/nodes", handlers.nodes)
    app.router.add_get("/v1/jobs", handlers.jobs)
    # A key may hold slashes.
    app.router.add_get("/v1/jobs/{key:.+}", handlers.job)
    return app


class _Handlers:
    def __init__(self, backend: Backend, answers: Answers) -> None:
        self._backend = backend
        self._answers = answers

    async def alive(self, _request: web.Request) -> web.Response:
        node = {"node": self._backend.node_id, "cluster": self._answers.cluster}
        return reply({"status": "alive", **node})

    async def ready(self, _request: web.Request) -> web.Response:
        reasons = self._backend.not_ready()
        if reasons:
            return reply({"status": "not ready", "node": self._backend.node_id, "reasons": reasons}, 503)
        return reply({"status": "ready", "node": self._backend.node_id})

    async def metrics(self, _request: web.Request) -> web.Response:
        # It may wait for a partition's thread.
        text = await asyncio.to_thread(self._backend.metrics)
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE})

    async def partitions(self, request: web.Request) -> web.Response:
        _check_query(request, ("scope",))
        return reply(await self._answers.partition_rows(local=_is_local(request)))

    async def takeovers(self, request: web.Request) -> web.Response:
        _check_query(request, ())
        return reply(self._answers.takeovers())

    async def nodes(self, request: web.Request) -> web.Response:
        _check_query(request, ())
        return reply(await self._answers.nodes())

    async def job(self, request: web.Request) -> web.Response:
        _check_query(request, ())
        key = request.match_info["key"]
        length = len(key.encode(errors="surrogatepass"))
        if length > KEY_LENGTH_MAX:
            raise AnswerError(
                400, "INVALID_KEY", f"the key has {length} bytes", f"Keys have at most {KEY_LENGTH_MAX}."
            )
        status, body = await self._answers.job(key, passed_on=ASKED_BY in request.headers)
        headers = {"Retry-After": "1"} if status == 503 else None
        return reply(body, status, headers)

    async def jobs(self, request: web.Request) -> web.Response:
        _check_query(request, ("state", "type", "limit", "scope"))
        where = _state(request.query.get("state"))
        limit = _limit(request.query.get("limit"))
        job_type = request.query.get("type") or None
        return reply(await self._answers.jobs(where, job_type, limit, local=_is_local(request)))


def _is_local(request: web.Request) -> bool:
    """Whether only this node is asked; always so for what another node passes on."""
    return request.query.get("scope") == "local" or ASKED_BY in request.headers


def _check_query(request: web.Request, known: tuple[str, ...]) -> None:
    """Refuses what would be ignored: whoever misspells a filter must not take all jobs for its answer."""
    for name in request.query:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"Did you mean {close[0]}? " if close else ""
            there_are = f"There are: {', '.join(known)}." if known else "There are none here."
            message = f"unknown query parameter {name!r}"
            raise AnswerError(400, "UNKNOWN_PARAMETER", message, hint + there_are)


def _state(text: str | None) -> JobState | None:
    if not text:
        return None
    known = ", ".join(OPEN_STATES)
    try:
        state = JobState(text.upper())
    except ValueError:
        raise AnswerError(400, "INVALID_STATE", f"there is no state {text!r}", f"Use {known}.") from None
    if state not in OPEN_STATES:
        advice = f"Finished jobs are found by key, or on the job log. Listed are those in {known}."
        raise AnswerError(400, "INVALID_STATE", f"jobs in state {state} are not listed", advice)
    return state


def _limit(text: str | None) -> int:
    try:
        limit = int(text) if text else _LIMIT_DEFAULT
    except ValueError:
        limit = 0
    if not 1 <= limit <= queries.LIMIT_MAX:
        advice = f"It must be a number from 1 to {queries.LIMIT_MAX}."
        raise AnswerError(400, "INVALID_LIMIT", f"the limit is {text!r}", advice)
    return limit
