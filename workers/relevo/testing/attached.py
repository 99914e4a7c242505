"""Nodes that somebody else started, on this machine."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from relevo.testing import guard
from relevo.testing.faults import DrillError
from relevo.testing.waiting import wait_for

if TYPE_CHECKING:
    from relevo_engine.api.client import ApiClient

quiet: Final = logging.getLogger("relevo.testing.zookeeper")
quiet.addHandler(logging.NullHandler())
quiet.propagate = False
_API_S: Final = 2.0
_ZOOKEEPER_S: Final = 5.0
_END_S: Final = 60.0
_READY_S: Final = 90.0


_LAUNCH: Final = """
import subprocess, sys
subprocess.Popen([sys.executable, "-I", "-S", *sys.argv[1:]], start_new_session=True)
"""


class AttachedNode:
    """A node process that was found. How it was started is remembered, so that it can be again.

    Args:
        node_id: Its name in the cluster.
        address: Of its HTTP API.
        pid: Its process.
        zookeeper: Where it registers.
        cluster: The cluster's name.
    """

    def __init__(self, node_id: str, address: str, pid: int, zookeeper: str, cluster: str) -> None:
        self.node_id = node_id
        self.log_path: Path | None = None
        self._pid = pid
        self._zookeeper = zookeeper
        self._cluster = cluster
        self._order = _how_it_runs(pid)
        self._owner = _owner(pid)
        self._api = _client(address)

    @property
    def api(self) -> ApiClient:
        """Its HTTP API."""
        return self._api

    @property
    def address(self) -> str:
        """``host:port`` of its HTTP API."""
        return self._api.address

    @property
    def running(self) -> bool:
        """Whether its process exists, frozen or not."""
        from relevo_engine.local.processes import is_running

        return is_running(self._pid)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._pid

    def kill(self) -> None:
        """``kill -9``; returns when it is gone."""
        self._signal(signal.SIGKILL)
        wait_for(lambda: not self.running, f"{self.node_id} is gone", timeout_s=_END_S)

    def freeze(self) -> None:
        """SIGSTOP; returns when it stands still."""
        from relevo_engine.local.processes import is_frozen

        self._signal(signal.SIGSTOP)
        wait_for(lambda: is_frozen(self._pid), f"{self.node_id} is frozen", timeout_s=_API_S)

    def thaw(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """SIGTERM; returns when it is gone.

        Raises:
            NotInTime: It is not, after a minute.
        """
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)
        wait_for(lambda: not self.running, f"{self.node_id} has ended", timeout_s=_END_S)

    def spawn(self) -> None:
        """Starts it again as it was started, unless whoever looks after it has done so.

        It belongs to nobody then, or, where it was part of a `relevo dev` or the like, ends with that.

        Raises:
            DrillError: It could not be started.
        """
        again = self._registered()
        if again is not None:
            self._take(*again)
            return
        log, path = tempfile.mkstemp(prefix=f"relevo-{self.node_id}-", suffix=".log")
        os.close(log)
        self.log_path = Path(path)
        # By another process that ends at once, so that the guard is nobody's child.
        launched = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _LAUNCH, guard.__file__, str(self._owner)],
            input=json.dumps({**self._order, "log": path}),
            capture_output=True,
            text=True,
            timeout=_END_S,
            check=False,
        )
        if not launched.stdout.strip().isdigit():
            raise DrillError(f"{self.node_id} could not be started again: {launched.stderr.strip()[-500:]}")
        self._pid = int(launched.stdout)

    def await_ready(self) -> None:
        """Waits until it is registered, connected and settled.

        Raises:
            NotInTime: It isn't in time.
        """

        def ready() -> bool:
            again = self._registered()
            if again is not None:
                self._take(*again)
            return again is not None and self._api.ready()

        where = f"; its log is {self.log_path}" if self.log_path is not None else ""
        wait_for(ready, f"{self.node_id} is ready again{where}", timeout_s=_READY_S)

    def _registered(self) -> tuple[str, int] | None:
        """Address and process of whoever is registered under its name and answers now."""
        address = live_addresses(self._zookeeper, self._cluster).get(self.node_id)
        row = _ask_itself(address) if address else None
        return (str(address), int(row["pid"])) if row is not None and "pid" in row else None

    def _take(self, address: str, pid: int) -> None:
        self._pid = pid
        self._api = _client(address)

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.kill(self._pid, number)
        except ProcessLookupError:
            return
        except PermissionError as error:
            raise DrillError(f"{self.node_id} is process {self._pid} of another user") from error


@dataclass(frozen=True, slots=True)
class Found:
    """A cluster that somebody else runs.

    Attributes:
        kafka: Bootstrap address.
        zookeeper: Its address.
        partitions: How many.
        nodes: Those that are processes of this machine, by name.
        unreachable: Why the others can't be reached, by name.
    """

    kafka: str
    zookeeper: str
    partitions: int
    nodes: Mapping[str, AttachedNode]
    unreachable: Mapping[str, str]


def find_nodes(kafka: str, zookeeper: str, cluster: str) -> Found:
    """Looks up a cluster's live nodes, and their processes on this machine.

    Raises:
        DrillError: ZooKeeper doesn't answer, or knows no live node of this cluster.
    """
    from relevo_engine.errors import EngineError

    addresses = live_addresses(zookeeper, cluster)
    if not addresses:
        raise DrillError(f"ZooKeeper at {zookeeper} knows no live node of a cluster {cluster!r}")
    nodes: dict[str, AttachedNode] = {}
    unreachable: dict[str, str] = {}
    partitions = 0
    for name, address in sorted(addresses.items()):
        row = _ask_itself(address)
        reason = "does not answer at " + (address or "any address") if row is None else _out_of_reach(row)
        if reason or row is None:
            unreachable[name] = str(reason)
            continue
        nodes[name] = AttachedNode(name, address, int(row["pid"]), zookeeper, cluster)
        if not partitions:
            try:
                partitions = len(nodes[name].api.get("/v1/partitions")["partitions"])
            except EngineError as error:
                raise DrillError(f"{name} did not say how many partitions there are: {error}") from error
    if not nodes:
        reasons = "; ".join(f"{name} {reason}" for name, reason in unreachable.items())
        raise DrillError(f"no node of cluster {cluster!r} can be reached: {reasons}")
    return Found(kafka, zookeeper, partitions, nodes, unreachable)


def live_addresses(zookeeper: str, cluster: str) -> dict[str, str]:
    """The live nodes' API addresses by name, as ZooKeeper has them; empty where there is no such cluster.

    Raises:
        DrillError: ZooKeeper doesn't answer.
    """
    from kazoo.client import KazooClient
    from kazoo.exceptions import KazooException, NoNodeError
    from kazoo.handlers.threading import KazooTimeoutError

    from relevo_engine.local.ports import any_accepts

    if not any_accepts(zookeeper, _API_S):
        raise DrillError(f"no ZooKeeper answers at {zookeeper}. Is it running, and is the address right?")
    client = KazooClient(hosts=zookeeper, timeout=_ZOOKEEPER_S, read_only=True, logger=quiet)
    found = {}
    try:
        client.start(timeout=_ZOOKEEPER_S)
        for name in client.get_children(f"/{cluster}/nodes"):
            try:
                data, _ = client.get(f"/{cluster}/nodes/{name}")
                found[name] = str(json.loads(data).get("address", ""))
            except NoNodeError:
                continue  # gone since
    except NoNodeError:
        return {}
    except (KazooException, KazooTimeoutError, ValueError) as error:
        raise DrillError(f"ZooKeeper at {zookeeper} did not say which nodes live: {error}") from error
    finally:
        client.stop()
        client.close()
    return found


def _client(address: str) -> ApiClient:
    from relevo_engine.api.client import ApiClient

    return ApiClient(address, _API_S)


def _ask_itself(address: str) -> dict[str, Any] | None:
    """What a node says of itself; None where it doesn't answer."""
    from relevo_engine.errors import EngineError

    try:
        rows: list[dict[str, Any]] = _client(address).get("/v1/nodes")["nodes"]
    except EngineError:
        return None
    return next((row for row in rows if row.get("self")), None)


