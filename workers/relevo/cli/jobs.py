"""`relevo jobs`: create, look at, cancel and retry jobs."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from relevo.cli.nodes import api_options, find_api, node_options
from relevo.cli.output import (
    as_json,
    cell,
    kafka_options,
    parse_kafka_options,
    result_fields,
    show_time,
    shown,
    table,
)
from relevo.client.requests import RETRIES_MAX, check_reason

if TYPE_CHECKING:
    from relevo import Client, JobHandle
    from relevo.cli.job_lines import BadLine
    from relevo.client.core import WaitFor

_WAITS = ("accepted", "decided", "result")
_STATES = ("scheduled", "ready", "active", "incident")
_ERROR_SHOWN = 60


@click.group()
def command() -> None:
    """Create, look at, cancel and retry jobs.

    \b
    States of a job:
      SCHEDULED   waits for its time, or for the next attempt after a failure
      READY       waits in the engine to be handed out
      ACTIVE      handed to workers
      INCIDENT    needs a person: relevo jobs retry, or cancel
      COMPLETED  ERRORED  CANCELLED  EXPIRED      finished

    create, cancel and retry talk to Kafka; get and list ask a node.
    """


def _client(kafka: str, cluster: str, kafka_option: tuple[str, ...], timeout_s: float) -> Client:
    from relevo import Client
    from relevo.cli.reach import require_cluster

    options: dict[str, Any] = dict(parse_kafka_options(kafka_option))
    require_cluster(kafka, cluster, options, timeout_s)
    return Client(kafka, cluster, **options)


@command.command()
@kafka_options
@click.argument("file", required=False, type=click.File("rb"), metavar="[FILE]")
@click.option("--type", "-t", "type", metavar="TYPE", help="Job type. Needed unless FILE is given.")
@click.option("--variables", metavar="JSON", help="The job's input.  [default {}]")
@click.option("--key", metavar="KEY", help="The job's identity: the same key twice is the same job.")
@click.option("--priority", type=int, help="Higher runs earlier, -100 to 100.  [default 0]")
@click.option("--retries", type=int, help="Failures answered with another attempt.  [default 3]")
@click.option("--backoff", type=float, metavar="SECONDS", help="Pause after the first failure.  [default 1]")
@click.option("--backoff-max", type=float, metavar="SECONDS", help="Longest pause.  [default 300]")
@click.option("--lease", type=float, metavar="SECONDS", help="Time an attempt has.  [default 30]")
@click.option("--run-at", metavar="TIME", help="Not before: 2030-01-31T09:00:00Z, or +15m.")
@click.option("--expires-at", metavar="TIME", help="EXPIRED if still open then.")
@click.option("--correlation-id", metavar="TEXT", help="Your own identifier.")
@click.option(
    "--header", "headers", multiple=True, metavar="NAME=VALUE", help="Handed to the worker; repeatable."
)
@click.option(
    "--wait",
    type=click.Choice(_WAITS),
    default="accepted",
    show_default=True,
    help="Return when Kafka has it, the engine has answered, or the job has ended.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Longest wait.",
)
@click.option("--json", "json_", is_flag=True, help="One JSON object for each job.")
@click.pass_context
def create(
    ctx: click.Context, /, kafka: str, cluster: str, kafka_option: tuple[str, ...], file: BinaryIO | None,
    wait: str, timeout: float, json_: bool, **flags: Any,
) -> None:  # fmt: skip
    """Create one job from flags, or many from JSON lines in FILE (- for standard input).

    \b
    A line:
      {"type": "send-email", "variables": {"to": "ada@example.com"}}
    Its fields are named like the flags (backoff_max, run_at, …); all but type may be left out. Lines that are
    bad are told by number on standard error, and don't hold up the others.

    \b
    Examples:
      relevo jobs create --type send-email --variables '{"to": "ada@example.com"}' --wait result
      relevo jobs create jobs.jsonl
      gunzip < jobs.jsonl.gz | relevo jobs create - --json > created.jsonl

    Creating a key that exists makes no second job, so an interrupted import can be repeated where lines have
    keys. "accepted" means that Kafka has the command and says nothing of that; with --wait decided or result
    it is told: "already there", and the state of the job that is.

    With --json and many, there is one object for each line. With --wait decided or result it comes when the
    answer is known, not always in the lines' order: outcome, created, state of the job that was there
    already, result, and error where it didn't go well. A job without an object has no answer yet.

    Exit code 1 if a line was bad, a job was refused, or one didn't come as far as was waited for.
    """
    from relevo.cli.bulk import create_lines
    from relevo.cli.job_lines import from_flags

    if file is not None:
        given = [name for name, value in flags.items() if value not in (None, ())]
        if given:
            raise click.UsageError(f"FILE and --{given[0].replace('_', '-')} exclude each other")
        with _client(kafka, cluster, kafka_option, timeout) as client:
            good = create_lines(client, file, wait=wait, timeout_s=timeout, json_=json_)
        ctx.exit(0 if good else 1)
    if not flags["type"]:
        raise click.UsageError("say what to create: --type TYPE, or a FILE of JSON lines")
    job = from_flags(flags, now_ms=int(time.time() * 1000))
    with _client(kafka, cluster, kafka_option, timeout) as client:
        sure: WaitFor = "accepted" if wait == "accepted" else "decided"
        handle = client.create(**{n: getattr(job, n) for n in job.__slots__}, wait=sure, timeout=timeout)
        result = client.await_result(handle, timeout) if wait == "result" else None
    if json_:
        click.echo(as_json({"key": handle.key, "partition": handle.partition, "created": handle.created,
                            "state": handle.state, "result": result and result_fields(result)}))  # fmt: skip
    else:
        click.echo(_told(handle))
        if result is not None:
            click.echo(f"{result.state} {shown(_result_text(result))}".rstrip())
    ctx.exit(0 if result is None or result.state == "COMPLETED" else 1)


def _told(handle: JobHandle) -> str:
    if handle.created is False:
        return f"{cell(handle.key)} already there: {handle.state}"
    made = "created" if handle.created else "accepted"
    return f"{cell(handle.key)} {made} (partition {handle.partition})"


def _result_text(result: Any) -> str:
    if result.result:
        return str(result.result.decode(errors="replace"))
    return ": ".join(part for part in (result.code, result.message) if part)


@command.command()
@api_options
@click.argument("key")
@click.option("--json", "json_", is_flag=True, help="As JSON.")
def get(api: str | None, zookeeper: str, cluster: str, key: str, json_: bool) -> None:
    """Show one job, as its partition's leader knows it.

    \b
    Examples:
      relevo jobs get order-4711
      relevo jobs get order-4711 --json | jq .variables

    Of a job that ended, only how and when is kept here, for a limited time. All that ever happened to it:
      relevo events tail --key order-4711 --from start --no-follow
    """
    job = find_api(api, zookeeper, cluster).job(key)
    if json_:
        click.echo(as_json(job))
        return
    width = max(len(name) for name in job)
    for name, value in job.items():
        text = cell(value) if isinstance(value, str) else shown(as_json(value))
        if name.endswith(("_at", "_until")) or name == "since":
            text = show_time(int(value))
        click.echo(f"{name.ljust(width)}  {text}")


@command.command(name="list")
@api_options
@click.option("--state", type=click.Choice(_STATES, case_sensitive=False), help="Only those in this state.")
@click.option("--type", "-t", "job_type", metavar="TYPE", help="Only those of this type.")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="At most so many.")
@click.option("--json", "json_", is_flag=True, help="One JSON object for each job.")
@click.pass_context
def list_(
    ctx: click.Context, /, api: str | None, zookeeper: str, cluster: str, state: str | None,
    job_type: str | None, limit: int, json_: bool,
) -> None:  # fmt: skip
    """List open jobs of all partitions, the oldest first.

    \b
    Examples:
      relevo jobs list --state incident
      relevo jobs list --type send-email --limit 100 --json

    Exit code 1 if a partition could not be asked.
    """
    query = {"state": state and state.upper(), "type": job_type, "limit": limit}
    answer = find_api(api, zookeeper, cluster).get("/v1/jobs", query)
    if json_:
        for job in answer["jobs"]:
            click.echo(as_json(job))
    else:
        rows = [(j["key"], j["type"], j["state"], j["priority"], j["attempt"], show_time(j["created_at"]),
                 cell(j.get("error", ""), _ERROR_SHOWN)) for j in answer["jobs"]]  # fmt: skip
        click.echo(table(("KEY", "TYPE", "STATE", "PRIORITY", "ATTEMPT", "CREATED", "ERROR"), rows))
    if len(answer["jobs"]) == limit:
        click.echo(f"note: these are the oldest {limit:,}, there may be more (--limit, up to 1000)", err=True)
    for each in answer["not_reached"]:
        click.echo(f"warning: not complete: {_where(each)}: {cell(each['reason'])}", err=True)
    ctx.exit(1 if answer["not_reached"] else 0)


def _where(each: dict[str, Any]) -> str:
    return f"node {each['node']}" if each["partition"] is None else f"partition {each['partition']}"


_timeout = click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Longest wait.",
)


@command.command()
@kafka_options
@click.argument("keys", nargs=-1, required=True, metavar="KEY…|-")
@click.option("--reason", default="", metavar="TEXT", help="Why, for the log.")
@_timeout
@click.option("--json", "json_", is_flag=True, help="One JSON object for each job.")
@click.pass_context
def cancel(
    ctx: click.Context, /, kafka: str, cluster: str, kafka_option: tuple[str, ...], keys: tuple[str, ...],
    reason: str, timeout: float, json_: bool,
) -> None:  # fmt: skip
    """End jobs that are still open. A handler that is running one is told.

    \b
    Examples:
      relevo jobs cancel order-4711 --reason "ordered twice"
      relevo jobs list --state incident --limit 1000 --json | relevo jobs cancel -

    With - the keys come from standard input, as JSON lines: objects with a "key", or texts. So any key comes
    whole, whatever is in it; a shell or xargs takes some apart, and others for options (put -- before those).

    What becomes of each is told, and one that is refused, or not decided in time, doesn't hold up the others.
    Where Kafka doesn't answer the rest is not tried, and named. It is safe to run it again: a job that has
    ended is refused.

    Exit code 1 if one was not cancelled, or it isn't known, or a line was bad; 6 if Kafka was not reached.
    """
    from relevo.cli.job_lines import read_keys
    from relevo.cli.retries import cancel_all

    if "-" in keys and len(keys) > 1:
        raise click.UsageError("- stands alone: it reads the keys from standard input")
    check_reason(reason)
    wanted: Iterable[str | BadLine] = keys
    if keys == ("-",):
        wanted = read_keys(click.open_file("-", "rb"))
    with _client(kafka, cluster, kafka_option, timeout) as client:
        ctx.exit(cancel_all(client, wanted, reason, timeout_s=timeout, json_=json_))


@command.command()
@kafka_options
@node_options
@click.argument("keys", nargs=-1, metavar="[KEY…]")
@click.option("--all-incidents", is_flag=True, help="All jobs that wait for a person, instead of KEYs.")
@click.option("--type", "-t", "job_type", metavar="TYPE", help="With --all-incidents: only of this type.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=100_000,
    show_default=True,
    metavar="NUMBER",
    help="With --all-incidents: at most so many.",
)
@click.option(
    "--retries",
    type=click.IntRange(0, RETRIES_MAX),
    default=3,
    show_default=True,
    help="Failures it may have from now on.",
)
@_timeout
@click.option("--json", "json_", is_flag=True, help="One JSON object for each job.")
@click.pass_context
def retry(
    ctx: click.Context, /, kafka: str, cluster: str, kafka_option: tuple[str, ...], api: str | None,
    zookeeper: str, keys: tuple[str, ...], all_incidents: bool, job_type: str | None, limit: int,
    retries: int, timeout: float, json_: bool,
) -> None:  # fmt: skip
    """Make jobs ready now that are incidents, or wait for their next attempt.

    \b
    Examples:
      relevo jobs retry order-4711
      relevo jobs retry --all-incidents --type send-email --retries 5

    A refused job doesn't hold up the others. After an interruption run it again: a job that is ready by then
    is left as it is.

    Exit code 1 if one was refused, isn't known to be ready again, or a partition could not be asked; 6 if
    Kafka was not reached.
    """
    from relevo.cli.retries import Incidents, retry_all

    if bool(keys) == all_incidents:
        raise click.UsageError("name jobs, or give --all-incidents")
    if job_type is not None and not all_incidents:
        raise click.UsageError("--type belongs to --all-incidents")
    with _client(kafka, cluster, kafka_option, timeout) as client:
        if keys:
            ctx.exit(retry_all(client, keys, retries, total=len(keys), timeout_s=timeout, json_=json_))
        incidents = Incidents(find_api(api, zookeeper, cluster), job_type, limit)
        code = retry_all(client, incidents, retries, total=0, timeout_s=timeout, json_=json_)
    for each in incidents.not_reached:
        click.echo(f"warning: not complete: {_where(each)}: {cell(each['reason'])}", err=True)
    if incidents.hidden:
        click.echo("note: many failed again meanwhile and may hide others: run it again later", err=True)
    if incidents.cut:
        click.echo(f"note: there are more than {limit:,}: run it again, or raise --limit", err=True)
    ctx.exit(code or (1 if incidents.not_reached else 0))
