"""The live table of `relevo dev`."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from relevo.cli.cluster import standbys
from relevo.cli.node_watch import NodeWatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Group
    from rich.table import Table

    from relevo.cli.stop_signal import StopSignal
    from relevo_engine.local.cluster import LocalCluster

_REFRESH_S: Final = 1.0
_STATES: Final = ("SCHEDULED", "READY", "ACTIVE", "INCIDENT", "COMPLETED", "ERRORED", "CANCELLED", "EXPIRED")
COLUMNS: Final = (
    "partition", "leader", "standby", "epoch", "lag", *map(str.lower, _STATES), "commands/s", "done/s",
)  # fmt: skip
_DROPPED_FIRST: Final = (
    "commands/s", "expired", "cancelled", "errored", "scheduled", "standby", "epoch", "lag", "done/s",
)  # fmt: skip
"""What a narrow terminal does without, in this order."""
_GAP: Final = 2
_TOLD_MAX: Final = 5


@dataclass
class Rates:
    """How fast commands are decided and jobs completed, from one look to the next."""

    _before: dict[int, tuple[float, int, int]] = field(default_factory=dict)

    def update(self, row: dict[str, Any], now: float) -> tuple[float, float] | None:
        """Commands and completions per second of a partition; None at the first look."""
        completed = int(row["jobs"].get("COMPLETED", 0))
        position = int(row["position"])
        last = self._before.get(row["partition"])
        self._before[row["partition"]] = (now, position, completed)
        if last is None or now <= last[0]:
            return None
        seconds = now - last[0]
        return max(0.0, (position - last[1]) / seconds), max(0.0, (completed - last[2]) / seconds)


def watch_live(cluster: LocalCluster, stopping: StopSignal) -> None:
    """Shows the cluster until it is to be stopped.

    Raises:
        LocalError: Kafka or ZooKeeper ended.
    """
    from rich.live import Live

    rates = Rates()
    nodes = NodeWatch(cluster.nodes)
    with Live(auto_refresh=False, transient=False) as live:
        while True:
            cluster.brokers.check()
            nodes.look()
            live.update(render(cluster, rates, nodes.told[-_TOLD_MAX:], live.console.width), refresh=True)
            if stopping.wait(_REFRESH_S):
                return


def render(cluster: LocalCluster, rates: Rates, told: Sequence[str], width: int) -> Group:
    """Nodes above, partitions below, and under them what went wrong.

    Args:
        cluster: What is shown.
        rates: From the looks before.
        told: Lines about nodes that ended.
        width: Of the terminal, in columns.
    """
    from rich.console import Group
    from rich.text import Text

    answer = _ask(cluster)
    rows = answer["partitions"] if answer else []
    leaders = [row["leader"] for row in rows if "error" not in row]
    faults = [f"partition {row['partition']}: {row['error']['message']}" for row in rows if "error" in row]
    if answer is None:
        faults.append("no node answers")
    return Group(
        _node_table(cluster, leaders),
        _partition_table(cells_of(rows, rates, time.monotonic()), width),
        *(Text(line, "red") for line in (*faults, *told)),
        Text("Ctrl-C ends the cluster", "dim"),
    )


def _ask(cluster: LocalCluster) -> dict[str, Any] | None:
    from relevo_engine.api.client import ApiClient
    from relevo_engine.errors import EngineError

    for node in cluster.nodes:
        if node.running:
            try:
                found: dict[str, Any] = ApiClient(node.address, timeout_s=2.0).get("/v1/partitions")
                return found
            except EngineError:
                continue
    return None


def _node_table(cluster: LocalCluster, leaders: list[str]) -> Table:
    from rich.table import Table

    table = Table("node", "process", "API", "leads", title=f"cluster {cluster.name}", title_justify="left")
    for node in cluster.nodes:
        process = f"{node.pid}" if node.running else "[red]ended[/red]"
        led = leaders.count(node.node_id)
        table.add_row(node.node_id, process, f"http://{node.address}", str(led))
    return table


def cells_of(rows: list[dict[str, Any]], rates: Rates, now: float) -> list[list[str]]:
    """What stands in all columns, the sums last."""
    lines = []
    sums = dict.fromkeys(_STATES, 0)
    totals = [0.0, 0.0]
    for row in rows:
        if "error" in row:
            following = [row["leader"] or "none", standbys(row) or "-"]
            lines.append([str(row["partition"]), *following, *["-"] * (len(COLUMNS) - 3)])
            continue
        for state in _STATES:
            sums[state] += row["jobs"].get(state, 0)
        counts = [f"{row['jobs'].get(state, 0):,}" for state in _STATES]
        speed = rates.update(row, now)
        shown = [f"{value:,.0f}" for value in speed] if speed is not None else ["", ""]
        totals = [total + value for total, value in zip(totals, speed or (0.0, 0.0), strict=True)]
        lag = f"{row['lag']:,}" if "lag" in row else ""
        head = [str(row["partition"]), row["leader"], standbys(row) or "none"]
        lines.append([*head, str(row["epoch"]), lag, *counts, *shown])
    last = [f"{count:,}" for count in sums.values()]
    return [*lines, ["all", "", "", "", "", *last, *(f"{total:,.0f}" for total in totals)]]


def columns_for(lines: list[list[str]], width: int) -> list[str]:
    """The columns that fit a terminal of this width uncut; who leads and the states people act on stay."""
    wide = {name: max(len(name), *(len(line[place]) for line in lines)) for place, name in enumerate(COLUMNS)}
    kept = list(COLUMNS)
    for name in _DROPPED_FIRST:
        if sum(wide[each] + _GAP for each in kept) <= width:
            break
        kept.remove(name)
    return kept


def _partition_table(lines: list[list[str]], width: int) -> Table:
    from rich import box
    from rich.table import Table

    names = columns_for(lines, width)
    places = [COLUMNS.index(name) for name in names]
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for name in names:
        table.add_column(name, justify="left" if name in COLUMNS[:3] else "right", no_wrap=True)
    for line in lines[:-1]:
        table.add_row(*(line[place] for place in places))
    table.add_section()
    table.add_row(*(lines[-1][place] for place in places))
    return table
