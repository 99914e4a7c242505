"""Kafka's clients as a term and a worker use them: `relevo_partitions.ports` over the simulated network."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from relevo_partitions.errors import KafkaUnavailable
from relevo_partitions.outcomes import Aborted, Committed, Fenced, Outcome, Unclear
from relevo_partitions.ports import Stability
from relevo_partitions.statemachine import Incoming, LogDamaged, Write
from tests.simulation.world.kafka import Busy, Confused, FencedOff, Kafka, NotWritable, Partition
from tests.simulation.world.network import Network, NoAnswer
from tests.simulation.world.scheduler import Process
from tests.simulation.world.snapshots import Shelves, SimSnapshots

T = TypeVar("T")
CLUSTER: Final = "c"
LOG: Final = f"{CLUSTER}.log"
COMMANDS: Final = f"{CLUSTER}.commands"
REQUEST_S: Final = 1.5
DELIVERY_S: Final = 8.0
COMMIT_S: Final = 10.0
ABORT_S: Final = 5.0
FENCE_S: Final = 30.0
ASK_S: Final = 5.0
BUSY_S: Final = 0.005


class KafkaClient:
    """One process' way to Kafka."""

    def __init__(self, kafka: Kafka, network: Network, process: Process, rng: random.Random) -> None:
        self.kafka = kafka
        self.network = network
        self.process = process
        self.rng = rng
        self.scheduler = process.scheduler

    def call(self, what: str, handler: Callable[[], T], timeout: float = REQUEST_S) -> T:
        """One request.

        Raises:
            NoAnswer: None came in time.
        """
        result: T = self.network.call(self.process, "kafka", what, handler, timeout)
        return result

    def insist(self, what: str, handler: Callable[[], T], seconds: float) -> T:
        """The request again and again, as librdkafka does; Busy and silence are waited out.

        Raises:
            NoAnswer: For so long.
        """
        deadline = self.scheduler.now + seconds
        while True:
            left = deadline - self.scheduler.now
            if left <= 0:
                raise NoAnswer(what)
            try:
                return self.call(what, handler, min(REQUEST_S, left))
            except Busy:
                self.scheduler.block(BUSY_S * (1 + self.rng.random()))
            except NoAnswer:
                self.scheduler.block(0.05)

    @property
    def reachable(self) -> bool:
        """Whether anything passes."""
        return self.process.alive and not self.network.link(self.process.name, "kafka").cut


class SimWriter:
    """See `relevo_partitions.ports.Writer`."""

    def __init__(self, client: KafkaClient, tid: str, epoch: int, unclear: list[str]) -> None:
        self._client = client
        self._tid = tid
        self._epoch = epoch
        self._batch = 0
        self._dropped = False
        self._unclear = unclear
        """What becomes of the next commits: ``applied``, ``lost`` or ``late``, and nobody hears of it."""

    def commit(self, writes: Sequence[Write]) -> Outcome:
        if self._dropped:
            return Unclear("the producer was dropped")
        scheduler = self._client.scheduler
        began = scheduler.now
        outcome = self._transact(list(writes))
        if outcome is None:
            return Committed(len(writes), scheduler.now - began)
        if not isinstance(outcome, Aborted):
            self._dropped = True
        return outcome

    def _transact(self, writes: list[Write]) -> Outcome | None:
        client, kafka, tid, epoch = self._client, self._client.kafka, self._tid, self._epoch
        try:
            requests = self._requests(writes)
            for part in requests:
                produce = partial(kafka.produce, tid, epoch, self._batch, part, part is not requests[-1])
                client.insist("produce", produce, DELIVERY_S)
                self._batch += 1
        except FencedOff as error:
            return Fenced(str(error))
        except NotWritable as error:
            alone = any(write.topic != error.topic for write in writes)
            return self._abort(str(error), error.topic if alone else None)
        except Confused as error:
            return Unclear(str(error))
        except NoAnswer:
            return self._abort("records were not acknowledged", None, unknown=True)
        if self._unclear:
            return self._never_answered(self._unclear.pop(0))
        try:
            client.insist("end", lambda: kafka.end(tid, epoch, True), COMMIT_S)
        except FencedOff as error:
            return Fenced(str(error))
        except (NoAnswer, Confused) as error:
            return Unclear(f"commit: {error}")
        return None

    def _requests(self, writes: list[Write]) -> list[list[Write]]:
        """One for all, or one for each topic, as brokers come."""
        topics = sorted({write.topic for write in writes})
        if len(topics) == 1 or self._client.rng.random() < 0.5:
            return [writes]
        if self._client.rng.random() < 0.5:
            topics.reverse()
        return [[write for write in writes if write.topic == topic] for topic in topics]

    def _never_answered(self, how: str) -> Outcome:
        client, kafka, tid, epoch = self._client, self._client.kafka, self._tid, self._epoch

        def arrive() -> None:
            try:
                kafka.end(tid, epoch, True)
            except (FencedOff, Confused) as error:
                client.scheduler.note(tid, f"late commit refused: {error}")

        if how == "applied":
            arrive()
        elif how == "late":
            kafka.late.setdefault(tid, []).append(arrive)
        client.scheduler.note(client.process.name, f"{tid}: unclear commit, {how}")
        client.scheduler.block(0.001 + client.rng.random() * 0.05)
        return Unclear("commit: no answer")

    def _abort(self, reason: str, topic: str | None, *, unknown: bool = False) -> Outcome:
        client, kafka, tid, epoch = self._client, self._client.kafka, self._tid, self._epoch
        try:
            client.insist("abort", lambda: kafka.end(tid, epoch, False), ABORT_S)
            if unknown:
                self._epoch = client.insist("bump", lambda: kafka.bump(tid, epoch), ABORT_S)
                self._batch = 0
        except FencedOff as error:
            return Fenced(str(error))
        except (NoAnswer, Confused):
            return Unclear(f"{reason}, and the abort had no answer")
        return Aborted(reason, () if topic is None else (topic,))

    def missing(self, topic: str, partition: int) -> str | None:
        return None

    def drop(self) -> None:
        self._dropped = True


