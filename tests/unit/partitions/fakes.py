"""Kafka and ZooKeeper as a term sees them, in memory, failing on command."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from relevo_partitions.errors import KafkaUnavailable
from relevo_partitions.observer import Observer
from relevo_partitions.outcomes import Aborted, Committed, Fenced, Outcome, Unclear
from relevo_partitions.ports import Stability, Verdict
from relevo_partitions.settings import TermSettings
from relevo_partitions.snapshots.ports import SnapshotStore
from relevo_partitions.statemachine import Incoming, LogDamaged, Term, Write
from relevo_partitions.term.barrier import is_barrier
from relevo_partitions.term.leadership import Leadership
from relevo_partitions.term.roles import Role, RoleKeeper
from tests.support.counter_machine import CounterMachine
from tests.support.waiting import wait_until

LOG = "c.log"

Fault = Callable[["FakeKafka", Sequence[Write]], Outcome]
"""What becomes of one commit."""


@dataclass
class FakeKafka:
    """One partition: its log, its commands, and the number of the newest producer."""

    log: list[Incoming] = field(default_factory=list)
    commands: list[Incoming] = field(default_factory=list)
    newest: int = 0
    faults: deque[Fault] = field(default_factory=deque)
    """Each is used up by one commit of commands' events, in order."""
    barrier_faults: deque[Fault] = field(default_factory=deque)
    """Each by one of a barrier."""
    silent: bool = False
    """Whether no commit is answered any more."""
    fence_fails: bool = False
    commands_gone: bool = False
    stuck: bool = False
    """Whether the readers there are get nothing any more; new ones do."""
    committing: threading.Event = field(default_factory=threading.Event)
    may_commit: threading.Event = field(default_factory=threading.Event)
    ends_asked: int = 0
    ends_unknown: bool = False
    """Whether Kafka doesn't answer where something ends."""
    end_is_ahead_by: int = 0
    """How much further than what can be read the log's end is said to be."""
    readers_open: int = 0
    writers_open: int = 0

    def __post_init__(self) -> None:
        self.may_commit.set()

    def send(self, **command: object) -> None:
        self.commands.append(Incoming(len(self.commands), b"", json.dumps(command).encode()))

    def append(self, writes: Sequence[Write]) -> None:
        for write in writes:
            if write.topic == LOG:
                self.log.append(Incoming(len(self.log), write.key, write.value))

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(r.value) for r in self.log if r.value is not None and r.value[:1] == b"{"]


class FakeWriter:
    def __init__(self, kafka: FakeKafka) -> None:
        kafka.newest += 1
        kafka.writers_open += 1
        self._kafka, self._number, self._dead = kafka, kafka.newest, False

    def commit(self, writes: Sequence[Write]) -> Outcome:
        kafka = self._kafka
        if self._dead:
            raise AssertionError("a producer was used after a time-out or a fence")
        kafka.committing.set()
        if not kafka.may_commit.wait(10):
            raise AssertionError("the test never let the commit go on")
        if self._number != kafka.newest:
            self._dead = True
            return Fenced("a newer producer")
        if kafka.silent:
            self._dead = True
            return Unclear("no answer")
        decided = any(b'"added"' in write.value for write in writes)
        faults = kafka.faults if decided else kafka.barrier_faults
        if faults and (decided or is_barrier(writes[0].value)):
            outcome = faults.popleft()(kafka, writes)
            self._dead = not isinstance(outcome, Aborted | Committed)
            return outcome
        kafka.append(writes)
        return Committed(len(writes), 0.0)

    def missing(self, topic: str, partition: int) -> str | None:
        return "the commands are gone" if self._kafka.commands_gone else None

    def drop(self) -> None:
        self._dead = True
        self._kafka.writers_open -= 1


class FakeReader:
    def __init__(self, kafka: FakeKafka, records: list[Incoming]) -> None:
        kafka.readers_open += 1
        self._kafka, self._records, self._next = kafka, records, 0
        self._works = True

    def start(self, offset: int) -> None:
        self._next = offset

    def check(self, offset: int) -> None:
        if offset > len(self._records):
            raise LogDamaged(f"offset {offset} was due, but the partition ends at {len(self._records)}")

    def read(self, wait_s: float, records_max: int) -> list[Incoming]:
        self._works = self._works and not self._kafka.stuck
        found = self._records[self._next : self._next + records_max] if self._works else []
        self._next += len(found)
        if not found:
            time.sleep(min(wait_s, 0.002))
        return found

    @property
    def reached(self) -> int:
        return self._next

    @property
    def at_end(self) -> bool:
        return self._next >= len(self._records) and not self._kafka.end_is_ahead_by

    def end_offset(self) -> int:
        return len(self._records) + self._kafka.end_is_ahead_by

    def stability(self) -> Stability:
        return Stability(len(self._records), self.end_offset())

    def note_position(self, position: int) -> None:
        """Nobody looks."""

    def close(self) -> None:
        self._kafka.readers_open -= 1


