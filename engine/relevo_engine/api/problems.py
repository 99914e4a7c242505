"""Errors as JSON: what is wrong for programs, what is wrong for people, and what to do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import orjson
from aiohttp import web

from relevo_engine import logs

JSON: Final = "application/json"
RETRY_AFTER_S: Final = 1
_log = logs.get("api")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class AnswerError(Exception):
    """An answer that isn't what was asked for.

    Attributes:
        status: HTTP status.
        code: For programs to branch on.
        message: What is wrong.
        advice: What to do.
        retry_after_s: Seconds after which asking again may help; None: it won't.
    """

    def __init__(
        self, status: int, code: str, message: str, advice: str = "", *, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.advice = advice
        self.retry_after_s = retry_after_s

    def body(self) -> dict[str, Any]:
        """What goes over the wire. Nothing here changes anything, so it is never done and may be repeated."""
        again = "same" if self.retry_after_s is not None else "stop"
        error = {"code": self.code, "message": self.message, "outcome": "not_done", "retry": again}
        if self.advice:
            error["advice"] = self.advice
        return {"error": error}

    def response(self) -> web.Response:
        """The HTTP response."""
        headers = {"Retry-After": str(self.retry_after_s)} if self.retry_after_s is not None else None
        return reply(self.body(), self.status, headers)


def reply(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """A JSON response. ``value`` is anything that orjson writes, texts that are JSON already among it."""
    return web.Response(body=orjson.dumps(value) + b"\n", status=status, content_type=JSON, headers=headers)


@web.middleware
async def as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turns whatever goes wrong in a handler into a JSON answer."""
    try:
        return await handler(request)
    except AnswerError as problem:
        return problem.response()
    except web.HTTPNotFound:
        advice = (
            "Known: /healthz /readyz /metrics /v1/partitions /v1/takeovers /v1/nodes /v1/jobs /v1/jobs/{key}"
        )
        return AnswerError(404, "NO_SUCH_PATH", f"there is nothing at {request.path}", advice).response()
    except web.HTTPException as error:
        answer = AnswerError(error.status, error.reason.upper().replace(" ", "_"), error.reason).response()
        if "Allow" in error.headers:  # belongs to a 405 (RFC 9110, 15.5.6)
            answer.headers["Allow"] = error.headers["Allow"]
        return answer
    except Exception:
        _log.exception("request failed", path=request.path)
        return AnswerError(
            500, "INTERNAL", "the node could not answer because of a bug", "Its log says more."
        ).response()
