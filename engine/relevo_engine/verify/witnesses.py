"""What is known from elsewhere of how far a log reached: a tail that is gone leaves no trace in the log."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from relevo_engine.topics import commands_topic, engine_group, log_topic, snapshots_topic
from relevo_engine.verify.findings import Fault, Invariant
from relevo_engine.verify.order import Order
from relevo_partitions.errors import KafkaUnavailable
from relevo_partitions.kafka.connection import Connection, Faults
from relevo_partitions.snapshots.store import KafkaSnapshots

ASK_TIMEOUT_S: Final = 10.0


class Witness(NamedTuple):
    """Somebody who has seen the log reach so far; a number that it doesn't tell is 0.

    Attributes:
        who: In words.
        log_offset: The log ends here or later.
        seq: It holds this event.
        epoch: That event's term.
        position: It tells of every command below this offset that led to anything.
    """

    who: str
    log_offset: int = 0
    seq: int = 0
    epoch: int = 0
    position: int = 0


class Witnesses(NamedTuple):
    """All that were found.

    Attributes:
        of: By partition.
        unheard: Why some couldn't be asked, in words.
    """

    of: dict[int, list[Witness]]
    unheard: list[str]


NOBODY: Final = Witnesses({}, [])


def find_witnesses(connection: Connection, cluster: str, chosen: Collection[int] | None) -> Witnesses:
    """Ask for the newest snapshots' manifests, and for the positions that leaders have published.

    They speak of what was committed when they were written: whoever asks for the log's end afterwards must
    find at least that. Where one can't be asked (a right is missing, the group's coordinator is away) the log
    can be verified all the same.

    Args:
        connection: Where Kafka is.
        cluster: Name of the cluster.
        chosen: Partitions; None: all.

    Raises:
        KafkaException: Kafka doesn't tell of the log itself, or an option isn't known.
        TimeoutError: It doesn't answer.
    """
    faults, unheard = Faults(), list[str]()
    client = AdminClient(connection.settings(faults, {}))

    def asked(what: str, ask: Callable[..., Any], *arguments: object) -> Any:
        try:
            return ask(*arguments)
        except KafkaException as raised:
            unheard.append(f"{what}: {connection.describe(raised.args[0], faults)}")
        except KafkaUnavailable as error:
            unheard.append(f"{what}: {error}")
        except TimeoutError:
            unheard.append(f"{what}: Kafka at {connection.bootstrap} didn't answer in time")
        return None

    topic = _described(client, log_topic(cluster))
    numbers = sorted(chosen if chosen is not None else (each.id for each in topic.partitions))
    found: dict[int, list[Witness]] = {number: [] for number in numbers}
    snapshots = asked(snapshots_topic(cluster), _described, client, snapshots_topic(cluster))
    kept = {each.id for each in snapshots.partitions} if snapshots is not None else set()
    for number in kept & found.keys():
        place = f"{snapshots_topic(cluster)} partition {number}"
        found[number] += asked(place, _snapshots, connection, cluster, number, str(topic.topic_id)) or ()
    group, commands = engine_group(cluster), commands_topic(cluster)
    published = asked(f"group {group}", _published, connection, faults, group, commands, numbers)
    for number, position in (published or {}).items():
        found[number].append(Witness("the position that its leader published", position=position))
    return Witnesses(found, unheard)


def _described(client: AdminClient, topic: str) -> Any:
    asked = client.describe_topics(TopicCollection([topic]), request_timeout=ASK_TIMEOUT_S)
    return asked[topic].result(ASK_TIMEOUT_S + 1)


def _snapshots(connection: Connection, cluster: str, partition: int, topic_id: str) -> list[Witness]:
    store = KafkaSnapshots(connection, cluster, partition, "")
    return [
        Witness(f"snapshot {each.name} of {each.node}", each.log_offset, each.seq, each.epoch, each.position)
        for each in store.newest()
        if each.log_topic_id == topic_id  # the offsets of a topic that was deleted mean nothing here
    ]


def _published(
    connection: Connection, faults: Faults, group: str, topic: str, numbers: Iterable[int]
) -> dict[int, int]:
    # An admin client can be asked as well, and brings the process down where the group's coordinator has
    # just started: librdkafka 2.16 then looks for the group that only a consumer has.
    consumer = Consumer(connection.settings(faults, {"group.id": group, "enable.auto.commit": False}))
    try:
        told = consumer.committed(
            [TopicPartition(topic, number) for number in numbers], timeout=ASK_TIMEOUT_S
        )
    finally:
        consumer.close()
    return {each.partition: each.offset for each in told if each.error is None and each.offset > 0}


class Reach:
    """Holds one partition's log against its witnesses.

    Args:
        witnesses: Of the partition.

    Attributes:
        told: Whether something was found to be missing; the rest would only follow from it.
    """

    __slots__ = ("_due", "told", "witnesses")

    def __init__(self, witnesses: Collection[Witness]) -> None:
        self.witnesses = witnesses
        self.told = False
        self._due = {each.seq: each for each in witnesses if each.seq}

    def begin(self, high: int) -> Fault | None:
        """What is wrong with a log of which nothing is written at ``high`` or behind."""
        furthest = max(self.witnesses, key=lambda each: each.log_offset, default=None)
        if furthest is None or furthest.log_offset <= high:
            return None
        return self._fault(
            f"the log to reach to offset {furthest.log_offset} with event {furthest.seq} of epoch "
            f"{furthest.epoch}, as {furthest.who} says",
            f"its end at offset {high}: its tail is cut off",
        )

    def meet(self, seq: int, epoch: int) -> Fault | None:
        """What is wrong with an event; one that another stands in place of was cut off."""
        witness = self._due.get(seq)
        if witness is None or witness.epoch == epoch or self.told:
            return None
        return self._fault(
            f"event {seq} to be of epoch {witness.epoch}, as {witness.who} says",
            f"one of epoch {epoch}: the log's tail was cut off before it, and others were written since",
        )

    def missing(self, order: Order, end: int) -> Fault | None:
        """What is missing of a log that was read up to ``end``."""
        if self.told or not self.witnesses:
            return None
        if order.trimmed and not order.first_seq:
            return None  # all its events are trimmed away: their numbers aren't known
        here = f"the log's end at offset {end}, after event {order.seq} of epoch {order.epoch}"
        last = max(self.witnesses, key=lambda each: each.seq)
        if last.seq > order.seq:
            wanted = f"event {last.seq} of epoch {last.epoch}, which {last.who} holds"
            return Fault(Invariant.TRUNCATED, wanted, f"{here}: its tail is cut off")
        latest = max(self.witnesses, key=lambda each: each.position)
        if order.trimmed and not order.position:
            return None  # no event that is left tells of a command
        if latest.position > order.position:
            wanted = f"what became of the commands below offset {latest.position}, by {latest.who}"
            found = f"that of those below {order.position}, and {here}: its tail is cut off"
            return Fault(Invariant.TRUNCATED, wanted, found)
        return None

    def _fault(self, expected: str, found: str) -> Fault:
        self.told = True
        return Fault(Invariant.TRUNCATED, expected, found)
