"""A node's settings, from defaults, a TOML file, the environment and flags, in rising order of precedence."""

from __future__ import annotations

import difflib
import os
import re
import socket
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from pydantic import BaseModel, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)
from pydantic_settings import SettingsError as SourceError

from relevo_engine.errors import SettingsError
from relevo_engine.topics import NAME, NAME_RULE

ENVIRONMENT_PREFIX: Final = "RELEVO_"
ACTIVATION_RETENTION_S: Final = 7 * 24 * 3600
"""How long Kafka keeps an activation."""

_ADDRESSES: Final = re.compile(r"[^\s,:/@]+:\d{1,5}(,[^\s,:/@]+:\d{1,5})*(/[A-Za-z0-9._/-]*)?\Z")
_BROKERS: Final = re.compile(r"([A-Za-z_]+://)?(\[[0-9A-Fa-f:]+\]|[^\s,:/@]+):\d{1,5}\Z")

# Variables with our prefix that other parts read.
_READ_ELSEWHERE: Final = frozenset({"RELEVO_CONFIG", "RELEVO_API"})
# Options that the guarantees rest on, or that have a setting of their own.
_KAFKA_OPTIONS_OURS: Final = frozenset(
    {
        "acks", "auto.offset.reset", "bootstrap.servers", "delivery.report.only.error", "delivery.timeout.ms",
        "enable.auto.commit", "enable.auto.offset.store", "enable.idempotence", "enable.partition.eof",
        "group.id", "isolation.level", "log.queue", "log_level", "max.in.flight.requests.per.connection",
        "message.timeout.ms", "metadata.broker.list", "partitioner", "request.required.acks",
        "transaction.timeout.ms", "transactional.id",
    }
)  # fmt: skip


class ClusterWide(BaseModel):
    """What every node must agree on. Kept in ZooKeeper; a node with other values refuses to start."""

    partitions: int = Field(
        default=4,
        ge=1,
        le=512,
        description="Slices of all jobs, each with its own leader. Fixed once the cluster exists.",
    )
    finished_window_s: int = Field(
        default=24 * 3600,
        ge=1,
        le=10 * 365 * 24 * 3600,
        description="Seconds for which the key of a finished job is remembered, and gives that job again.",
    )
    finished_count_max: int = Field(
        default=200_000,
        ge=1,
        le=100_000_000,
        description="Finished jobs that each partition remembers at most.",
    )
    aging_s: int = Field(
        default=10,
        ge=1,
        le=24 * 3600,
        description="Seconds of waiting that make up for one step of priority, so that nothing starves.",
    )


