"""When something answered first is known to the question, not to whoever waited for the last one."""

from __future__ import annotations

import threading
import time

import pytest

from relevo.testing.waiting import FirstAnswer, NotInTime


def test_the_first_answer_counts_although_others_take_longer() -> None:
    """The clock of a replacement that begins when all servers are up shows every replacement as instant."""
    late = threading.Event()
    answered: list[float] = []

    def early() -> bool:
        answered.append(time.time() * 1000)
        return len(answered) > 2

    with FirstAnswer([late.is_set, early]) as first:
        at = first.at_wall()
        late.set()
    assert answered[1] <= at <= answered[2], "the time at which it was asked, and no later"


def test_without_an_answer_there_is_no_moment() -> None:
    with FirstAnswer([lambda: False]) as first, pytest.raises(NotInTime, match="nobody answered"):
        first.at_wall(0.01)
