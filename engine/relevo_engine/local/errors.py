"""What goes wrong with local servers. Every message says what happened, where, and what to do."""

from __future__ import annotations

from pathlib import Path

from relevo_engine.errors import EngineError


class LocalError(EngineError):
    """A local server could not be installed, started or reached."""


class InstallError(LocalError):
    """The servers' libraries could not be put in place: no JDK, no Maven, no network."""


class FolderInUseError(LocalError):
    """Another process runs servers on the same data folder."""


class ServerError(LocalError):
    """A server ended, or did not get ready.

    Attributes:
        server: Its name, such as ``kafka-1``.
        reason: What happened to it.
        log_path: The file with everything it said.
        log_tail: The last lines of that file.
        port_taken: Whether it ended because somebody else listens on its port.
    """

    def __init__(self, server: str, reason: str, log_path: Path, log_tail: str, *, port_taken: bool) -> None:
        indented = "\n".join(f"    {line}" for line in log_tail.splitlines()) or "    (it wrote nothing)"
        super().__init__(f"{server} {reason}. The end of its log, {log_path}:\n{indented}")
        self.server = server
        self.reason = reason
        self.log_path = log_path
        self.log_tail = log_tail
        self.port_taken = port_taken


class StartCancelledError(LocalError):
    """A start was given up because another server of its set failed; that one's error is the one to show."""
