"""The `.avsc` files: the current schema of each kind, and retired ones that old records were written with."""

from __future__ import annotations

from importlib.resources import files
from typing import Any, Final

import fastavro
import orjson

_FOLDER: Final = files("relevo_schemas") / "avro"


def load_current(name: str) -> dict[str, Any]:
    """The parsed schema in ``avro/<name>.avsc``."""
    schema: dict[str, Any] = fastavro.parse_schema(orjson.loads((_FOLDER / f"{name}.avsc").read_bytes()))  # type: ignore[assignment]
    return schema


def load_retired() -> list[dict[str, Any]]:
    """Parsed schemas of earlier versions, from ``avro/retired/<kind>-<fingerprint>.avsc``."""
    folder = _FOLDER / "retired"
    if not folder.is_dir():
        return []
    found = sorted(
        (entry for entry in folder.iterdir() if entry.name.endswith(".avsc")), key=lambda entry: entry.name
    )
    return [fastavro.parse_schema(orjson.loads(entry.read_bytes())) for entry in found]  # type: ignore[misc]
