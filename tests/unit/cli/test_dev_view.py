"""The numbers of the live table."""

from __future__ import annotations

from relevo.cli.cluster import partition_rows
from relevo.cli.dev_view import Rates


def row(position: int, completed: int) -> dict[str, object]:
    return {"partition": 0, "position": position, "jobs": {"COMPLETED": completed}}


def test_rates_are_differences_over_time() -> None:
    rates = Rates()
    assert rates.update(row(100, 10), 50.0) is None
    assert rates.update(row(300, 20), 52.0) == (100.0, 5.0)
    assert rates.update(row(300, 20), 53.0) == (0.0, 0.0)


def test_a_count_that_goes_back_is_no_negative_rate() -> None:
    rates = Rates()
    rates.update(row(100, 10), 1.0)
    assert rates.update(row(0, 0), 2.0) == (0.0, 0.0)


def test_a_partition_that_was_not_reached_is_a_row_of_dashes() -> None:
    answer = {
        "partitions": [
            {"partition": 0, "leader": "a", "epoch": 3, "position": 7, "lag": 0, "jobs": {"READY": 2}},
            {"partition": 1, "leader": None, "error": {"code": "NO_LEADER", "message": "nobody leads it"}},
        ]
    }
    rows = partition_rows(answer)
    assert rows[0][:7] == [0, "a", 3, 7, 0, 0, 2]
    assert set(rows[1][1:]) == {"-"}
