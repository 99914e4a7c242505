"""`relevo dev`: a local cluster in the foreground."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from relevo.cli.node_watch import NodeWatch
from relevo.cli.output import addresses, parse_kafka_options
from relevo.cli.stop_signal import StopSignal

if TYPE_CHECKING:
    from relevo_engine.local.cluster import LocalCluster

_REFRESH_S = 1.0


def cluster_name(_context: click.Context, _parameter: click.Parameter, given: str | None) -> str | None:
    """Lets through what a cluster may be called; a callback of options.

    Raises:
        click.BadParameter: No node or client would take it.
    """
    from relevo_engine.topics import NAME, NAME_RULE

    if given is not None and not NAME.match(given):
        raise click.BadParameter(f"{given!r} {NAME_RULE}")
    return given


def options_of(kafka: str | None, given: Sequence[str]) -> dict[str, str]:
    """The librdkafka options given, after those of RELEVO_KAFKA_OPTIONS for a Kafka that the user names.

    Brokers that are started here ask for no password, and are told none.

    Raises:
        click.BadParameter: One has no ``=``, or the variable isn't a JSON object.
    """
    if kafka is None and not given:
        return {}
    options = parse_kafka_options(given)
    names = options if kafka is not None else [each.partition("=")[0] for each in given]
    return {name: options[name] for name in names}


@click.command()
@click.option("--nodes", type=click.IntRange(1, 9), default=3, show_default=True, help="Engine nodes.")
@click.option("--partitions", type=click.IntRange(1, 64), default=4, show_default=True, help="Partitions.")
@click.option(
    "--brokers", type=click.Choice(("1", "3")), default="1", show_default=True, help="Kafka brokers."
)
@click.option(
    "--zookeepers", type=click.Choice(("1", "3")), default="1", show_default=True, help="ZooKeeper servers."
)
@click.option(
    "--kafka", metavar="HOST:PORT", default=None, callback=addresses, help="Use this Kafka and start none."
)
@click.option(
    "--zookeeper",
    metavar="HOST:PORT",
    default=None,
    callback=addresses,
    help="Use this ZooKeeper and start none.",
)
@click.option(
    "--kafka-option", multiple=True, metavar="NAME=VALUE", help="One more librdkafka option; repeatable."
)
@click.option(
    "--cluster",
    "name",
    default="relevo",
    show_default=True,
    metavar="NAME",
    callback=cluster_name,
    help="Name of the cluster.",
)
@click.option("--type", "-t", "types", multiple=True, metavar="TYPE", help="Declare a job type; repeatable.")
@click.option(
    "--home",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    help="Keep data and logs in this folder, and start on them again.",
)
@click.option("--plain", is_flag=True, help="Lines instead of a live table.")
def command(
    nodes: int, partitions: int, brokers: str, zookeepers: str, kafka: str | None, zookeeper: str | None,
    kafka_option: tuple[str, ...], name: str, types: tuple[str, ...], home: Path | None, plain: bool,
) -> None:  # fmt: skip
    """Run a whole cluster on this machine: Kafka, ZooKeeper and engine nodes. Ctrl-C ends all of it.

    Needs a JDK 17 or newer, and Maven for the first time, unless --kafka and --zookeeper name servers that
    run already. Everything listens on loopback, and nothing is kept without --home. Kafka takes port 9092 and
    ZooKeeper 2181 where those are free, else others; a folder that was used before keeps its ports.
    Variables RELEVO_… change nothing here, but for RELEVO_KAFKA_OPTIONS together with --kafka.

    \b
    Examples:
      relevo dev
      relevo dev --nodes 1 --partitions 1 --type hello
      relevo dev --home ~/.relevo-dev                     # goes on where it was ended
      relevo dev --kafka localhost:9092 --zookeeper localhost:2181

    It prints what other terminals need to connect: environment variables for `relevo`, addresses for clients.
    """
    from relevo_engine.local.cluster import LocalCluster

    # What the node processes need: if it is missing, better told before anything starts.
    importlib.import_module("relevo_engine.node")
    stopping = StopSignal()
    cluster = LocalCluster(
        nodes,
        partitions,
        int(brokers),
        int(zookeepers),
        kafka=kafka,
        zookeeper=zookeeper,
        name=name,
        types=types,
        kafka_options=options_of(kafka, kafka_option),
        home=home,
        for_tests=False,
        usual_ports=True,
        report=lambda line: click.echo(line, err=True),
    )
    with cluster:
        click.echo(_how_to_connect(cluster))
        if plain or not sys.stdout.isatty():
            _watch_plain(cluster, stopping)
        else:
            from relevo.cli.dev_view import watch_live

            watch_live(cluster, stopping)
        click.echo("stopping", err=True)


def _how_to_connect(cluster: LocalCluster) -> str:
    lines = [
        f"cluster {cluster.name} is ready: {len(cluster.nodes)} node(s), {cluster.partitions} partition(s)",
        "",
        "In another terminal:",
        f"  export RELEVO_KAFKA={cluster.kafka} RELEVO_ZOOKEEPER={cluster.zookeeper}"
        f" RELEVO_CLUSTER={cluster.name}",
        '  relevo jobs create --type hello --variables \'{"name": "Ada"}\'',
        "  relevo events tail",
        "In Python, with these exported: relevo.Client() and relevo.WorkerApp()",
        "",
        *(
            f"{node.node_id}  pid {node.pid if node.running else 'none: it has ended'}"
            f"  http://{node.address}  log {node.log_path}"
            for node in cluster.nodes
        ),
    ]
    return "\n".join(lines)


def _watch_plain(cluster: LocalCluster, stopping: StopSignal) -> None:
    """Tells every change of leaders, and any process that ends."""
    watch = NodeWatch(cluster.nodes)
    before: dict[int, str] = {}
    while not stopping.wait(_REFRESH_S):
        cluster.brokers.check()
        for line in watch.look():
            click.echo(f"{time.strftime('%H:%M:%S')}  {line}")
        leaders = cluster.leaders()
        if leaders != before:
            shown = ", ".join(f"{p}: {node}" for p, node in sorted(leaders.items())) or "none"
            click.echo(f"{time.strftime('%H:%M:%S')}  leaders  {shown}")
            before = leaders
