"""Functions compiled for one kind of record: they name its fields, where a loop would look each of them up.

As `dataclasses` and `collections.namedtuple` do it. Every record that is read or written goes through them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from relevo_schemas.fields import INT_END, Schema, check_ints, int_names


def datum_of(names: Sequence[str]) -> Callable[[Any], dict[str, Any]]:
    """A function that gives an object's attributes of these names as fastavro wants them."""
    fields = ", ".join(f"{name!r}: it.{name}" for name in names)
    made: Callable[[Any], dict[str, Any]] = _function("it", [f"return {{{fields}}}"])
    return made


def maker_of(cls: type, schema: Schema) -> Callable[[dict[str, Any]], Any]:
    """A function that makes an object of ``cls`` of what fastavro has read with its ``schema``.

    It gives the values to the object itself, in half the time of a call of ``cls``: for classes whose
    ``__init__`` does that and no more. A number beyond the 32 bits of its field is a `ValueError`.
    """
    names = [field["name"] for field in schema["fields"]]
    lines = [
        "it = new(cls)",
        f"{_places('it', names)}, = datum.values()" if names else "() = datum.values()",
        *_int_checks(schema, dict(zip(names, [f"it.{name}" for name in names], strict=True))),
        "return it",
    ]
    made: Callable[[dict[str, Any]], Any] = _function("datum", lines, schema, cls=cls)
    return made


def pair_maker_of(
    cls: type, names: Sequence[str], inner: type, inner_names: Sequence[str], schema: Schema
) -> Callable[[dict[str, Any]], tuple[Any, Any, Any]]:
    """As `maker_of`, for a ``cls`` and the ``inner`` whose values follow its own; and one value more.

    The function gives both, and the last value. What else they hold is left to the caller.
    """
    places = [*(f"it.{name}" for name in names), *(f"within.{name}" for name in inner_names), "last"]
    fields = dict(zip([field["name"] for field in schema["fields"]], places, strict=True))
    lines = [
        "it, within = new(cls), new(inner)",
        f"{', '.join(places)} = datum.values()",
        *_int_checks(schema, fields),
        "return it, within, last",
    ]
    made: Callable[[dict[str, Any]], tuple[Any, Any, Any]] = _function(
        "datum", lines, schema, cls=cls, inner=inner
    )
    return made


def _int_checks(schema: Schema, places: Mapping[str, str]) -> list[str]:
    """Lines that refuse a datum with a number that is too long; `check_ints` says which."""
    tests = []
    for field in schema["fields"]:
        if field["name"] in int_names(schema):
            place = places[field["name"]]
            bounds = f"{-INT_END} <= {place} < {INT_END}"
            tests.append(bounds if field["type"] == "int" else f"({place} is None or {bounds})")
    return [f"if not ({' and '.join(tests)}): check_ints(datum, ints)"] if tests else []


def _places(it: str, names: Sequence[str]) -> str:
    return ", ".join(f"{it}.{name}" for name in names)


def _function(argument: str, lines: Sequence[str], schema: Schema | None = None, **known: Any) -> Any:
    known |= {"new": object.__new__, "check_ints": check_ints, "ints": int_names(schema) if schema else ()}
    body = "\n".join(f"    {line}" for line in lines)
    exec(f"def made({argument}):\n{body}", known)  # noqa: S102 - names of our own files
    return known["made"]
