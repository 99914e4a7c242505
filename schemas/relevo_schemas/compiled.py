"""Functions compiled for one kind of record: they name its fields, where a loop would look each of them up.

As `dataclasses` and `collections.namedtuple` do it. Every record that is read or written goes through them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any


def datum_of(names: Sequence[str]) -> Callable[[Any], dict[str, Any]]:
    """A function that gives an object's attributes of these names as fastavro wants them."""
    fields = ", ".join(f"{name!r}: it.{name}" for name in names)
    made: Callable[[Any], dict[str, Any]] = _function("it", [f"return {{{fields}}}"])
    return made


def maker_of(cls: type, names: Sequence[str]) -> Callable[[Iterable[Any]], Any]:
    """A function that makes an object of ``cls`` from the values of all its attributes, ``names``, in order.

    It gives them to the object itself, in half the time of a call of ``cls``: for classes whose ``__init__``
    does that and no more. Another number of values is a `ValueError`.
    """
    lines = ["it = new(cls)", f"{_places('it', names)}, = values" if names else "() = values", "return it"]
    made: Callable[[Iterable[Any]], Any] = _function("values", lines, new=object.__new__, cls=cls)
    return made


def pair_maker_of(
    cls: type, names: Sequence[str], inner: type, inner_names: Sequence[str]
) -> Callable[[Iterable[Any]], tuple[Any, Any, Any]]:
    """As `maker_of`, for a ``cls`` and the ``inner`` whose values follow its own; and one value more.

    The function gives both, and the last value. What else they hold is left to the caller.
    """
    places = ", ".join([*(_places("it", names),) * bool(names), _places("within", inner_names), "last"])
    lines = ["it, within = new(cls), new(inner)", f"{places} = values", "return it, within, last"]
    made: Callable[[Iterable[Any]], tuple[Any, Any, Any]] = _function(
        "values", lines, new=object.__new__, cls=cls, inner=inner
    )
    return made


def _places(it: str, names: Sequence[str]) -> str:
    return ", ".join(f"{it}.{name}" for name in names)


def _function(argument: str, lines: Sequence[str], **known: Any) -> Any:
    body = "\n".join(f"    {line}" for line in lines)
    exec(f"def made({argument}):\n{body}", known)  # noqa: S102 - names of our own files
    return known["made"]
