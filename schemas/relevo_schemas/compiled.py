"""Python functions made from an Avro schema, which write and read one kind of record.

Records here are small and many: a general library spends most of its time on being general. What these
functions write and read is plain Avro; the tests hold them against fastavro.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from relevo_schemas import varints

Schema = dict[str, Any]
_TOOLS: Final = {name: getattr(varints, name) for name in dir(varints) if name[:2] != "__"} | {
    "join": b"".join
}
_OVERRUN: Final = "raise ValueError(f'{n} bytes announced where {len(v) - p} follow')"
_TEXTS: Final = {"type": "map", "values": "string"}


def compile_writer(
    name: str, fields: Sequence[Schema], before: bytes, *, takes_record: bool, tail: str = ""
) -> Callable[..., bytes]:
    """A function that gives the bytes of a record.

    Args:
        name: Of the kind.
        fields: The fields to write.
        before: Bytes that stand before them.
        takes_record: Whether the function takes a record; otherwise the fields' values in order.
        tail: What is added at the end, as an expression over the function's arguments.
    """
    lines: list[str] = []
    parts = ["before"]
    for nth, field in enumerate(fields):
        lines += _write_lines(
            f"v{nth}", f"r.{field['name']}" if takes_record else f"v{nth}", field["type"], parts
        )
    if tail:
        parts.append(tail)
    arguments = ["r"] if takes_record else [f"v{nth}" for nth in range(len(fields))]
    if tail and not takes_record:
        arguments.append(tail)
    lines.append(f"return join(({', '.join(parts)},))")
    return _define(f"write_{name}", arguments, lines, {"before": before})


def _write_lines(var: str, source: str, kind: Any, parts: list[str]) -> list[str]:
    """Lines that bring a value into shape; the expressions for its bytes go to ``parts``."""
    fetch = [] if var == source else [f"{var} = {source}"]
    match kind:
        case "long" | "int":
            parts.append(f"SMALL[{var}] if 0 <= {var} < SMALL_END else write_{kind}({var})")
            return fetch
        case "string":
            parts += [f"SMALL[n{var}] if n{var} < SMALL_END else write_long(n{var})", var]
            return [f"{var} = {source}.encode()", f"n{var} = len({var})"]
        case "bytes":
            parts += [f"write_long(len({var}))", var]
            return fetch
        case "boolean":
            parts.append(f"b'\\x01' if {var} else b'\\x00'")
            return fetch
        case ["null", "string"]:
            parts.append(f"b'\\x00' if {var} is None else b'\\x02' + write_text({var})")
            return fetch
        case ["null", "int"]:
            parts.append(f"b'\\x00' if {var} is None else b'\\x02' + write_int({var})")
            return fetch
        case {"type": "array", "items": {"fields": fields}}:
            inner = ["b''"]
            lines: list[str] = []
            for nth, field in enumerate(fields):
                lines += _write_lines(f"i{nth}", f"item.{field['name']}", field["type"], inner)
            lines.append(f"{var} += ({', '.join(inner)},)")
            parts += [f"write_long(len({source})) if {source} else b''", f"join({var})", "b'\\x00'"]
            return [f"{var} = []", f"for item in {source}:", *(f"    {line}" for line in lines)]
        case _ if kind == _TEXTS:
            parts.append(f"write_texts({var})")
            return fetch
    raise TypeError(f"no way to write a {kind}")


def compile_reader(
    name: str,
    fields: Sequence[Schema],
    make: Callable[..., Any],
    *,
    make_item: Callable[..., Any] | None = None,
    read_job: Callable[[bytes, int], Any] | None = None,
    stops_at_variables: bool = False,
) -> Callable[[bytes, int], Any]:
    """A function that reads a record from a value, beginning at a position, to the value's end.

    It raises `ValueError` or `IndexError` where the bytes don't fit.

    Args:
        name: Of the kind.
        fields: The fields to read.
        make: Makes the record of the fields' values.
        make_item: Makes the items of an array of theirs.
        read_job: Reads a job that follows the fields and ends the value.
        stops_at_variables: This is the job: its last field follows and ends the value, but stays where it is.
    """
    lines: list[str] = ["start = p"] if stops_at_variables else []
    for nth, field in enumerate(fields):
        lines += _read_lines(f"v{nth}", field["type"])
    values = [f"v{nth}" for nth in range(len(fields))]
    if read_job is not None:
        values.append("read_job(v, p)")
    elif stops_at_variables:
        lines += ["n, p = read_long(v, p)", f"if n < 0 or p + n != len(v): {_OVERRUN}"]
        values += ["v[start:] if start else v", "p - start"]
    else:
        lines.append("if p != len(v): raise ValueError(f'{p} bytes read of {len(v)}')")
    lines.append(f"return make({', '.join(values)})")
    return _define(
        f"read_{name}", ["v", "p"], lines, {"make": make, "make_item": make_item, "read_job": read_job}
    )


def _read_lines(var: str, kind: Any) -> list[str]:
    match kind:
        case "long" | "int":
            return _small_or(var, f"{var}, p = read_{kind}(v, p)")
        case "string":
            return [
                *_small_or("n", "n, p = read_long(v, p)"),
                "q = p + n",
                f"if n < 0 or q > len(v): {_OVERRUN}",
                f"{var} = v[p:q].decode()",
                "p = q",
            ]
        case "bytes":
            return [f"{var}, p = read_bytes(v, p)"]
        case "boolean":
            return [f"{var} = (False, True)[v[p]]", "p += 1"]
        case ["null", "string" | "int" as inner]:
            read = {"string": "read_text", "int": "read_int"}[inner]
            return [
                "n, p = read_long(v, p)",
                f"if n == 0: {var} = None",
                f"elif n == 1: {var}, p = {read}(v, p)",
                "else: raise ValueError(f'branch {n} of a choice of 2')",
            ]
        case {"type": "array", "items": {"fields": fields}}:
            lines = [
                line for nth, field in enumerate(fields) for line in _read_lines(f"i{nth}", field["type"])
            ]
            lines.append(f"{var}.append(make_item({', '.join(f'i{nth}' for nth in range(len(fields)))}))")
            return [
                f"{var} = []",
                "count, p = read_count(v, p)",
                "while count:",
                "    for _ in range(count):",
                *(f"        {line}" for line in lines),
                "    count, p = read_count(v, p)",
                f"{var} = tuple({var})",
            ]
        case _ if kind == _TEXTS:
            return [f"if v[p]: {var}, p = read_texts(v, p)", f"else: {var} = {{}}; p += 1"]
    raise TypeError(f"no way to read a {kind}")


def _small_or(var: str, otherwise: str) -> list[str]:
    return [
        f"{var} = v[p]",
        f"if {var} < 0x80: {var} = ({var} >> 1) ^ -({var} & 1); p += 1",
        f"else: {otherwise}",
    ]


def _define(
    name: str, arguments: Sequence[str], lines: Sequence[str], names: dict[str, Any]
) -> Callable[..., Any]:
    source = "\n    ".join([f"def {name}({', '.join(arguments)}):", *lines])
    scope = {**_TOOLS, **names}
    exec(compile(source, f"<{name}>", "exec"), scope)  # noqa: S102 - made from our own schema files only
    function: Callable[..., Any] = scope[name]
    return function
