"""The `.avsc` files: the current schema of each kind, and retired ones that old records were written with."""

from __future__ import annotations

import sys
from importlib.resources import files
from typing import Any, Final

import fastavro
import orjson

_FOLDER: Final = files("relevo_schemas") / "avro"


def parse(schema: dict[str, Any]) -> dict[str, Any]:
    """``schema`` as fastavro wants it.

    Its texts are made the one object of their kind: fastavro compares types and looks up fields by them for
    every record, and an object is found quickest by itself (3 % of reading and writing).
    """
    parsed: dict[str, Any] = fastavro.parse_schema(schema)  # type: ignore[assignment]
    _intern(parsed)
    return parsed


def _intern(part: Any) -> None:
    if isinstance(part, dict | list):
        for place, value in list(part.items() if isinstance(part, dict) else enumerate(part)):
            if isinstance(value, str):
                part[place] = sys.intern(value)
            else:
                _intern(value)


def load_current(name: str) -> dict[str, Any]:
    """The parsed schema in ``avro/<name>.avsc``."""
    return parse(orjson.loads((_FOLDER / f"{name}.avsc").read_bytes()))


def load_retired() -> list[dict[str, Any]]:
    """Parsed schemas of earlier versions, from ``avro/retired/<kind>-<fingerprint>.avsc``."""
    folder = _FOLDER / "retired"
    if not folder.is_dir():
        return []
    found = sorted(
        (entry for entry in folder.iterdir() if entry.name.endswith(".avsc")), key=lambda entry: entry.name
    )
    return [parse(orjson.loads(entry.read_bytes())) for entry in found]
