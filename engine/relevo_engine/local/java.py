"""Which Java runs the servers."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess

from relevo_engine.local.errors import InstallError

JAVA_MIN = 17
_ADVICE = (
    f"Install a JDK {JAVA_MIN} or newer (Debian and Ubuntu: apt-get install openjdk-17-jdk-headless; Fedora:"
    " dnf install java-21-openjdk-headless; macOS: brew install openjdk), put it on PATH or point JAVA_HOME"
    " at it. Or use brokers that run already (--kafka and --zookeeper)."
)


@functools.cache
def find_java() -> str:
    """Finds a Java of at least version 17: JAVA_HOME's where it is set, else the one on PATH.

    Returns:
        The path of the ``java`` command.

    Raises:
        InstallError: There is none, or it is too old.
    """
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None:
        raise InstallError(f"Kafka and ZooKeeper need Java, and no `java` is on PATH. {_ADVICE}")
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=60, check=True
        ).stderr
    except (OSError, subprocess.SubprocessError) as error:
        where = "JAVA_HOME" if home else "PATH"
        raise InstallError(
            f"the Java that {where} names, {java}, does not run ({error}). {_ADVICE}"
        ) from error
    version = java_major(answer)
    if version is None or version < JAVA_MIN:
        raise InstallError(f"{java} is Java {version or 'of an unknown version'}. {_ADVICE}")
    return java


def java_major(answer: str) -> int | None:
    """Reads the major version from what ``java -version`` printed, as in 17.0.15 or, of old, 1.8.0."""
    found = re.search(r'version "(?:1\.)?(\d+)', answer)
    return int(found.group(1)) if found else None
