"""`relevo topics`: create and check the Kafka topics of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from relevo.cli.output import kafka_options, parse_kafka_options
from relevo_schemas.job import TYPE_PATTERN

if TYPE_CHECKING:
    from relevo_engine.topic_admin import TopicAdmin

_partitions = click.option(
    "--partitions",
    envvar="RELEVO_PARTITIONS",
    type=click.IntRange(1, 512),
    default=4,
    show_default=True,
    help="Slices of all jobs. Fixed once the cluster exists.  [env RELEVO_PARTITIONS]",
)
_allow_unsafe = click.option(
    "--allow-unsafe-topics",
    envvar="RELEVO_ALLOW_UNSAFE_TOPICS",
    is_flag=True,
    help="Accept topics that can lose records: for throw-away clusters.  [env RELEVO_ALLOW_UNSAFE_TOPICS]",
)


@click.group()
def command() -> None:
    """Create and check the Kafka topics of a cluster.

    A cluster has three topics, and one more for each job type:

    \b
      CLUSTER.commands            what clients and workers ask for; kept until trimmed
      CLUSTER.log                 what happened; the source of truth, kept until trimmed
      CLUSTER.snapshots           what the log has led to, for quick starts; compacted
      CLUSTER.activations.TYPE    what workers of a type are to do; kept for 7 days

    Records are safe on three brokers: replication 3, min.insync.replicas 2, no unclean leader election.
    Anything less is refused unless --allow-unsafe-topics is given.
    """


@command.command()
@kafka_options
@_partitions
@click.option("--type", "-t", "types", multiple=True, metavar="TYPE", help="Declare a job type; repeatable.")
@_allow_unsafe
def init(
    kafka: str,
    cluster: str,
    kafka_option: tuple[str, ...],
    partitions: int,
    types: tuple[str, ...],
    allow_unsafe_topics: bool,
) -> None:
    """Create the topics that are missing. Those that exist are left as they are, and checked.

    \b
    Examples:
      relevo topics init --partitions 8 --type send-email --type make-invoice
      relevo topics init --kafka b1:9092,b2:9092 --cluster billing
      relevo topics init --allow-unsafe-topics                 # one broker on your own machine
    """
    for each in types:
        if not TYPE_PATTERN.match(each):
            raise click.BadParameter(
                f"{each!r}: 100 letters, digits, '_' and '-' at most, the first a letter or digit",
                param_hint="--type",
            )
    admin = _admin(kafka, cluster, parse_kafka_options(kafka_option))
    made = admin.init(partitions, types, allow_unsafe=allow_unsafe_topics)
    for name in made:
        click.echo(f"created {name}")
    _judge(admin, partitions, allow_unsafe=allow_unsafe_topics, just_made=True)
    if not made:
        click.echo("nothing to do: all topics are there")


@command.command()
@kafka_options
@_partitions
@_allow_unsafe
def check(
    kafka: str, cluster: str, kafka_option: tuple[str, ...], partitions: int, allow_unsafe_topics: bool
) -> None:
    """Say what is wrong with the topics, and the command that mends it. Exit code 3 if anything is.

    \b
    Examples:
      relevo topics check
      relevo topics check --cluster billing --partitions 8
    """
    admin = _admin(kafka, cluster, parse_kafka_options(kafka_option))
    if not _judge(admin, partitions, allow_unsafe=allow_unsafe_topics):
        click.echo(f"the topics of {cluster} are as they must be")


def _admin(kafka: str, cluster: str, options: dict[str, str]) -> TopicAdmin:
    from relevo_engine.topic_admin import TopicAdmin

    try:
        return TopicAdmin(kafka, cluster, options)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _judge(admin: TopicAdmin, partitions: int, *, allow_unsafe: bool, just_made: bool = False) -> bool:
    """Shows what was accepted as a warning and refuses the rest. Says whether anything was found."""
    from relevo_engine.errors import TopicsError
    from relevo_engine.topic_admin import require_safe

    findings = admin.check(partitions, just_made=just_made)
    for each in require_safe(findings, allow_unsafe=allow_unsafe):
        click.echo(f"warning: {each}", err=True)
    held_up = [each for each in findings if each.type_only]
    if held_up:
        raise TopicsError(f"{len(held_up)} topic(s) of job types can't be used as they are; see above")
    if any(each.slow_only for each in findings):
        raise TopicsError("nodes work like this, but take no snapshots; see above")
    return bool(findings)
