"""By which key a job is known to the dedup store: its own, or one of its business."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, TypeAlias

from relevo.errors import InvalidRequest
from relevo.worker.bounds import said
from relevo.worker.job import Job

DedupBy: TypeAlias = Literal["correlation_id"] | Callable[[Job], str | None]
KeyOf: TypeAlias = Callable[[Job], str]

KEY_BYTES_MAX: Final = 512
"""As long as a job's own key may be."""


class DedupKey:
    """Makes the store's key for jobs of one type.

    The two kinds of keys can't meet: ``<cluster>:dedup:<job key>``, and
    ``<cluster>:dedup-by:<type>:<business key>``. Two types may do different things for one piece of business.

    Args:
        cluster: The cluster's name.
        job_type: The job type.
        by: ``correlation_id``, or a function of the job; None: the job's own key. So it is for a job that has
            no correlation id, or for which the function gives None.
    """

    def __init__(self, cluster: str, job_type: str, by: DedupBy | None) -> None:
        self._own = f"{cluster}:dedup:"
        self._business = f"{cluster}:dedup-by:{job_type}:"
        self._by = (lambda job: job.correlation_id) if by == "correlation_id" else by

    def __call__(self, job: Job) -> str:
        """The key.

        Raises:
            InvalidRequest: The function failed, or gave what can't be a key.
        """
        if self._by is None:
            return self._own + job.key
        try:
            found = self._by(job)
        except Exception as error:
            raise InvalidRequest(f"dedup_by failed: {type(error).__name__}: {said(error)}") from error
        if found is None:
            return self._own + job.key
        if not isinstance(found, str) or not found:
            raise InvalidRequest(
                f"dedup_by must give a text that isn't empty, or None; it gave {_shown(found)}"
            )
        try:
            size = len(found.encode())
        except UnicodeEncodeError as error:
            raise InvalidRequest("dedup_by gave a text that has no UTF-8 form") from error
        if size > KEY_BYTES_MAX or "\0" in found:
            raise InvalidRequest(
                f"dedup_by must give at most {KEY_BYTES_MAX} bytes and no NUL; it gave {size} bytes"
            )
        return self._business + found


def _shown(found: object) -> str:
    try:
        return f"{found!r:.100}"
    except Exception:  # its own code
        return f"a {type(found).__name__}"