class FakeIO:
    log_topic = LOG
    commands_topic = "c.commands"

    def __init__(self, kafka: FakeKafka) -> None:
        self._kafka = kafka

    def keep_warm(self, producers: int) -> None:
        """Nothing to warm."""

    def tend(self) -> None:
        """Nothing to serve."""

    def fence(self, cancelled: Callable[[], bool]) -> FakeWriter:
        if self._kafka.fence_fails:
            raise KafkaUnavailable("Kafka isn't reachable")
        return FakeWriter(self._kafka)

    def log(self) -> FakeReader:
        return FakeReader(self._kafka, self._kafka.log)

    def snapshots(self) -> SnapshotStore:
        raise AssertionError("no snapshots are kept here")

    def commands(self) -> FakeReader:
        return FakeReader(self._kafka, self._kafka.commands)

    def commands_end(self) -> int:
        return len(self._kafka.commands)

    def stable_end(self, topic: str) -> int:
        self._kafka.ends_asked += 1
        if self._kafka.ends_unknown:
            raise KafkaUnavailable("no answer")
        return len(self._kafka.log if topic == LOG else self._kafka.commands)


@dataclass
class FakeSeat:
    """Answers with the verdicts given, the last one for ever."""

    verdicts: list[Verdict] = field(default_factory=lambda: [Verdict.OURS])
    asked: int = 0

    def verify(self) -> Verdict:
        self.asked += 1
        return self.verdicts.pop(0) if len(self.verdicts) > 1 else self.verdicts[0]


@dataclass
class SlowSeat(FakeSeat):
    """Answers once it may."""

    may_answer: threading.Event = field(default_factory=threading.Event)

    def verify(self) -> Verdict:
        verdict = super().verify()
        assert self.may_answer.wait(30)
        return verdict


class Heard(Observer):
    """Remembers faults and roles."""

    def __init__(self) -> None:
        self.faults: list[str] = []

    def fault(self, partition: int | None, kind: str, detail: str) -> None:
        self.faults.append(kind)


class Running:
    """A term in a thread of its own."""

    def __init__(
        self,
        kafka: FakeKafka,
        seat: FakeSeat | None = None,
        machine: Callable[[int], Any] | None = None,
        blocked: set[str] | None = None,
        settings: TermSettings | None = None,
        **more: Any,
    ) -> None:
        self.kafka, self.heard, self.blocked = kafka, Heard(), blocked if blocked is not None else set()
        self.topic_failures: list[str] = []
        self.path: list[Role] = []
        self.roles = RoleKeeper(0, lambda _p, _before, after, _why: self.path.append(after))
        self.roles.to(Role.FOLLOWING)
        self.roles.to(Role.STANDBY)
        self.term = Leadership(
            0,
            who=Term("n1", "i1"),
            seat=seat or FakeSeat(),
            io=FakeIO(kafka),
            machine_factory=machine or (lambda number: CounterMachine(number, "c", lambda: self.blocked)),
            roles=self.roles,
            observer=self.heard,
            on_topic_failure=self._topic_failed,
            settings=settings or TermSettings(idle_wait_s=0.005),
            **more,
        )
        self._over: Future[Any] = Future()
        self.thread = threading.Thread(target=lambda: self._over.set_result(self.term.run()), daemon=True)
        self.thread.start()

    def _topic_failed(self, topic: str, reason: str) -> None:
        self.topic_failures.append(topic)
        self.blocked.add(topic)

    def wait_leading(self) -> Running:
        wait_until(lambda: self.roles.role is Role.LEADING, "the term leads", timeout_s=10)
        return self

    def total(self) -> int:
        return int(self.term.read(lambda machine: machine.total).result(10))

    def wait_total(self, total: int) -> None:
        wait_until(lambda: self.total() == total, f"the machine has summed up {total}", timeout_s=10)

    def over(self) -> Any:
        return self._over.result(10)


def abort_because_of(topic: str | None) -> Fault:
    return lambda _kafka, _writes: Aborted("can't be written", () if topic in (None, LOG) else (topic,))


def unclear_but_committed(kafka: FakeKafka, writes: Sequence[Write]) -> Outcome:
    kafka.append(writes)
    return Unclear("no answer")


def unclear_and_lost(_kafka: FakeKafka, _writes: Sequence[Write]) -> Outcome:
    return Unclear("no answer")


def fenced_from_outside(kafka: FakeKafka, _writes: Sequence[Write]) -> Outcome:
    kafka.newest += 1
    return Fenced("a newer producer")
