"""What is known of each job, on disk: memory stays the same however many jobs a log tells of."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Final, Self

from relevo_engine.core.job import OPEN_STATES, JobState
from relevo_engine.verify.findings import VerifyError

CACHED_MAX: Final = 40_000
"""Jobs that are held in memory; the least recently met go to the disk, half of them at a time."""
PAGE_CACHE_KIB: Final = 32 * 1024
_ASK_MAX: Final = 500
_STATES: Final = tuple(JobState)
_CODES: Final = {state: code for code, state in enumerate(_STATES)}
OPEN_CODES: Final = frozenset(_CODES[state] for state in OPEN_STATES)
UNKNOWN: Final = -1
"""Code of a state, or number of an attempt, that the log doesn't tell because its beginning is gone."""
REFUSED: Final = -2
PENDING: Final = -3


class JobFacts:
    """What the log has told of one job so far.

    Attributes:
        partition: Where the job was met.
        code: Its state: an index of `JobState`'s members, or `UNKNOWN`, `REFUSED` (never created), `PENDING`
            (its creation isn't decided).
        attempt: Number of its last attempt, 0 before the first, or `UNKNOWN`.
        ended_at: Time of its end, 0 while it is open.
        nth: Which job of its partition it was to end, from 1.
    """

    __slots__ = ("attempt", "code", "ended_at", "nth", "partition")

    def __init__(self, partition: int, code: int, attempt: int = 0, ended_at: int = 0, nth: int = 0) -> None:
        self.partition = partition
        self.code = code
        self.attempt = attempt
        self.ended_at = ended_at
        self.nth = nth

    @property
    def exists(self) -> bool:
        """The job was created."""
        return self.code > REFUSED

    @property
    def ended(self) -> bool:
        """The job ended."""
        return self.code >= 0 and self.code not in OPEN_CODES

    @property
    def state(self) -> JobState | None:
        """Where it stands, None where that isn't known."""
        return _STATES[self.code] if self.code >= 0 else None


def code_of(state: JobState) -> int:
    """The code of a state."""
    return _CODES[state]


class FactStore:
    """Facts by job key, in a temporary database with a bounded cache. For one thread.

    Rows are found by a digest of the key of 16 bytes: two jobs with the same are not to be expected before
    there are 10^17 of them.

    Args:
        folder: Where to put the database; by default where temporary files go (``TMPDIR``).
        cached_max: Jobs held in memory.
    """

    def __init__(self, folder: Path | None = None, *, cached_max: int = CACHED_MAX) -> None:
        self._cached_max = cached_max
        self._cache: dict[str, JobFacts] = {}
        with TemporaryDirectory(prefix="relevo-verify-", dir=folder) as place:
            self._base = sqlite3.connect(Path(place) / "facts.sqlite", isolation_level=None)
            self._prepare()
            self._where = Path(place).parent
        # The file has no name any more: nothing stays behind, however this process ends.

    def _prepare(self) -> None:
        for line in (
            "PRAGMA page_size = 8192",
            "PRAGMA journal_mode = OFF",
            "PRAGMA synchronous = OFF",
            "PRAGMA locking_mode = EXCLUSIVE",
            f"PRAGMA cache_size = -{PAGE_CACHE_KIB}",
            "CREATE TABLE jobs (id BLOB PRIMARY KEY, partition INTEGER, code INTEGER, attempt INTEGER,"
            " ended_at INTEGER, nth INTEGER) WITHOUT ROWID",
        ):
            self._base.execute(line)

    def __enter__(self) -> Self:
        """Use it in a ``with`` block: its end deletes the database."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Delete the database."""
        self.close()

    def __len__(self) -> int:
        """Jobs in memory."""
        return len(self._cache)

    def close(self) -> None:
        """Delete the database. Twice does no harm."""
        self._base.close()

    def load(self, keys: Collection[str]) -> None:
        """Have the facts of all ``keys`` at hand for `get`, until the next call.

        Raises:
            VerifyError: The disk is full.
        """
        cache = self._cache
        wanted: dict[str, None] = {}
        for key in keys:
            facts = cache.pop(key, None)
            if facts is not None:
                cache[key] = facts  # the latest met stand last
            else:
                wanted[key] = None
        try:
            if len(cache) + len(wanted) > self._cached_max:
                # Those that are wanted now stand last, so that what goes is never among them.
                self._evict(len(cache) // 2, keep=set(keys))
            self._fetch(wanted)
        except sqlite3.Error as error:
            raise VerifyError(
                f"The facts about the jobs can't be kept in {self._where}: {error}. "
                "Point TMPDIR to a folder with more room: about 40 bytes for each job."
            ) from error

    def get(self, key: str) -> JobFacts | None:
        """What is known of a job that was loaded, None where nothing is."""
        return self._cache.get(key)

    def put(self, key: str, facts: JobFacts) -> None:
        """Note the facts of a job that was loaded."""
        self._cache[key] = facts

    def _evict(self, count: int, keep: set[str]) -> None:
        cache = self._cache
        going = [key for key in islice(cache, count) if key not in keep]
        rows = []
        for key in going:
            facts = cache.pop(key)
            rows.append((_digest(key), facts.partition, facts.code, facts.attempt, facts.ended_at, facts.nth))
        rows.sort()  # neighbours go to the same page
        self._base.execute("BEGIN")
        self._base.executemany("INSERT OR REPLACE INTO jobs VALUES (?, ?, ?, ?, ?, ?)", rows)
        self._base.execute("COMMIT")

    def _fetch(self, keys: Iterable[str]) -> None:
        by_digest = sorted((_digest(key), key) for key in keys)
        for first in range(0, len(by_digest), _ASK_MAX):
            some = dict(by_digest[first : first + _ASK_MAX])
            marks = ",".join("?" * len(some))
            query = f"SELECT * FROM jobs WHERE id IN ({marks})"  # noqa: S608 - marks are question marks
            for digest, *row in self._base.execute(query, list(some)):
                self._cache[some[digest]] = JobFacts(*row)


def _digest(key: str) -> bytes:
    return blake2b(key.encode(), digest_size=16).digest()
