"""A schema registry in the style of Confluent's, as far as registering goes."""

from __future__ import annotations

import base64
import http.client
import urllib.error
import urllib.request
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import orjson

from relevo.errors import ConfigurationError, Refused, Unreachable

_TYPE: Final = "application/vnd.schemaregistry.v1+json"
_TEXT_MAX: Final = 300
_ANSWER_MAX: Final = 1 << 20


class SchemaRegistry:
    """Registers Avro schemas, and gives the ids that name them in records.

    Args:
        url: ``http://host:port`` or ``https://…``, with ``user:password@`` before the host where it asks.
        timeout: Of one call, in seconds.

    Raises:
        ConfigurationError: It is no such address.
    """

    def __init__(self, url: str, timeout: float = 10.0) -> None:
        try:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError
            port = f":{parts.port}" if parts.port else ""
        except ValueError:
            # Not repeated: it may hold a password.
            raise ConfigurationError("the schema registry must be http://HOST:PORT or https://…") from None
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        self.address = urlunsplit((parts.scheme, host + port, parts.path.rstrip("/"), "", ""))
        self._timeout = timeout
        self._headers = {"Content-Type": _TYPE, "Accept": f"{_TYPE}, application/json"}
        if parts.username is not None:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
            self._headers["Authorization"] = "Basic " + base64.b64encode(login).decode()

    def register(self, subject: str, schema: str) -> int:
        """The id of ``schema``, which is registered under ``subject`` if it isn't yet.

        Raises:
            Unreachable: The registry doesn't answer, or is in trouble; try again later.
            Refused: It refuses, because the schema doesn't fit the earlier ones of the subject for one.
        """
        answer = self._post(
            f"/subjects/{quote(subject, safe='')}/versions", {"schema": schema, "schemaType": "AVRO"}
        )
        found = answer.get("id") if isinstance(answer, dict) else None
        if not isinstance(found, int) or not 0 <= found < 1 << 32:
            raise Refused(f"{self.address} gives no id for {subject}: is it a schema registry?")
        return found

    def _post(self, path: str, body: dict[str, str]) -> Any:
        request = urllib.request.Request(  # noqa: S310 - http or https, checked above
            self.address + path, orjson.dumps(body), self._headers, method="POST"
        )
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as answer:  # noqa: S310
                return _parsed(answer.read(_ANSWER_MAX))
        except urllib.error.HTTPError as error:
            with error:
                said = _parsed(error.read(_ANSWER_MAX))
            text = str(said.get("message", "") if isinstance(said, dict) else "")[:_TEXT_MAX]
            text = text or str(error.reason)
            kind = Unreachable if error.code >= 500 or error.code == 429 else Refused
            raise kind(
                f"the schema registry at {self.address} answers {error.code} to {path}: {text}"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise Unreachable(f"the schema registry doesn't answer at {self.address}: {reason}") from None


def _parsed(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
