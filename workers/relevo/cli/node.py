"""`relevo node`: one engine node."""

from __future__ import annotations

from typing import Any, Final

import click

from relevo.cli.output import addresses

# In the order of --help: what a start usually needs first.
_FLAGS: Final = (
    "node_id", "kafka", "zookeeper", "cluster", "partitions", "api_host", "api_port", "api_advertise",
    "pulse_host", "pulse_port", "pulse_advertise", "replicas", "give_back_after_s",
    "snapshot_events", "snapshot_interval_s", "log_keep_s",
    "create_topics", "allow_unsafe_topics", "types_max", "window", "lease_expiries_max", "redispatch_after_s",
    "session_timeout_s", "settle_s", "start_timeout_s", "stop_timeout_s", "log_format", "log_level",
)  # fmt: skip


_HELP: Final = """Run one engine node: it leads some partitions, and stands by for others.

Run one per core, on several machines; each takes its share of the partitions, and takes over those of a
node that dies. A node keeps nothing on disk.

\b
Examples:
  relevo node --node-id a --kafka b1:9092,b2:9092,b3:9092 --zookeeper z1:2181,z2:2181,z3:2181
  relevo node --config /etc/relevo/node.toml
  RELEVO_KAFKA=b1:9092 RELEVO_ZOOKEEPER=z1:2181 RELEVO_NODE_ID=a relevo node

\b
A settings file:
  node_id = "a"
  kafka = "b1:9092,b2:9092,b3:9092"
  zookeeper = "z1:2181,z2:2181,z3:2181"
  partitions = 8
  [kafka_options]
  "sasl.mechanism" = "PLAIN"
  "sasl.username" = "relevo"

Flags win over the environment (RELEVO_ and the setting's name in capitals), and that over the file.
Passwords belong in the file or in RELEVO_KAFKA_OPTIONS; they are never logged.

SIGTERM or SIGINT ends the node in order: it hands its partitions over, one after the other, to nodes that
are ready for them. A second one ends it at once.

\b
Exit codes:
  0 stopped    2 settings    3 topics    4 node id in use    5 differs from the cluster
  6 Kafka or ZooKeeper not reached within --start-timeout-s    7 not stopped in time
"""


def make_command() -> click.Command:
    """The command, with a flag for each setting."""
    from relevo_engine import settings

    def start(config: str | None, **flags: Any) -> None:
        from relevo_engine.node import run

        run(settings.load(flags, config))

    config = click.Option(
        ["--config"], metavar="FILE", default=None, help="Settings as TOML, by name.  [env RELEVO_CONFIG]"
    )
    options = [_flag(name, settings.NodeSettings.model_fields[name]) for name in _FLAGS]
    return click.Command("node", params=[config, *options], callback=start, help=_HELP)


def _flag(name: str, field: Any) -> click.Option:
    """What isn't given stays None, for the other sources to fill."""
    default = (
        ""
        if name in ("node_id", "api_advertise", "pulse_host", "pulse_advertise")
        else f"  [default {field.default}]"
    )
    flag = "--" + name.replace("_", "-")
    text = f"{field.description}{default}"
    if field.annotation is bool:
        return click.Option([f"{flag}/--no-{flag[2:]}", name], default=None, help=text)
    check = addresses if name in ("kafka", "zookeeper") else None
    return click.Option([flag, name], default=None, metavar=_metavar(name), help=text, callback=check)


def _metavar(name: str) -> str:
    return {"log_format": "json|console", "log_level": "debug|info|warning|error"}.get(
        name, name.rsplit("_", 1)[-1].upper() if not name.endswith("_s") else "SECONDS"
    )
