"""Kafka's own command line tools, as an operator runs them."""

from __future__ import annotations

import subprocess

from relevo_engine.local.install import ensure_installed
from relevo_engine.local.java import find_java

TIMEOUT_S = 120.0


def transactions(kafka: str, *arguments: str) -> str:
    """What ``kafka-transactions.sh`` prints."""
    tool = [
        find_java(), "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData",
        "-cp", f"{ensure_installed().kafka}/*", "org.apache.kafka.tools.TransactionsCommand",
        "--bootstrap-server", kafka,
    ]  # fmt: skip
    done = subprocess.run([*tool, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
