"""Checks what a job log promises its readers, and proves that no accepted job was lost.

`verify_log` reads a cluster's log from Kafka. `LogVerifier` checks records that somebody else reads.
"""

from __future__ import annotations

from relevo_engine.verify.checks import LogRecord, LogVerifier
from relevo_engine.verify.findings import Fault, Invariant, VerifyError, Violation
from relevo_engine.verify.logcheck import LogCheck
from relevo_engine.verify.report import Counts, Expected, PartitionReport, Takeover, VerifyReport
from relevo_engine.verify.run import verify_log
from relevo_engine.verify.stories import Remembered

__all__ = [
    "Counts",
    "Expected",
    "Fault",
    "Invariant",
    "LogCheck",
    "LogRecord",
    "LogVerifier",
    "PartitionReport",
    "Remembered",
    "Takeover",
    "VerifyError",
    "VerifyReport",
    "Violation",
    "verify_log",
]
