"""`relevo drill`: hurt a cluster under load, and prove that nothing was lost."""

from __future__ import annotations

import importlib
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import click

from relevo.cli.dev import cluster_name, options_of
from relevo.cli.drill_table import lines_of
from relevo.cli.output import addresses

if TYPE_CHECKING:
    from relevo.testing.drills.session import Session

NAMES = (
    "leader-kill", "leader-freeze", "zookeeper-cut", "zookeeper-down", "zookeeper-restart", "broker-kill",
    "broker-restart", "worker-kill", "worker-freeze", "rolling-restart", "effects", "soak", "all",
)  # fmt: skip
_COUNTS = click.Choice(("1", "3"))


class _OfGiven(click.Option):
    """What a given cluster is set to. Its variable, meant for that, counts together with --kafka only."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        return super().resolve_envvar_value(ctx) if ctx.params.get("kafka") else None


@click.command()
@click.argument("names", type=click.Choice(NAMES), metavar="DRILL...", nargs=-1, required=True)
@click.option(
    "--repeat", type=click.IntRange(1, 10_000), default=5, show_default=True, help="Repeats of each."
)
@click.option("--brokers", type=_COUNTS, default="1", show_default=True, help="Kafka brokers to start.")
@click.option(
    "--zookeepers", type=_COUNTS, default="1", show_default=True, help="ZooKeeper servers to start."
)
@click.option(
    "--nodes", type=click.IntRange(1, 9), default=3, show_default=True, help="Engine nodes to start."
)
@click.option("--partitions", type=click.IntRange(1, 64), default=4, show_default=True, help="Partitions.")
@click.option("--workers", type=click.IntRange(2, 16), default=2, show_default=True, help="Worker processes.")
@click.option(
    "--rate",
    type=click.FloatRange(1, 20_000),
    default=100,
    show_default=True,
    help="Jobs per second, in all.",
)
@click.option("--seed", type=int, default=None, help="Of what is left to chance; told at the start.")
@click.option(
    "--duration", type=click.FloatRange(20), default=600, show_default=True, help="Seconds of a soak."
)
@click.option(
    "--warm-up",
    "warm_up_s",
    type=click.FloatRange(0),
    default=45,
    show_default=True,
    help="Seconds of work, at ten times the rate, before the first drill, where the brokers are new.",
)
@click.option(
    "--down-s", type=click.FloatRange(1), default=60, show_default=True, help="Seconds without ZooKeeper."
)
@click.option(
    "--redis",
    default="",
    metavar="URL",
    help="The workers' dedup store; none: one in each. Default: an own redis-server, where there is one.",
)
@click.option(
    "--effects",
    default="",
    metavar="URL",
    help="Where the effects of `effects` happen: postgresql://… or redis://….",
)
@click.option(
    "--jobs", type=click.IntRange(1, 10_000_000), default=10_000, show_default=True, help="Jobs of `effects`."
)
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(0.1),
    default=3,
    show_default=True,
    help="Seconds between two kills of `effects`.",
)
@click.option(
    "--json",
    "json_path",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("build/drill-report.json"),
    show_default=True,
    help="The report.",
)
@click.option(
    "--picture",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("build/drill-report.html"),
    show_default=True,
    help="Throughput and latency over time.",
)
@click.option(
    "--keep-logs",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    metavar="FOLDER",
    help="Keep logs and ledgers in this folder.",
)
@click.option(
    "--kafka",
    metavar="HOST:PORT",
    default=None,
    is_eager=True,  # read before what depends on it
    callback=addresses,
    help="Drill a cluster that runs already.",
)
@click.option("--zookeeper", metavar="HOST:PORT", default=None, callback=addresses, help="Its ZooKeeper.")
@click.option("--cluster", default=None, metavar="NAME", callback=cluster_name, help="Its name.")
@click.option(
    "--finished-window-s",
    cls=_OfGiven,
    envvar="RELEVO_FINISHED_WINDOW_S",
    type=click.IntRange(1),
    default=24 * 3600,
    show_default=True,
    help="Its setting, with --kafka: for so long an ended job's key can't be created anew."
    "  [env RELEVO_FINISHED_WINDOW_S]",
)
@click.option(
    "--finished-count-max",
    cls=_OfGiven,
    envvar="RELEVO_FINISHED_COUNT_MAX",
    type=click.IntRange(1),
    default=200_000,
    show_default=True,
    help="Its setting, with --kafka: so many ended jobs are remembered.  [env RELEVO_FINISHED_COUNT_MAX]",
)
@click.option("--kafka-option", multiple=True, metavar="NAME=VALUE", help="One more librdkafka option.")
def command(
    names: tuple[str, ...], brokers: str, zookeepers: str, seed: int | None, duration: float,
    json_path: Path, picture: Path, kafka: str | None, zookeeper: str | None, cluster: str | None,
    kafka_option: tuple[str, ...], **given: Any,
) -> None:  # fmt: skip
    """Hurt a cluster under a steady load, and prove that nothing was lost.

    \b
    leader-kill        kill -9 of a leader
    leader-freeze      SIGSTOP of a leader until another leads, then SIGCONT
    zookeeper-cut      a leader cut off from ZooKeeper only
    zookeeper-down     no ZooKeeper for a minute; and again, with a leader killed meanwhile
    zookeeper-restart  the ensemble's leader killed, or the only server restarted
    broker-kill        kill -9 of one of three brokers (needs --brokers 3)
    broker-restart     a broker restarted
    worker-kill        kill -9 of a worker
    worker-freeze      SIGSTOP of a worker until others have done its jobs, then SIGCONT
    rolling-restart    SIGTERM of each node in turn, and a start
    all                all of the above, one after the other
    soak               random ones of the above every 10 to 20 s, for --duration
    effects            kill -9 of random workers all the time, while each of --jobs has an effect in a
                       database, which counts them in the end (needs --effects)

    Several run one after the other. It starts a cluster of its own, with --kafka, --zookeeper and --cluster
    it takes one that runs, as far as its nodes are processes of yours on this machine; what it stopped there
    it starts again. Kafka and ZooKeeper are hurt only where it has started them.

    \b
    Examples:
      relevo drill leader-kill --repeat 20
      relevo drill all --brokers 3 --zookeepers 3 --warm-up 240
      relevo drill leader-kill rolling-restart
      relevo drill soak --duration 3600 --seed 7
      relevo drill effects --jobs 100000 --rate 400 --effects postgresql://me@localhost/scratch
      relevo drill leader-kill --kafka localhost:9092 --zookeeper localhost:2181 --cluster relevo

    Exit code 0 if no accepted job was lost, the verifier has nothing to say against the log, and whatever had
    to hold did; 1 otherwise. Times are told as met or missed, and fail nothing. Ctrl-C ends everything and
    writes what was measured.
    """
    if (kafka is None) != (zookeeper is None):
        raise click.UsageError(
            "--kafka and --zookeeper belong together: both for a cluster that runs already"
        )
    if ("effects" in names) != bool(given["effects"]):
        raise click.UsageError("`relevo drill effects` and --effects URL belong together")
    # What the nodes need: if it is missing, better told before anything starts.
    importlib.import_module("relevo_engine.node")
    from relevo.testing.drills.catalog import chosen
    from relevo.testing.drills.session import Session
    from relevo.testing.drills.settings import DrillSettings

    settings = DrillSettings(
        brokers=int(brokers),
        zookeepers=int(zookeepers),
        seed=int(time.time()) if seed is None else seed,
        duration_s=duration,
        kafka=kafka,
        zookeeper=zookeeper,
        cluster=cluster or ("relevo" if kafka else "drill"),
        kafka_options=options_of(kafka, kafka_option),
        **given,
    )
    signal.signal(signal.SIGTERM, _interrupt)
    _say(f"seed {settings.seed}")
    session = Session(settings, _say, lambda grown: _write(grown, json_path, picture))
    try:
        session.run(chosen(names))
    finally:
        click.echo("\n".join(lines_of(session.report)))
        click.echo(f"written to {json_path} and {picture}")
    click.get_current_context().exit(0 if session.report.held else 1)


def _say(line: str) -> None:
    click.echo(f"{time.strftime('%H:%M:%S')}  {line}", err=True)
    sys.stderr.flush()


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _write(session: Session, json_path: Path, picture: Path) -> None:
    from relevo.testing.picture import page

    session.report.write(json_path)
    settings, machine = session.report.settings, session.report.machine
    parts = {
        "partitions": "partitions", "nodes": "nodes", "brokers": "broker(s)",
        "zookeepers": "ZooKeeper server(s)",
    }  # fmt: skip
    # Of a given cluster not all is known.
    known = [f"{settings[name]} {what}" for name, what in parts.items() if settings[name]]
    load = ", ".join([f"{settings['rate']:g} jobs/s", *known])
    subtitle = f"{load}; {machine['cores']} cores, {machine['memory_gib']} GiB, {machine['processor']}"
    picture.parent.mkdir(parents=True, exist_ok=True)
    picture.write_text(page("Drills", subtitle, session.panels), encoding="utf-8")
