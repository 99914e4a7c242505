"""Makes the first golden log: a history with each event in each of its forms. Run once; its bytes are kept.

Only `tests.contract.test_golden_log` as a command calls it. What decides about commands may change, and this
would then tell another history: the test reads the file.
"""

from __future__ import annotations

from typing import Final

from relevo_engine.core.job import JobState
from relevo_partitions.term.barrier import make_barrier
from relevo_schemas import commands as cmd
from tests.unit.core.harness import START, Channels, Partition, rules

SHARED: Final = {"partitions": 1, "finished_window_ms": 60_000, "finished_count_max": 6, "aging_ms": 10_000}
"""Rules that applying depends on, small enough that keys are forgotten."""
MINUTE_MS: Final = 60_000


def first_log() -> list[bytes]:
    """The values of its records, barriers among them."""
    log: list[bytes] = []
    events = 0
    p = Partition(
        rules(**SHARED, window=6, lease_expiries_max=2, redispatch_after_ms=10 * MINUTE_MS),
        Channels({"email": 2, "report-pdf": 1}),
    )

    def keep() -> None:
        nonlocal events
        log.extend(each.value for each in p.log[events:])
        events = len(p.log)

    def barrier(node: int) -> None:
        log.append(make_barrier("relevo.log", 0, f"n{node}", f"i{node}", f"nonce-{len(log)}").value)

    barrier(1)
    _first_term(p)
    keep()
    barrier(2)
    p.failover()
    _second_term(p)
    keep()
    barrier(3)  # of a leader that died before it announced its term
    barrier(4)
    p.failover()
    _third_term(p)
    keep()
    return log


def _first_term(p: Partition) -> None:
    p.create("plain")
    p.create(
        "full/ü", type="report-pdf", variables=b'{"n":1}', priority=-7, retries=5, backoff_ms=2_000,
        backoff_max_ms=9_000, lease_ms=45_000, run_at=START + 5_000, expires_at=START + 90 * MINUTE_MS,
        correlation_id="invoice 12", headers={"traceparent": "00-ab-cd-01"},
    )  # fmt: skip
    p.create("expires-scheduled", run_at=START + 9 * MINUTE_MS, expires_at=START + 8_000)
    p.create("expires-ready", type="report-pdf", expires_at=START + 7_000)
    p.create("run-at-is-past", run_at=START - 1)
    p.create("plain")  # refused
    for n in range(8):
        p.now += 7
        p.create(f"queued-{n}", priority=n % 3 - 1, retries=1, backoff_ms=1_000)
    p.start("plain")
    p.extend("plain")  # leaves no event
    p.send(cmd.CheckpointJob("plain", 0, 1, b'{"page":7}'))
    p.complete("plain", result=b'{"id":"m-1"}')
    p.complete("plain")  # refused
    p.complete("run-at-is-past")  # never started
    p.start("full/ü")  # not active yet: refused
    p.send(b"not a record", None)
    p.step(6_000)  # full/ü is due
    p.start("full/ü", worker="w2")
    p.send(cmd.CheckpointJob("full/ü", 0, 1, b'"half"'))
    p.send(cmd.CheckpointJob("full/ü", 0, 1, b""))  # withdrawn
    p.fail("full/ü", retry_in_ms=0, error="at once")
    p.step(2_500)  # two expire
    p.send(cmd.StartJobs("w3", tuple(cmd.LeaseRef(f"queued-{n}", 0, 1, 40_000) for n in (0, 1, 2, 5))))


def _second_term(p: Partition) -> None:
    p.fail("queued-2", error="with backoff")
    p.fail("queued-5", retriable=False, error="never")
    p.send(cmd.ThrowError("queued-0", 0, 1, "NO_SUCH_USER", "gone"))
    p.send(cmd.UpdateJob("queued-3", 50, None), cmd.UpdateJob("queued-2", None, 9))
    p.step(1_500)  # queued-2 is due again
    p.send(cmd.CancelJob("queued-3", "ordered twice"))
    p.send(cmd.CancelJob("nobody", ""))  # refused
    p.send(cmd.RetryJob("queued-5", 3))
    p.send(cmd.CheckpointJob("queued-1", 0, 1, b'{"rows":12}'))
    p.start("queued-1", worker="w4")  # taken over from another worker
    p.start("queued-1", attempt=2, worker="w5")
    p.step(45_000)  # its lease runs out: the second silence makes an incident
    p.create("later", run_at=p.now + 30 * MINUTE_MS)
    p.send(cmd.UpdateJob("later", 4, None))
    p.step(10 * MINUTE_MS)  # activations that nobody took up, and old keys are forgotten
    p.create("plain", variables=b'{"again":true}')


def _third_term(p: Partition) -> None:
    p.start("plain", worker="w6")
    p.start("queued-2", attempt=p.job("queued-2").attempt)
    p.fail("queued-2", attempt=p.job("queued-2").attempt, retry_in_ms=MINUTE_MS, error="in a minute")
    p.send(cmd.RetryJob("queued-2", 2))  # needn't wait
    p.send(cmd.RetryJob("queued-1", 1))
    for n in range(16):
        p.now += 11
        p.create(f"more-{n}", type="report-pdf" if n % 2 else "email", priority=n % 4)
    assert p.where("more-8") is JobState.READY
    p.send(cmd.UpdateJob("more-8", 2, None))  # another place in its queue
    for n in range(1, 16, 2):
        p.complete(f"more-{n}")  # more than are remembered
    p.send(cmd.CheckpointJob("plain", 0, p.job("plain").attempt, b'{"page":1}'))
    p.fail("full/ü", attempt=p.job("full/ü").attempt, retriable=False, error="no")
    p.create("last", run_at=p.now + 1, expires_at=p.now + MINUTE_MS)