class SimReader:
    """See `relevo_partitions.ports.Reader`."""

    def __init__(self, client: KafkaClient, topic: str, number: int) -> None:
        self._client = client
        self._place: Partition = client.kafka.partition(topic, number)
        self._next = 0
        self._end = -1
        self._at_end = False
        self._made_at = client.scheduler.now

    @property
    def _stuck(self) -> bool:
        link = self._client.network.link(self._client.process.name, "kafka")
        return self._made_at <= link.readers_stuck_at.get(self._place.topic, -1.0)

    def start(self, offset: int) -> None:
        self._next = offset
        self._at_end = False

    def check(self, offset: int) -> None:
        place = self._place
        try:
            low, high = self._client.insist(
                "bounds", lambda: self._client.kafka.bounds(place.topic, place.number), 5.0
            )
        except NoAnswer:
            raise KafkaUnavailable(f"{place.topic} [{place.number}]: Kafka didn't answer") from None
        if not low <= offset <= high:
            raise LogDamaged(f"{place.topic} [{place.number}]: {offset} was due, {low} to {high} is there")

    def read(self, wait_s: float, records_max: int) -> list[Incoming]:
        scheduler, place = self._client.scheduler, self._place
        began = scheduler.now
        deadline = began + wait_s
        while True:
            if self._client.reachable and not self._stuck:
                if self._next < place.begin:
                    raise LogDamaged(
                        f"{place.topic} [{place.number}]: offset {self._next} was due, "
                        f"but Kafka holds records from {place.begin} on"
                    )
                found, self._next = place.committed(self._next, records_max)
                self._end = len(place.records)
                self._at_end = self._next >= place.stable
                if found:
                    scheduler.block(self._fetch_s())
                    return found
            left = deadline - scheduler.now
            if left <= 0:
                if scheduler.now == began:
                    scheduler.block(0.0001)  # whoever reads again and again must let time pass
                return []
            ticket = scheduler.ticket()
            place.waiting.append(ticket)
            if not scheduler.block(min(left, 0.5)) and ticket in place.waiting:
                place.waiting.remove(ticket)

    def _fetch_s(self) -> float:
        client = self._client
        link = client.network.link(client.process.name, "kafka")
        return client.network.delay(link) + link.slow_fetch_s * client.rng.random()

    @property
    def reached(self) -> int:
        return self._next

    @property
    def at_end(self) -> bool:
        return self._at_end

    def end_offset(self) -> int:
        return self._end

    def stability(self) -> Stability:
        return Stability(self._place.stable, len(self._place.records))

    def note_position(self, position: int) -> None:
        """Nobody looks."""

    def close(self) -> None:
        """Nothing is held."""


class SimIO:
    """See `relevo_partitions.ports.PartitionIO`."""

    log_topic = LOG
    commands_topic = COMMANDS

    def __init__(self, client: KafkaClient, number: int, unclear: list[str], shelves: Shelves) -> None:
        self.client = client
        self.number = number
        self._unclear = unclear
        self._shelves = shelves

    def keep_warm(self, producers: int) -> None:
        """Nothing to warm."""

    def tend(self) -> None:
        """Nothing to serve."""

    def fence(self, cancelled: Callable[[], bool]) -> SimWriter:
        client, tid = self.client, f"{CLUSTER}-{self.number}"
        deadline = client.scheduler.now + FENCE_S
        while True:
            try:
                epoch = client.insist("init", lambda: client.kafka.init(tid), 1.0)
            except NoAnswer:
                if cancelled() or client.scheduler.now > deadline:
                    raise KafkaUnavailable("the producer couldn't be initialised") from None
                continue
            return SimWriter(client, tid, epoch, self._unclear)

    def log(self) -> SimReader:
        return SimReader(self.client, LOG, self.number)

    def commands(self) -> SimReader:
        return SimReader(self.client, COMMANDS, self.number)

    def commands_end(self) -> int:
        client = self.client
        try:
            return client.insist("end", lambda: client.kafka.bounds(COMMANDS, self.number)[1], ASK_S)
        except NoAnswer:
            raise KafkaUnavailable("the commands' end was asked for, and no answer came") from None

    def stable_end(self, topic: str) -> int:
        client = self.client
        try:
            return client.insist("end", lambda: client.kafka.partition(topic, self.number).stable, ASK_S)
        except NoAnswer:
            raise KafkaUnavailable("the stable end was asked for, and no answer came") from None

    def snapshots(self) -> SimSnapshots:
        return SimSnapshots(self.client, self._shelves, self.number, LOG, COMMANDS)


class Producer:
    """A plain idempotent producer; one record at a time, in order."""

    def __init__(self, client: KafkaClient, name: str) -> None:
        self._client = client
        self._name = name
        self._sequences: dict[tuple[str, int], int] = {}

    def send(self, topic: str, number: int, key: bytes, value: bytes, seconds: float = 10.0) -> bool:
        """Whether Kafka acknowledged it; where not, it may be there all the same."""
        sequence = self._sequences[topic, number] = self._sequences.get((topic, number), -1) + 1
        client = self._client
        deadline = client.scheduler.now + seconds
        while client.scheduler.now < deadline:
            try:
                client.insist(
                    "send",
                    lambda: client.kafka.send(self._name, sequence, topic, number, key, value),
                    deadline - client.scheduler.now,
                )
            except NoAnswer:
                return False
            except NotWritable:
                client.scheduler.block(0.1)
            else:
                return True
        return False
