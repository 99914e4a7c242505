"""Bring a machine up to a barrier: the one end of the log that can't be misjudged.

Offsets tell nothing: behind the last record may stand commit markers, abort markers and aborted records, and
the stable offset may lie before an open transaction's. A record of our own, written behind the fence and read
back, has every committed record before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from relevo_partitions.ports import Reader
from relevo_partitions.runtime import THREADS
from relevo_partitions.statemachine import StateMachine
from relevo_partitions.term.barrier import find_barrier, is_barrier
from relevo_partitions.term.stuck_reader import StuckReaderWatch

BATCH_MAX: Final = 2_000
WAIT_S: Final = 0.1


def replay_to_barrier(
    machine: StateMachine,
    reader: Reader,
    nonce: str,
    *,
    cancelled: Callable[[], bool],
    stall_s: float,
    stalled: Callable[[str], None],
    begin: int = 0,
    now: Callable[[], float] = THREADS.monotonic,
    stuck: StuckReaderWatch,
) -> bool:
    """Apply the log to ``machine`` up to the barrier with ``nonce``. No transaction may be open meanwhile.

    Args:
        machine: Gets the records; barriers are left out.
        reader: Started at ``begin``.
        nonce: Of a barrier that is committed.
        cancelled: Asked between batches.
        stall_s: After so long without a record Kafka is asked whether it is there, and the log with it.
        stalled: Told, each time, that Kafka answers and the log still doesn't move: somebody else's open
            transaction holds back its stable offset.
        begin: Where the reader was started; what lies before may be deleted.
        now: Seconds of a clock that never goes back.
        stuck: Told of each time without a record.

    Returns:
        False where ``cancelled`` said so before the barrier was read.

    Raises:
        LogDamaged: The log can't be replayed.
        KafkaUnavailable: Kafka doesn't answer, or the reader is stuck.
    """
    moved_at, next_offset = now(), begin
    while not cancelled():
        records = reader.read(WAIT_S, BATCH_MAX)
        if records:
            moved_at, next_offset = now(), records[-1].offset + 1
            end = find_barrier(records, nonce)
            events = [record for record in records[:end] if not is_barrier(record.value)]
            if events:
                machine.replay(events)
            if end is not None:
                return True
        elif now() - moved_at > stall_s:
            reader.check(next_offset)
            stuck.look()
            stalled(
                f"nothing to read for {stall_s:g} s although the barrier is committed: "
                "an open transaction of another producer holds the log back"
            )
            moved_at = now()
    return False
