"""`relevo_schemas.compiled`: objects made past their class's ``__init__`` are what it would have made."""

from __future__ import annotations

from typing import Any

import pytest

from relevo_schemas.codec import default_codec, record_classes
from relevo_schemas.compiled import datum_of, maker_of, pair_maker_of
from relevo_schemas.events import JobUpdated
from relevo_schemas.files import load_current
from relevo_schemas.job import JobSpec
from relevo_schemas.records import Record, record

default_codec()  # fills in FIELDS


@record
class Nothing:
    """Has no fields."""


@record
class One:
    """Has one."""

    value: Any


def schema_of(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {"fields": [{"name": name, "type": kind} for name, kind in fields]}


@pytest.mark.parametrize("cls", record_classes(), ids=lambda cls: cls.__name__)
def test_a_record_is_what_its_class_makes_of_the_values(cls: type[Record]) -> None:
    """A field that stays unset, or gets another's value, would be a lie about what happened."""
    datum = {name: number for number, name in enumerate(cls.FIELDS)}
    made = maker_of(cls, load_current(cls.__name__))(datum)
    assert type(made) is cls
    assert made == cls(*datum.values())
    assert datum_of(cls.FIELDS)(made) == datum


@pytest.mark.parametrize("size", [0, 6, 8])
def test_another_number_of_values_is_refused(size: int) -> None:
    """What a damaged record gives must not pass as a whole one."""
    make = maker_of(JobUpdated, load_current("JobUpdated"))
    with pytest.raises(ValueError, match="values to unpack"):
        make({str(number): number for number in range(size)})


@pytest.mark.parametrize(
    ("kind", "values", "refused"),
    [
        ("int", [0, -(2**31), 2**31 - 1], [2**31, -(2**31) - 1]),
        (["null", "int"], [None, 2**31 - 1], [2**31]),
        ("long", [2**31, -(2**63)], []),
    ],
    ids=str,
)
def test_numbers_keep_to_the_width_of_their_field(kind: Any, values: list[Any], refused: list[Any]) -> None:
    """Fastavro reads longer ones, which others who read the log refuse."""
    single = maker_of(One, schema_of(("value", kind)))
    both = schema_of(("value", kind), ("a", "string"), ("b", "long"))
    pair = pair_maker_of(One, ["value"], JobSpec, ["key"], both)
    for value in values:
        assert single({"value": value}) == One(value)
        assert pair({"value": value, "a": "k", "b": 0})[0] == One(value)
    for value in refused:
        with pytest.raises(ValueError, match=r"value is .* not an integer of 32 bits"):
            single({"value": value})
        with pytest.raises(ValueError, match=r"value is .* not an integer of 32 bits"):
            pair({"value": value, "a": "k", "b": 0})


def test_a_record_without_fields_is_made_too() -> None:
    """Of nothing, and of nothing else."""
    make = maker_of(Nothing, schema_of())
    assert make({}) == Nothing()
    with pytest.raises(ValueError, match="too many values"):
        make({"a": 1})


def test_a_pair_shares_the_values_out() -> None:
    """The carrier's own come first, then the job's, then what is told about both."""
    job_names = ["key", "retries"]
    carried = [("job_key", "string"), ("job_retries", "int"), ("length", "long")]
    make = pair_maker_of(One, ["value"], JobSpec, job_names, schema_of(("value", "long"), *carried))
    carrier, job, last = make({"value": 1, "job_key": "k", "job_retries": 3, "length": 9})
    assert (carrier, job.key, job.retries, last) == (One(1), "k", 3, 9)
    assert (type(carrier), type(job)) == (One, JobSpec)
    _, job, _ = pair_maker_of(Nothing, [], JobSpec, job_names, schema_of(*carried))(
        {"job_key": "k", "job_retries": 3, "length": 9}
    )
    assert job.key == "k"
