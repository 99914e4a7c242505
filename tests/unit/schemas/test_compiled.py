"""`relevo_schemas.compiled`: objects made past their class's ``__init__`` are what it would have made."""

from __future__ import annotations

import pytest

from relevo_schemas.codec import default_codec, record_classes
from relevo_schemas.compiled import datum_of, maker_of, pair_maker_of
from relevo_schemas.delivery import Activation
from relevo_schemas.events import JobUpdated
from relevo_schemas.job import JobSpec
from relevo_schemas.records import Record, record

default_codec()  # fills in FIELDS


@record
class Nothing:
    """Has no fields."""


@pytest.mark.parametrize("cls", record_classes(), ids=lambda cls: cls.__name__)
def test_a_record_is_what_its_class_makes_of_the_values(cls: type[Record]) -> None:
    """A field that stays unset, or gets another's value, would be a lie about what happened."""
    values = [f"value {number}" for number in range(len(cls.FIELDS))]
    made = maker_of(cls, cls.FIELDS)(iter(values))
    assert type(made) is cls
    assert made == cls(*values)
    assert datum_of(cls.FIELDS)(made) == dict(zip(cls.FIELDS, values, strict=True))


@pytest.mark.parametrize("values", [(), range(6), range(8)], ids=len)
def test_another_number_of_values_is_refused(values: range) -> None:
    """What a damaged record gives must not pass as a whole one."""
    with pytest.raises(ValueError, match="values to unpack"):
        maker_of(JobUpdated, JobUpdated.FIELDS)(values)


def test_a_record_without_fields_is_made_too() -> None:
    """Of nothing, and of nothing else."""
    make = maker_of(Nothing, ())
    assert make(()) == Nothing()
    with pytest.raises(ValueError, match="too many values"):
        make((1,))


def test_a_pair_shares_the_values_out() -> None:
    """The carrier's own come first, then the job's, then what is told about both."""
    names = ("key", "type", "priority", "retries")
    make = pair_maker_of(Activation, Activation.FIELDS[:2], JobSpec, names)
    carrier, job, last = make((1, 2, "k", "t", 5, 3, "last"))
    assert [getattr(carrier, name) for name in Activation.FIELDS[:2]] == [1, 2]
    assert [getattr(job, name) for name in names] == ["k", "t", 5, 3]
    assert (type(carrier), type(job), last) == (Activation, JobSpec, "last")
    _, job, _ = pair_maker_of(Nothing, (), JobSpec, names)(("k", "t", 5, 3, "last"))
    assert job.key == "k"