def _out_of_reach(row: Mapping[str, Any]) -> str:
    """Why a node is no process that can be hurt from here; empty where it is."""
    if "pid" not in row:
        return "does not tell its process: it is of an older version"
    pid, host = int(row["pid"]), row.get("host")
    if host != socket.gethostname():
        return f"runs on {host}, not here"
    try:
        os.kill(pid, 0)
        _how_it_runs(pid)
    except ProcessLookupError:
        return f"is process {pid} in a container of its own"
    except (PermissionError, FileNotFoundError):
        return f"is process {pid} of another user, or how it was started can't be seen"
    return ""


def _how_it_runs(pid: int) -> dict[str, Any]:
    """Command, environment and folder of a process. Never to be shown: it may hold passwords."""
    process = Path(f"/proc/{pid}")
    pairs = (each.partition(b"=") for each in (process / "environ").read_bytes().split(b"\0") if each)
    return {
        "command": [os.fsdecode(word) for word in _command(pid)],
        "environment": {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs},
        "folder": os.readlink(process / "cwd"),
    }


def _owner(pid: int) -> int:
    """The process whose end is meant to end this one too; 0: there is none that we know of."""
    parent = _parent(pid)
    words = [os.fsdecode(word) for word in _command(parent)]
    files = [Path(word).name for word in words]
    if "guard.py" in files:
        return int(words[files.index("guard.py") + 1])
    return _parent(parent) if "keeper.py" in files else 0


def _parent(pid: int) -> int:
    # The name in brackets may itself hold brackets and blanks.
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _command(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
    except FileNotFoundError:
        return []  # it has ended since