class NodeSettings(ClusterWide, BaseSettings):
    """Settings of one node process. In the environment: the same names in capitals, after `RELEVO_`."""

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        validate_default=True,
    )
    toml_path: ClassVar[Path | None] = None

    cluster: str = Field(default="relevo", description="Name of the cluster: begins every topic.")
    node_id: str = Field(
        default_factory=lambda: _host_name(),
        description="Name of this node, unique in the cluster, kept over restarts. Default: the host's name.",
    )
    kafka: str = Field(
        default="localhost:9092", description="Kafka brokers to begin with: host:port, separated by commas."
    )
    zookeeper: str = Field(
        default="localhost:2181", description="ZooKeeper servers: host:port, by commas; a path may follow."
    )
    kafka_options: dict[str, SecretStr] = Field(
        default_factory=dict,
        repr=False,
        description="More options for the Kafka client (librdkafka): sasl.*, ssl.*. JSON in the environment.",
    )
    api_host: str = Field(
        default="127.0.0.1",
        min_length=1,  # empty would be every address of the host
        description="Address on which the HTTP API listens.",
    )
    api_port: int = Field(default=0, ge=0, le=65_535, description="Port of the HTTP API; 0: a free one.")
    api_advertise: str = Field(
        default="",
        description="host:port under which other nodes reach the HTTP API. Default: where it listens.",
    )
    session_timeout_s: float = Field(
        default=2.0,
        ge=1.0,
        le=60.0,
        description="Seconds of silence until ZooKeeper takes this node for dead, so that a frozen or cut-off"
        " one is replaced; a killed one is noticed at once. Below 2 s a busy machine's pauses end sessions."
        " ZooKeeper grants no less than twice its tickTime, which is 2 s unless set.",
    )
    replicas: int = Field(
        default=1,
        ge=1,
        le=16,
        description="Nodes that stand by for a partition besides its leader. Each keeps a copy of its state"
        " and applies its log. Nothing is lost without any; takeovers are quick with one.",
    )
    give_back_after_s: float = Field(
        default=10.0,
        ge=0.0,
        le=3600.0,
        description="Seconds that a node must have kept up with a partition before it gets it back, where"
        " it ranks first for it.",
    )
    pulse_host: str = Field(
        default="",
        description="Address for other nodes' pulse connections, by which they notice a killed process at"
        " once. Default: the HTTP API's.",
    )
    pulse_port: int = Field(default=0, ge=0, le=65_535, description="Port of the pulse; 0: a free one.")
    pulse_advertise: str = Field(
        default="",
        description="host:port under which other nodes reach this very process's pulse. Default: where it"
        " listens.",
    )
    settle_s: float = Field(
        default=2.0,
        ge=0.0,
        le=60.0,
        description="Seconds for which a node that starts leaves free partitions to others that start too.",
    )
    start_timeout_s: float = Field(
        default=0.0,
        ge=0.0,
        description="Seconds to wait for Kafka and ZooKeeper at start before giving up; 0: for ever.",
    )
    stop_timeout_s: float = Field(
        default=10.0,
        ge=0.5,
        le=600.0,
        description="Seconds an orderly stop may take; then the process leaves by force.",
    )
    snapshot_events: int = Field(
        default=5_000,
        ge=1_000,
        le=1_000_000_000,
        description="Events of a partition after which a snapshot of it is due; where it has more than four"
        " times as many open jobs, an event for every four of these.",
    )
    snapshot_interval_s: float = Field(
        default=30.0,
        ge=1.0,
        le=7 * 24 * 3600,
        description="Least seconds between two snapshots of a partition, and four times as long as one took.",
    )
    log_keep_s: int = Field(
        default=7 * 24 * 3600,
        ge=0,
        le=10 * 365 * 24 * 3600,
        description="Seconds for which the job log is kept for its readers, snapshots or not.",
    )
    held_back_s: float = Field(
        default=15.0,
        ge=11.0,
        le=3600.0,
        description="Seconds after which readers behind another program's open transaction are reported."
        " Above the 10 s after which Kafka ends one of Relevo's own.",
    )
    window: int = Field(
        default=2_000, ge=1, le=1_000_000, description="Activations outstanding per job type and partition."
    )
    lease_expiries_max: int = Field(
        default=5,
        ge=1,
        le=1_000,
        description="Leases of a job that may run out; the next makes it an incident.",
    )
    redispatch_after_s: int = Field(
        default=3600,
        ge=60,
        description="Seconds after which an activation that no worker started is emitted again.",
    )
    types_max: int = Field(
        default=100,
        ge=0,
        le=10_000,
        description="Job types up to which an undeclared one is made on first use.",
    )
    create_topics: bool = Field(default=False, description="Create the cluster's own topics where missing.")
    allow_unsafe_topics: bool = Field(
        default=False, description="Accept topics that can lose records. For throw-away clusters."
    )
    log_format: Literal["json", "console"] = Field(default="json", description="Shape of log lines.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least level logged."
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, then the environment, then the file."""
        sources: tuple[PydanticBaseSettingsSource, ...] = (init_settings, env_settings)
        if cls.toml_path is not None:
            sources += (TomlConfigSettingsSource(settings_cls, cls.toml_path),)
        return sources

    @field_validator("cluster", "node_id")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        if not NAME.match(value):
            raise ValueError(NAME_RULE)
        return value

    @field_validator("kafka")
    @classmethod
    def _is_broker_list(cls, value: str) -> str:
        for address in value.split(","):
            if not _BROKERS.match(address.strip()):
                raise ValueError("must be host:port, several separated by commas")
        return value

    @field_validator("zookeeper")
    @classmethod
    def _is_server_list(cls, value: str) -> str:
        if not _ADDRESSES.match(value):
            raise ValueError("must be host:port, several separated by commas, a path may follow")
        return value

    @field_validator("kafka_options")
    @classmethod
    def _leaves_ours_alone(cls, value: dict[str, SecretStr]) -> dict[str, SecretStr]:
        taken = sorted(_KAFKA_OPTIONS_OURS.intersection(value))
        if taken:
            raise ValueError(f"must not set {', '.join(taken)}: Relevo sets these itself")
        return value

    @model_validator(mode="after")
    def _fit_together(self) -> NodeSettings:
        if self.redispatch_after_s >= ACTIVATION_RETENTION_S:
            raise ValueError(
                f"redispatch_after_s must be below {ACTIVATION_RETENTION_S}:"
                " so many seconds does Kafka keep an activation"
            )
        return self

    @property
    def agreed(self) -> dict[str, int]:
        """What every node of the cluster must agree on, by name."""
        return {name: getattr(self, name) for name in ClusterWide.model_fields}

    @property
    def kafka_options_plain(self) -> dict[str, str]:
        """`kafka_options` with the secrets readable, for the Kafka client and nobody else."""
        return {name: value.get_secret_value() for name, value in self.kafka_options.items()}


def load(flags: Mapping[str, Any] | None = None, config: Path | str | None = None) -> NodeSettings:
    """Reads the settings.

    Args:
        flags: Values given on the command line; None stands for a flag that wasn't given.
        config: A TOML file with settings by name. Default: the one that RELEVO_CONFIG names, if any.

    Raises:
        SettingsError: The file can't be read, or a setting is unknown or wrong. The message names
            each one and where it came from, and holds no secret.
    """
    named = config or os.environ.get("RELEVO_CONFIG")
    path = Path(named) if named else None
    in_file = _read_toml(path) if path is not None else {}
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    # Sources are looked up on the class, and this one knows its file.
    loader = type("LoadedNodeSettings", (NodeSettings,), {"toml_path": path, "__module__": __name__})
    try:
        loaded: NodeSettings = loader(**given)
    except ValidationError as error:
        problems = error.errors(include_input=False, include_url=False)
        lines = [_explain(dict(each), given, in_file, path) for each in problems]
        raise SettingsError("the settings are wrong:\n" + "\n".join(f"  {line}" for line in lines)) from error
    except SourceError as error:
        raise SettingsError(_explain_source(str(error))) from error
    return loaded


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Names in the environment that look like settings and are none, with what may be meant."""
    known = {ENVIRONMENT_PREFIX + name.upper() for name in NodeSettings.model_fields} | _READ_ELSEWHERE
    found = []
    for name in sorted(environment):
        # Names with two words after the prefix's own (RELEVO_TEST_KAFKA) belong to other tools.
        if name.startswith(ENVIRONMENT_PREFIX) and name not in known and not name.startswith("RELEVO_TEST_"):
            found.append(name + _suggestion(name, known))
    return found


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"the settings file {path} can't be read: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"the settings file {path} isn't TOML: {error}") from error


def _explain(
    problem: dict[str, Any], given: Mapping[str, Any], in_file: Mapping[str, Any], path: Path | None
) -> str:
    location = problem["loc"]
    message = str(problem["msg"]).removeprefix("Value error, ")
    if not location:
        return message
    name = str(location[0])
    rest = "".join(f"[{part!r}]" for part in location[1:])
    if name in given:
        source = f"--{name.replace('_', '-')}"
    elif ENVIRONMENT_PREFIX + name.upper() in {variable.upper() for variable in os.environ}:
        source = ENVIRONMENT_PREFIX + name.upper()
    elif name in in_file:
        source = str(path)
    else:
        source = "default"
    if problem["type"] == "extra_forbidden":
        suggestion = _suggestion(name, NodeSettings.model_fields)
        return f"{name}{rest} ({source}): there is no such setting{suggestion}"
    field = NodeSettings.model_fields.get(name)
    meaning = f" [{field.description}]" if field is not None and field.description else ""
    return f"{name}{rest} ({source}): {message[:1].lower()}{message[1:]}{meaning}"


def _explain_source(message: str) -> str:
    found = re.search(r'field "(\w+)"', message)
    name = found.group(1) if found else ""
    variable = ENVIRONMENT_PREFIX + name.upper() if name else "a RELEVO_ variable"
    return (
        f'the settings are wrong:\n  {name} ({variable}): must be JSON, such as {{"sasl.mechanism": "PLAIN"}}'
    )


def _suggestion(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _host_name() -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname()).strip("-_")[:64] or "node"
