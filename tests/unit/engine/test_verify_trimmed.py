"""Expected jobs of a cluster at work, which deletes commands while they are read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

import pytest

from relevo_engine.verify import Fault, Invariant, LogRecord, VerifyError, VerifyReport, run, verify_log
from relevo_engine.verify.reader import Bounds, DamagedBatch, TrimmedError
from relevo_engine.verify.witnesses import Witness, Witnesses
from relevo_schemas import events as ev
from relevo_schemas.codec import encode, job_spec
from relevo_schemas.commands import CreateJob
from tests.unit.engine.verify_logs import STEP, Written

LOG, COMMANDS = "busy.log", "busy.commands"


class Kafka:
    """One partition of a log and of commands, as a reader sees them; what happens meanwhile is planned.

    Attributes:
        log: The log.
        meanwhile: Done in turn, each with a question about the commands' bounds: right before it, if it is
            True, else before they are read.
        damaged: Whether the log's last batch is.
        witnessed: What is known of the log's reach.
        open: Offsets at the log's end that an open transaction holds back.
    """

    def __init__(self) -> None:
        self.log = Written()
        self.log.add(ev.LeaderElected)
        self.commands: list[LogRecord] = []
        self.start = 0
        self.meanwhile: list[tuple[bool, Callable[[], None]]] = []
        self.damaged = False
        self.witnessed: list[Witness] = []
        self.open = 0
        self.asked: list[str] = []

    def send(self, *keys: str) -> None:
        for key in keys:
            value = encode(CreateJob(job_spec(key=key, type="email")))
            self.commands.append(LogRecord(0, len(self.commands), key.encode(), value))

    def decide(self, key: str, kind: type[ev.JobCreated | ev.CommandRejected] = ev.JobCreated) -> None:
        """Decide the command, and delete it and all before it."""
        offset = next(each.offset for each in self.commands if each.key == key.encode())
        self.log.add(kind, key, source=offset)
        self.start = offset + 1

    # As `TopicReader`

    def witnesses(self, cluster: str, chosen: Collection[int] | None = None) -> Witnesses:
        self.asked.append("witnesses")
        return Witnesses({0: list(self.witnessed)}, [])

    def bounds(self, topic: str, chosen: Collection[int] | None = None) -> tuple[int, dict[int, Bounds]]:
        self.asked.append(topic)
        if topic == COMMANDS:
            self._happen(before=True)
            end = len(self.commands)
            return 1, {0: Bounds(self.start, end, end)}
        end = len(self.log.records) * STEP
        return 1, {0: Bounds(0, end - self.open, end)}

    def read(
        self, topic: str, spans: Mapping[int, tuple[int, int]]
    ) -> Iterator[list[LogRecord | DamagedBatch]]:
        if topic == LOG:
            if self.damaged:
                yield [DamagedBatch(0, STEP, Fault(Invariant.CHECKSUM, "a batch", "another"))]
                return
            yield [each for each in self.log.records if spans[0][0] <= each.offset < spans[0][1]]
            return
        for each in self.commands[spans[0][0] : spans[0][1]]:
            if each.offset < self.start:
                raise TrimmedError(f"{topic} partition 0 was trimmed while it was read")
            yield [each]
            self._happen(before=False)

    def _happen(self, *, before: bool) -> None:
        if self.meanwhile and self.meanwhile[0][0] is before:
            self.meanwhile.pop(0)[1]()


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    """With job a on the log, and b, c, d to be decided."""
    found = Kafka()
    monkeypatch.setattr(run, "TopicReader", lambda *_: found)
    found.send("a", "b", "c", "d")
    found.decide("a")
    return found


def verified(*keys: str) -> VerifyReport:
    return verify_log("k:1", "busy", expected_keys=keys)


def test_what_is_decided_between_the_log_and_the_commands_is_found(kafka: Kafka) -> None:
    """Every job that was created while the log was read would be called lost."""

    def decide() -> None:
        kafka.decide("b")
        kafka.decide("c")

    kafka.meanwhile = [(True, decide)]
    report = verified("a", "b", "c", "d")
    assert report.ok, report.violations
    assert report.expected is not None
    assert (report.expected.open, report.expected.pending) == (3, 1)
    (where,) = report.partitions
    assert (where.end, where.high, where.last_seq) == (4 * STEP, 4 * STEP, 4)
    assert report.counts.records == 4, "nothing was read twice"


def test_what_is_decided_while_the_commands_are_read_is_found(kafka: Kafka) -> None:
    """What was seen as undecided in between, and refused since, is refused."""

    def decide() -> None:
        kafka.decide("b", ev.CommandRejected)
        kafka.decide("c")

    kafka.meanwhile = [(False, decide)]
    report = verified("a", "b", "c", "d", "never")
    assert report.expected is not None
    expected = report.expected
    assert (expected.open, expected.refused, expected.pending) == (2, 1, 1)
    assert expected.missing_keys == ["never"]
    assert report.by_invariant == {"ACCEPTED": 1}


def test_what_somebody_else_deleted_is_lost(kafka: Kafka) -> None:
    """An engine deletes what its log speaks of: nobody will ever decide these."""
    kafka.start = 3
    report = verified("a", "b", "c", "d")
    assert report.expected is not None
    assert report.expected.missing_keys == ["b", "c"]
    assert (report.expected.open, report.expected.pending) == (1, 1)


def test_commands_that_are_always_deleted_sooner_than_read_end_it(kafka: Kafka) -> None:
    """A cluster that is too fast must not keep the verifier for ever."""
    names = [f"n{number}" for number in range(2 * run.ROUNDS_MAX + 10)]
    kafka.send(*names)
    ahead = names[1::2]  # of the one that was read
    kafka.meanwhile = [(False, lambda key=key: kafka.decide(key)) for key in ahead]  # type: ignore[misc]
    with pytest.raises(VerifyError, match=r"busy\.commands was trimmed 10 times while it was read"):
        verified("a")
    assert kafka.asked.count(COMMANDS) == run.ROUNDS_MAX


def test_a_log_that_is_damaged_is_not_read_on(kafka: Kafka) -> None:
    """The client would give the same batch again and again."""
    kafka.damaged = True
    report = verified("d")
    assert report.by_invariant == {"CHECKSUM": 1}
    assert kafka.asked == ["witnesses", LOG, COMMANDS]
