"""The data folder of a set of local servers: one owner at a time, and no leftovers of owners that died."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import tempfile
import time
from pathlib import Path

from relevo_engine.local.errors import FolderInUseError, LocalError
from relevo_engine.local.processes import is_running

_LOCK = ".lock"
_SHAPE = "cluster.json"
_PREFIX = "relevo-local-"
# As long as a server may take to end after its starter was killed, and a little more.
_WAIT_S = 25.0


class Home:
    """A locked data folder.

    The lock belongs to the open file, which the keepers of the servers inherit: it is held until the last
    server is gone, even when the process that took it was killed.
    """

    def __init__(self, path: Path, lock_fd: int, *, throw_away: bool) -> None:
        """Use `open_home`."""
        self.path = path
        self.lock_fd = lock_fd
        self._throw_away = throw_away

    def close(self) -> None:
        """Removes the folder if it is a temporary one, and gives up the lock. All servers must be gone."""
        if self._throw_away:
            shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.lock_fd)

    def read_shape(self) -> dict[str, object]:
        """What `write_shape` wrote, or an empty dictionary.

        Raises:
            LocalError: The file is damaged.
        """
        path = self.path / _SHAPE
        if not path.exists():
            return {}
        try:
            shape = json.loads(path.read_text())
        except ValueError as error:
            raise LocalError(
                f"{path} is damaged ({error}); remove {self.path} to start with empty servers"
            ) from error
        if not isinstance(shape, dict):
            raise LocalError(f"{path} is damaged (no object); remove {self.path} to start with empty servers")
        return shape

    def write_shape(self, shape: dict[str, object]) -> None:
        """Keeps what a later start on the same folder must agree with."""
        path = self.path / _SHAPE
        unfinished = path.with_suffix(".new")
        unfinished.write_text(json.dumps(shape, indent=2) + "\n")
        unfinished.replace(path)


def open_home(path: Path | None) -> Home:
    """Locks a data folder, making it if need be.

    Where the process that used it is gone and its servers are about to end, their end is waited for.

    Args:
        path: The folder, whose data are kept; None for a new one that `Home.close` removes.

    Raises:
        FolderInUseError: Another process uses it, or servers of one that is gone don't end.
    """
    if path is None:
        _sweep()
        while True:
            home = _try_lock(Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getuid()}-")), throw_away=True)
            if home is not None:  # else somebody's sweep came between the two steps
                return home
    path = path.expanduser().resolve()
    try:
        path.mkdir(parents=True, exist_ok=True)
        deadline = time.monotonic() + _WAIT_S
        while (home := _try_lock(path, throw_away=False)) is None:
            owner = _owner(path)
            if owner is not None and is_running(owner):
                raise FolderInUseError(
                    f"another process (pid {owner}) uses {path}; end that one, or use another folder"
                )
            if time.monotonic() > deadline:
                raise FolderInUseError(
                    f"servers of another process, which is gone itself, still use {path} after {_WAIT_S:g} s;"
                    " end them, or use another folder"
                )
            time.sleep(0.1)
    except OSError as error:
        raise LocalError(f"can't use {path} as a data folder: {error}") from error
    return home


def _try_lock(path: Path, *, throw_away: bool) -> Home | None:
    lock = path / _LOCK
    try:
        fd = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if lock.stat().st_ino == os.fstat(fd).st_ino:
            # For those who find it locked.
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
            return Home(path, fd, throw_away=throw_away)
    except (BlockingIOError, FileNotFoundError):
        pass  # held by another process, or removed by it
    os.close(fd)
    return None


def _owner(path: Path) -> int | None:
    """The process that locked the folder; None while that isn't known."""
    try:
        return int((path / _LOCK).read_text())
    except (OSError, ValueError):
        return None


def _sweep() -> None:
    """Removes temporary folders of starters that were killed, once their servers are gone too."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}{os.getuid()}-*"):
        with contextlib.suppress(OSError):  # another starter's sweep may be quicker; and a start needs none
            if folder.stat().st_uid != os.getuid() or not (folder / _LOCK).exists():
                continue
            abandoned = _try_lock(folder, throw_away=True)
            if abandoned is not None:
                abandoned.close()
