"""The numbers of the live table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from relevo.cli.cluster import partition_rows
from relevo.cli.dev_view import COLUMNS, Rates, cells_of, columns_for
from relevo.cli.node_watch import NodeWatch
from relevo_engine.local.errors import ServerError


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
            {
                "partition": 0,
                "leader": "a",
                "epoch": 3,
                "position": 7,
                "lag": 0,
                "jobs": {"READY": 2},
                "standbys": [
                    {"node": "b", "hot": True, "lag": 0},
                    {"node": "c", "hot": False, "lag": 1_200},
                    {"node": "d", "hot": False, "lag": None},
                ],
            },
            {"partition": 1, "leader": None, "error": {"code": "NO_LEADER", "message": "nobody leads it"}},
        ]
    }
    rows = partition_rows(answer)
    assert rows[0][:8] == [0, "a", "b, c (1,200 behind), d (loading)", 3, 7, 0, 0, 2]
    assert set(rows[1][1:]) == {"-"}


def test_eighty_columns_show_who_leads_and_the_states_uncut() -> None:
    """A table cut to "le…" and "inc…" tells nobody which partition is stuck."""
    jobs = {"READY": 123_456, "ACTIVE": 12_345, "COMPLETED": 1_234_567}
    rows: list[dict[str, Any]] = [
        {"partition": 0, "leader": "node-1", "epoch": 12, "position": 7, "lag": 1_234, "jobs": jobs},
        {"partition": 1, "leader": None, "error": {"code": "NO_LEADER", "message": "nobody leads it"}},
    ]
    lines = cells_of(rows, Rates(), 1.0)
    assert columns_for(lines, 80) == [
        "partition", "leader", "epoch", "lag", "ready", "active", "incident", "completed", "done/s",
    ]  # fmt: skip
    assert columns_for(lines, 200) == list(COLUMNS)
    assert {"leader", "ready", "active", "incident", "completed"} <= set(columns_for(lines, 20))
    assert lines[1][:3] == ["1", "none", "-"]
    assert lines[-1][0] == "all"


class Node:
    """A node process that can be ended."""

    def __init__(self, name: str, pid: int) -> None:
        self.node_id, self.pid, self.running = name, pid, True
        self.log_path, self.config_path = Path("n/server.log"), Path("n/node.toml")

    def check(self) -> None:
        raise ServerError(self.node_id, "is gone (exit code -9)", self.log_path, "", port_taken=False)


def test_a_node_that_ends_is_told_once_with_what_to_do() -> None:
    nodes = [Node("node-1", 11), Node("node-2", 12)]
    watch = NodeWatch(nodes)  # type: ignore[arg-type]
    assert watch.look() == []
    nodes[1].running = False
    (line,) = watch.look()
    assert line.startswith("node-2 (pid 12) is gone (exit code -9)")
    assert "relevo node --config n/node.toml" in line
    assert watch.look() == []
    assert watch.told == [line]
