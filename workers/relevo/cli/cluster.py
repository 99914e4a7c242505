"""`relevo cluster`: see how a cluster is doing."""

from __future__ import annotations

from typing import Any

import click

from relevo.cli.nodes import api_options, find_api
from relevo.cli.output import as_json, table

_STATES = ("SCHEDULED", "READY", "ACTIVE", "INCIDENT", "COMPLETED", "ERRORED", "CANCELLED", "EXPIRED")


@click.group()
def command() -> None:
    """See how a cluster is doing."""


@command.command()
@api_options
@click.option("--json", "json_", is_flag=True, help="As JSON.")
@click.pass_context
def status(ctx: click.Context, api: str | None, zookeeper: str, cluster: str, json_: bool) -> None:
    """Show nodes, and each partition with its leader, epoch, lag, and how many jobs are in each state.

    Of finished states the count is of all jobs that ever ended so.

    \b
    Examples:
      relevo cluster status
      relevo cluster status --api 127.0.0.1:8080 --json | jq '.partitions[].leader'

    Exit code 1 if a partition has no leader, or its leader could not be asked.
    """
    client = find_api(api, zookeeper, cluster)
    found = client.get("/v1/nodes")
    nodes = found["nodes"]
    answer = client.get("/v1/partitions")
    sick = any("error" in row for row in answer["partitions"])
    if json_:
        click.echo(as_json({"cluster": found.get("cluster"), "nodes": nodes, **answer}))
    else:
        if found.get("cluster"):
            click.echo(f"cluster {found['cluster']}\n")
        click.echo(table(("NODE", "API", "LEADS"), [(n["node"], n["address"], n["leads"]) for n in nodes]))
        click.echo()
        click.echo(
            table(
                ("PARTITION", "LEADER", "STANDBY", "EPOCH", "POSITION", "LAG", *_STATES),
                partition_rows(answer),
            )
        )
        for warning in warnings(answer):
            click.echo(f"warning: {warning}", err=True)
    ctx.exit(1 if sick else 0)


def partition_rows(answer: dict[str, Any]) -> list[list[object]]:
    """The cells of each partition; a dash for what isn't known."""
    rows: list[list[object]] = []
    for row in answer["partitions"]:
        known = "error" not in row
        jobs = row.get("jobs", {})
        cells = [jobs.get(state, 0) if known else "-" for state in _STATES]
        head = [row.get(name, "-") for name in ("epoch", "position", "lag")]
        rows.append([row["partition"], row["leader"] or "-", standbys(row) or "-", *head, *cells])
    return rows


def warnings(answer: dict[str, Any]) -> list[str]:
    """What isn't as it should be."""
    found = []
    for row in answer["partitions"]:
        if "error" in row:
            found.append(f"partition {row['partition']}: {row['error']['message']}")
        held = [row.get("held_back"), *(each.get("held_back") for each in row.get("standbys", ()))]
        found += dict.fromkeys(text for text in held if text)
    return found


def standbys(row: dict[str, Any]) -> str:
    """Who stands by for a partition; with how far behind, where that can't take over at once."""
    return ", ".join(
        each["node"] if each["hot"] else f"{each['node']} ({_behind(each['lag'])})"
        for each in row.get("standbys", ())
    )


def _behind(lag: int | None) -> str:
    return "loading" if lag is None else f"{lag:,} behind"
