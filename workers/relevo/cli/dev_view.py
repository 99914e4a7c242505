"""The live table of `relevo dev`."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from relevo.cli.stop_signal import StopSignal
    from relevo_engine.local.cluster import LocalCluster

_REFRESH_S: Final = 1.0
_OPEN: Final = ("SCHEDULED", "READY", "ACTIVE", "INCIDENT")
_FINISHED: Final = ("COMPLETED", "ERRORED", "CANCELLED", "EXPIRED")


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
    with Live(auto_refresh=False, transient=False) as live:
        while True:
            cluster.brokers.check()
            live.update(render(cluster, rates), refresh=True)
            if stopping.wait(_REFRESH_S):
                return


def render(cluster: LocalCluster, rates: Rates) -> Group:
    """Nodes above, partitions below."""
    from rich.console import Group
    from rich.text import Text

    answer = _ask(cluster)
    rows = answer["partitions"] if answer else []
    leaders = [row["leader"] for row in rows if "error" not in row]
    return Group(
        _node_table(cluster, leaders), _partition_table(rows, rates), Text("Ctrl-C ends the cluster", "dim")
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


def _partition_table(rows: list[dict[str, Any]], rates: Rates) -> Table:
    from rich.table import Table

    table = Table(
        "partition", "leader", "epoch", "lag", *map(str.lower, (*_OPEN, *_FINISHED)), "commands/s", "done/s"
    )
    for column in table.columns[2:]:
        column.justify = "right"
    now = time.monotonic()
    totals = [0.0, 0.0]
    for row in rows:
        if "error" in row:
            table.add_row(str(row["partition"]), f"[red]{row['error']['message']}[/red]")
            continue
        counts = [f"{row['jobs'].get(state, 0):,}" for state in (*_OPEN, *_FINISHED)]
        speed = rates.update(row, now)
        shown = [f"{value:,.0f}" for value in speed] if speed is not None else ["", ""]
        totals = [total + value for total, value in zip(totals, speed or (0.0, 0.0), strict=True)]
        lag = str(row.get("lag", ""))
        table.add_row(str(row["partition"]), row["leader"], str(row["epoch"]), lag, *counts, *shown)
    table.add_section()
    sums = [
        f"{sum(r['jobs'].get(state, 0) for r in rows if 'error' not in r):,}"
        for state in (*_OPEN, *_FINISHED)
    ]
    table.add_row("all", "", "", "", *sums, *(f"{total:,.0f}" for total in totals))
    return table
