"""One record of every kind, with every field away from its usual value."""

from __future__ import annotations

from relevo_schemas import commands as cmd
from relevo_schemas import delivery
from relevo_schemas import events as ev
from relevo_schemas.codec import job_spec
from relevo_schemas.records import Record

KEY = "order-4711/ü"
JOB = job_spec(
    key=KEY,
    type="send-email",
    variables=b'{"to":"ada@example.org","n":1}',
    priority=-7,
    retries=5,
    backoff_ms=2_000,
    backoff_max_ms=600_000,
    lease_ms=45_000,
    run_at=1_700_000_100_000,
    expires_at=1_700_009_999_999,
    correlation_id="invoice 12",
    headers={"traceparent": "00-ab-cd-01", "tenant": "ü"},
)
PLAIN_JOB = job_spec(key="k", type="t")
HEAD = (9_000_000_000, 12, 1_700_000_000_123, 8_191)
SEQ = 8_999_999_999
BY_TIME = (8_192, 1, 1_700_000_000_123, -1)

SAMPLES: dict[str, Record] = {
    "CreateJob": cmd.CreateJob(JOB),
    "CreateJob of a plain job": cmd.CreateJob(PLAIN_JOB),
    "StartJobs": cmd.StartJobs("host-1:42", (cmd.LeaseRef(KEY, SEQ, 3, 30_000), cmd.LeaseRef("b", 0, 1, 0))),
    "StartJobs of none": cmd.StartJobs("", ()),
    "ExtendJobs": cmd.ExtendJobs(
        "host-1:42", (cmd.LeaseRef(KEY, SEQ, 3, 45_000), cmd.LeaseRef("b", 0, 1, 1))
    ),
    "ReportSlots": cmd.ReportSlots("host-1:42", "send-email", (0, 3, 70_000)),
    "ReportSlots of none": cmd.ReportSlots("", "", ()),
    "CheckpointJob": cmd.CheckpointJob(KEY, SEQ, 3, b'{"page":7}'),
    "CompleteJob": cmd.CompleteJob(KEY, SEQ, 3, b'{"id":"m-1"}'),
    "FailJob": cmd.FailJob(KEY, SEQ, 3, "connection refused", 1_500, True),
    "FailJob for good": cmd.FailJob(KEY, 0, 3, "", -1, False),
    "ThrowError": cmd.ThrowError(KEY, SEQ, 3, "NO_SUCH_USER", "there is no ada"),
    "CancelJob": cmd.CancelJob(KEY, "ordered twice"),
    "RetryJob": cmd.RetryJob(KEY, 2),
    "UpdateJob": cmd.UpdateJob(KEY, -100, 1_000),
    "UpdateJob of nothing": cmd.UpdateJob(KEY, None, None),
    "JobCreated": ev.JobCreated(*HEAD, JOB),
    "JobDue": ev.JobDue(*BY_TIME, KEY),
    "JobActivated": ev.JobActivated(*BY_TIME, KEY, 3, 17),
    "JobStarted": ev.JobStarted(*HEAD, KEY, 3, "host-1:42", 30_000),
    "JobCheckpointed": ev.JobCheckpointed(*HEAD, KEY, 3, b'{"page":7}'),
    "JobCompleted": ev.JobCompleted(*HEAD, KEY, 3, b'{"id":"m-1"}'),
    "JobFailed": ev.JobFailed(*HEAD, KEY, 3, "connection refused", 4, 1_700_000_002_123),
    "JobErrored": ev.JobErrored(*HEAD, KEY, 3, "NO_SUCH_USER", "there is no ada"),
    "JobTimedOut": ev.JobTimedOut(*BY_TIME, KEY, 3, "LEASE", 2),
    "JobIncident": ev.JobIncident(*HEAD, KEY, 3, "RETRIES_EXHAUSTED", "connection refused"),
    "JobRetried": ev.JobRetried(*HEAD, KEY, 2),
    "JobUpdated": ev.JobUpdated(*HEAD, KEY, -100, 1_000),
    "JobCancelled": ev.JobCancelled(*HEAD, KEY, "ordered twice"),
    "JobExpired": ev.JobExpired(*BY_TIME, KEY),
    "LeaderElected": ev.LeaderElected(*BY_TIME, "node-1", "0190aa"),
    "CommandRejected": ev.CommandRejected(
        *HEAD, KEY, "CompleteJob", "STALE_ATTEMPT", "attempt 4", "attempt 3"
    ),
    "Activation": delivery.Activation(3, 12, 1_700_000_000_123, SEQ, 3, 5, 2, b'{"page":7}', JOB),
    "Activation of a plain job": delivery.Activation(0, 1, 1_700_000_000_123, 0, 1, 3, 0, b"", PLAIN_JOB),
    "Barrier": delivery.Barrier("node-1", "0190aa", "c0ffee"),
}

EARLIER: dict[str, Record] = {
    "Activation without expiries": delivery.Activation(3, 12, 1_700_000_000_123, 0, 3, 5, 0, b"", JOB),
    "Activation without checkpoint": delivery.Activation(3, 12, 1_700_000_000_123, 0, 3, 5, 2, b"", JOB),
    "Activation without created_seq": delivery.Activation(
        3, 12, 1_700_000_000_123, 0, 3, 5, 2, b'{"page":7}', JOB
    ),
    "StartJobs without created_seq": cmd.StartJobs(
        "host-1:42", (cmd.LeaseRef(KEY, 0, 3, 30_000), cmd.LeaseRef("b", 0, 1, 0))
    ),
    "ExtendJobs without created_seq": cmd.ExtendJobs(
        "host-1:42", (cmd.LeaseRef(KEY, 0, 3, 45_000), cmd.LeaseRef("b", 0, 1, 1))
    ),
    "CheckpointJob without created_seq": cmd.CheckpointJob(KEY, 0, 3, b'{"page":7}'),
    "CompleteJob without created_seq": cmd.CompleteJob(KEY, 0, 3, b'{"id":"m-1"}'),
    "FailJob without created_seq": cmd.FailJob(KEY, 0, 3, "connection refused", 1_500, True),
    "ThrowError without created_seq": cmd.ThrowError(KEY, 0, 3, "NO_SUCH_USER", "there is no ada"),
}
"""What records of retired schemas are read as."""
