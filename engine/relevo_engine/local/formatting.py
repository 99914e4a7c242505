"""Prepares a broker's data folder, as Kafka wants it before the first start."""

from __future__ import annotations

import base64
import contextlib
import os
import secrets
import shutil
import subprocess
import tempfile
from pathlib import Path

from relevo_engine.local.errors import LocalError
from relevo_engine.local.kafka import KafkaPlace, KafkaTools, config_path

_TIMEOUT_S = 120.0
_META = "meta.properties"


def new_id() -> str:
    """A new id as Kafka writes them: 16 random bytes in URL-safe base64, without padding."""
    return base64.urlsafe_b64encode(b"\x01" + secrets.token_bytes(15)).decode()[:22]


def format_data(place: KafkaPlace, cluster_id: str, tools: KafkaTools) -> None:
    """Prepares a broker's data folder; one that is prepared already is left alone.

    Kafka's own tool does it, in a second or two. But for the ids in one small file its outcome is always the
    same, so that it is kept beside the libraries, and copied from then on.

    Args:
        place: The broker, whose settings are written already.
        cluster_id: See `new_id`; the same for all brokers of a cluster.
        tools: What to run the tool with.

    Raises:
        LocalError: The tool failed.
    """
    data = place.folder / "data"
    if (data / _META).exists():
        return
    kept = _kept(tools)
    if (kept / _META).is_file():
        _copy(kept, data, place.number, cluster_id)
    else:
        _run_tool(place, cluster_id, tools)
        _keep(data, kept)


def _kept(tools: KafkaTools) -> Path:
    """Named after the libraries, whose name changes with their versions."""
    return tools.libraries.with_name(f"{tools.libraries.name}-formatted")


def _copy(kept: Path, data: Path, number: int, cluster_id: str) -> None:
    data.mkdir(parents=True, exist_ok=True)
    shutil.copytree(kept, data, ignore=shutil.ignore_patterns(_META), dirs_exist_ok=True)
    ids = {"version": 1, "cluster.id": cluster_id, "node.id": number, "directory.id": new_id()}
    written = data / f".{_META}"
    written.write_text("".join(f"{key}={value}\n" for key, value in ids.items()))
    written.rename(data / _META)  # last: with it the folder counts as prepared


def _keep(data: Path, kept: Path) -> None:
    # Where it can't be kept, or somebody else was first, the tool's outcome is in place all the same.
    with contextlib.suppress(OSError):
        unfinished = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=kept.parent))
        try:
            shutil.copytree(data, unfinished / "data")
            for path in (unfinished / "data").rglob("*.checkpoint"):
                path.chmod(0o644)  # Kafka makes it read-only; a copy may have to be replaced
            os.rename(unfinished / "data", kept)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)


def _run_tool(place: KafkaPlace, cluster_id: str, tools: KafkaTools) -> None:
    options = ["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]
    options += [f"-Dlog4j2.configurationFile={tools.logging_config.as_uri()}", "-cp", f"{tools.libraries}/*"]
    tool = ["kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(config_path(place))]
    try:
        done = subprocess.run(
            [tools.java, *options, *tool],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise LocalError(f"{place.name}: Kafka's storage tool took longer than {_TIMEOUT_S:g} s") from error
    if done.returncode != 0:
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
        raise LocalError(
            f"{place.name}: Kafka's storage tool could not prepare {place.folder / 'data'}:\n{said}"
        )
