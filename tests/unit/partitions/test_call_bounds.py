"""What is promised of calls that aren't answered follows from their limits, and stands in the guide so."""

from __future__ import annotations

import re
from pathlib import Path

from relevo_partitions.settings import TermSettings
from tests.support.call_bounds import GIVEN_UP_S, all_s, delivery_s, fence_s

GUIDE = Path(__file__).parents[3] / "docs" / "operations.md"


def test_the_guide_tells_the_bounds_as_they_are() -> None:
    """An operator who waits for less than a bound acts against a cluster that would have helped itself."""
    (section,) = re.findall(r"^## Calls that aren't answered\n(.*?)^## ", GUIDE.read_text(), re.S | re.M)
    told = {
        name: float(seconds)
        for name, seconds in re.findall(r"^\| ([\w ]+?) \|.*\| (\d+) s \|$", section, re.M)
    }
    assert told == {name: bound() for name, bound in GIVEN_UP_S.items()} | {"all of them": all_s()}


def test_every_call_keeps_a_limit_below_that_of_a_call_that_keeps_none() -> None:
    """A term is abandoned, and its thread lost, only where a call has broken its own limit."""
    limit_s = TermSettings().call_limit_s
    assert max(fence_s(), delivery_s(), all_s() - fence_s()) < limit_s
