"""Records which classes a broker loads, so that every later one starts in two thirds of the time.

    python -m relevo_engine.local.classes

The record is a class data archive of the Java virtual machine's, beside the libraries. A machine that can't
use it, being of another version say, starts without.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from pathlib import Path

from relevo_engine.local.errors import LocalError
from relevo_engine.local.formatting import format_data, new_id
from relevo_engine.local.install import ensure_installed
from relevo_engine.local.java import find_java
from relevo_engine.local.kafka import KafkaPlace, KafkaTools, class_archive, kafka_spec
from relevo_engine.local.ports import free_ports
from relevo_engine.local.server import Server
from relevo_engine.local.warmup import warm_coordinators

_STOP_TIMEOUT_S = 120.0
"""The archive is written while the broker ends."""


def record_classes() -> Path | None:
    """Starts a broker, has it do a little, and keeps the archive; does nothing where there is one.

    Returns:
        Where the archive is; None where the broker ended without writing one.

    Raises:
        LocalError: The broker did not start.
        OSError: There is no room, or no right, to keep the archive.
    """
    installed = ensure_installed()
    archive = class_archive(installed.kafka)
    if archive.is_file():
        return archive
    tools = KafkaTools(find_java(), installed.kafka, installed.kafka_logging)
    client_port, controller_port = free_ports(2)
    with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=archive.parent) as folder:
        place = KafkaPlace(1, Path(folder) / "kafka-1", client_port, controller_port)
        written = Path(folder) / archive.name
        spec = kafka_spec(place, [place], tools=tools, throw_away=True)
        java, *rest = spec.command
        recording = (java, f"-XX:ArchiveClassesAtExit={written}", *rest)
        server = Server(dataclasses.replace(spec, command=recording))
        format_data(place, new_id(), tools)
        server.start()
        try:
            warm_coordinators(place.address)
        finally:
            server.stop(timeout_s=_STOP_TIMEOUT_S)
        if not written.is_file():
            return None
        written.rename(archive)
    return archive


def main() -> int:
    """The command line. Brokers start without an archive too: what keeps it away is told, and no error."""
    try:
        archive = record_classes()
    except (LocalError, OSError) as error:
        sys.stderr.write(f"brokers will start more slowly, without a record of their classes: {error}\n")
        return 0
    sys.stdout.write(f"Classes:   {archive or 'not recorded'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
