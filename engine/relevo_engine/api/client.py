"""Asks a node's HTTP API. Needs nothing but the standard library, so that a light install can do it."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode

from relevo_engine.errors import EngineError, UnreachableError

TIMEOUT_S: Final = 10.0


class ApiError(EngineError):
    """The node answered with an error.

    Attributes:
        status: HTTP status.
        code: What is wrong, for programs.
        retry_after_s: Seconds after which asking again may help, or None.
    """

    def __init__(self, status: int, code: str, message: str, retry_after_s: float | None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.retry_after_s = retry_after_s


class ApiClient:
    """One node's API.

    Args:
        address: ``host:port``, with or without ``http://``.
        timeout_s: Seconds an answer may take.
    """

    def __init__(self, address: str, timeout_s: float = TIMEOUT_S) -> None:
        self.address = address.removeprefix("http://").rstrip("/")
        self._timeout_s = timeout_s

    def get(self, path: str, query: Mapping[str, object] | None = None) -> Any:
        """The answer's JSON.

        Raises:
            ApiError: The node refused.
            UnreachableError: There was no answer.
        """
        status, retry_after, body = self._ask(path, query)
        try:
            answer = json.loads(body) if body else None
        except ValueError as error:
            raise UnreachableError(f"what answers at {self.address} is no Relevo node") from error
        except RecursionError as error:
            message = f"what the node at {self.address} answers is nested too deep to be read here"
            raise ApiError(status, "TOO_DEEP", message, retry_after) from error
        if status >= 400:
            problem = answer.get("error", {}) if isinstance(answer, dict) else {}
            message = str(problem.get("message") or f"the node at {self.address} answered {status}")
            advice = problem.get("advice")
            text = f"{message}. {advice}" if advice else message
            raise ApiError(status, str(problem.get("code", status)), text, retry_after)
        return answer

    def ready(self) -> bool:
        """Whether the node is connected and settled; False where it doesn't answer."""
        try:
            return self._ask("/readyz", None)[0] == 200
        except UnreachableError:
            return False

    def job(self, key: str) -> Any:
        """One job.

        Raises:
            ApiError: There is none with this key (status 404), or its partition has no leader now (503).
            UnreachableError: There was no answer.
        """
        return self.get("/v1/jobs/" + quote(key, safe=""))

    def _ask(self, path: str, query: Mapping[str, object] | None) -> tuple[int, float | None, bytes]:
        given = {name: value for name, value in (query or {}).items() if value is not None}
        target = f"{path}?{urlencode(given)}" if given else path
        host, _, port = self.address.rpartition(":")
        try:
            connection = http.client.HTTPConnection(host, int(port), timeout=self._timeout_s)
        except (ValueError, http.client.InvalidURL) as error:
            raise UnreachableError(f"{self.address!r} is no address: must be host:port") from error
        try:
            connection.request("GET", target, headers={"Accept": "application/json"})
            # Closed by itself too: it holds the socket open where its body didn't come whole.
            with connection.getresponse() as response:
                body = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise UnreachableError(f"no node answers at {self.address}: {error}") from error
        finally:
            connection.close()
        after = response.getheader("Retry-After")
        return response.status, float(after) if after and after.replace(".", "").isdigit() else None, body
