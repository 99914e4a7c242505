"""`relevo events`: follow what happens to jobs."""

from __future__ import annotations

import difflib
import time
from typing import TYPE_CHECKING, Any

import click

from relevo.cli.output import as_json, cell, kafka_options, parse_kafka_options, parse_time, show_time

if TYPE_CHECKING:
    from relevo import JobEvent

_HEAD = ("seq", "epoch", "at", "source", "key")
_TEXT_SHOWN = 100


@click.group()
def command() -> None:
    """Follow what happens to jobs. The job log is open to everybody; this is the comfortable way."""


@command.command()
@kafka_options
@click.option("--type", "-t", "types", multiple=True, metavar="TYPE", help="Jobs of this type; repeatable.")
@click.option("--key", "-k", "keys", multiple=True, metavar="KEY", help="This job; repeatable.")
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    metavar="KIND",
    help="This kind, such as JobCompleted, in any case; repeatable.",
)
@click.option(
    "--from",
    "from_",
    default="now",
    show_default=True,
    metavar="start|now|TIME",
    help="Where to begin. TIME: 2030-01-31T09:00:00Z, or -15m.",
)
@click.option("--follow/--no-follow", default=True, show_default=True, help="Wait for more at the end.")
@click.option("--limit", "-n", type=click.IntRange(1), default=None, help="Stop after so many.")
@click.option("--json", "json_", is_flag=True, help="One JSON object for each event, with all its fields.")
def tail(
    kafka: str, cluster: str, kafka_option: tuple[str, ...], types: tuple[str, ...], keys: tuple[str, ...],
    kinds: tuple[str, ...], from_: str, follow: bool, limit: int | None, json_: bool,
) -> None:  # fmt: skip
    """Print events as they are committed.

    \b
    Examples:
      relevo events tail
      relevo events tail --type send-email --kind JobIncident --kind JobErrored
      relevo events tail --key order-4711 --from start --no-follow
      relevo events tail --from -1h --json --no-follow | jq -r .kind | sort | uniq -c

    Events of one partition come in order. With --type, what stands before --from is gone through first, once:
    an event tells its job's key, and only the job's creation tells its type.

    \b
    Kinds:
      JobCreated  JobDue  JobActivated  JobStarted  JobCheckpointed  JobCompleted  JobFailed  JobErrored
      JobTimedOut  JobIncident  JobRetried  JobUpdated  JobCancelled  JobExpired  LeaderElected
      CommandRejected
    """
    from relevo import JobEvents

    start = _start(from_)
    options: dict[str, Any] = {**parse_kafka_options(kafka_option)}
    names = [_kind(each) for each in kinds]
    wanted: dict[str, Any] = {"types": types or None, "keys": keys or None, "kinds": names or None}
    count = 0
    with JobEvents(kafka, cluster, start, follow=follow, **wanted, **options) as events:
        for count, event in enumerate(events, start=1):
            if event.skipped is not None:
                click.echo(f"no longer in the log: {event.skipped}", err=True)
            click.echo(as_json(fields_of(event)) if json_ else line_of(event))
            if limit is not None and count >= limit:
                return
    if not count:
        click.echo(f"no such event in the log of {cluster}{_since(from_)}", err=True)


@command.command()
@kafka_options
@click.option(
    "--to", required=True, metavar="TOPIC", help="An existing topic, with as many partitions as the log."
)
@click.option(
    "--schema-registry",
    "registry",
    envvar="RELEVO_SCHEMA_REGISTRY",
    required=True,
    metavar="URL",
    help="http://HOST:PORT, with USER:PASSWORD@ where it asks for it.  [env RELEVO_SCHEMA_REGISTRY]",
)
@click.option(
    "--on-gap",
    type=click.Choice(["error", "skip"]),
    default="error",
    show_default=True,
    help="Where events were trimmed off the log before they were copied.",
)
@click.option("--follow/--no-follow", default=True, show_default=True, help="Wait for more at the end.")
def mirror(
    kafka: str, cluster: str, kafka_option: tuple[str, ...], to: str, registry: str, on_gap: Any, follow: bool
) -> None:
    """Copy events into a topic in the Confluent wire format, for tools that decode by a schema registry.

    \b
    Examples:
      relevo events mirror --to jobs.events --schema-registry http://localhost:8081
      kafka-avro-console-consumer --topic jobs.events --isolation-level read_committed ...

    Each event is copied once, in order, within transactions: a mirror that was stopped or killed goes on
    where the topic ends. Schemas are registered under TOPIC-relevo.KIND.
    """
    from relevo.events.mirror import ConfluentMirror

    options: dict[str, Any] = {**parse_kafka_options(kafka_option)}
    count = 0
    with ConfluentMirror(to, registry, kafka, cluster, follow=follow, on_gap=on_gap, **options) as copying:
        while not copying.ended:
            count += copying.copy()
    click.echo(f"{count} events copied to {to}", err=True)


def _kind(text: str) -> str:
    """The kind of this name, whatever case it is written in.

    Raises:
        click.BadParameter: There is none.
    """
    from relevo.events.event_choice import KINDS

    by_name = {name.lower(): name for name in sorted(KINDS)}
    if text.lower() in by_name:
        return by_name[text.lower()]
    close = difflib.get_close_matches(text.lower(), by_name, n=1, cutoff=0.5)
    hint = f"did you mean {by_name[close[0]]}?" if close else f"there are {', '.join(by_name.values())}"
    raise click.BadParameter(f"no such kind of event: {text}; {hint}", param_hint="--kind")


def _since(from_: str) -> str:
    if from_ in ("start", "beginning"):
        return ""
    return f" since {from_}; --from start looks at all that is kept"


def _start(text: str) -> Any:
    if text in ("start", "beginning"):
        return "beginning"
    if text == "now":
        return "now"
    try:
        return parse_time(text, now_ms=int(time.time() * 1000))
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--from") from error


def fields_of(event: JobEvent) -> dict[str, Any]:
    """Everything an event says, by name."""
    record = event.event
    shown: dict[str, Any] = {
        "kind": event.kind,
        "key": event.key,
        "partition": event.partition,
        "offset": event.offset,
    }
    for name in record.FIELDS:
        if name == "job":
            job = record.job  # type: ignore[attr-defined]
            shown |= {
                field: getattr(job, field)
                for field in ("type", "priority", "retries", "backoff_ms", "backoff_max_ms", "lease_ms",
                              "run_at", "expires_at", "correlation_id", "headers", "variables")
            }  # fmt: skip
        else:
            shown[name] = getattr(record, name)
    return shown


def line_of(event: JobEvent) -> str:
    """An event for people."""
    details = []
    for name in event.event.FIELDS:
        if name in _HEAD:
            continue
        value = getattr(event.event, name)
        if name == "job":
            details.append(f"type={value.type}")
            if value.run_at:
                details.append(f"run_at={show_time(value.run_at)}")
        elif name == "retry_at":
            details.append(f"retry_at={show_time(value)}")
        else:
            text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
            if text:
                details.append(f"{name}={cell(text, _TEXT_SHOWN)}")
    place = f"{event.partition}:{event.offset}"
    head = f"{show_time(event.at)}  {place:<10} {event.kind:<15}  {cell(event.key)}"
    return f"{head}  {' '.join(details)}".rstrip()
