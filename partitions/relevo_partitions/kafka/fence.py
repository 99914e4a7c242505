"""Shuts every earlier leader of a partition out of its log, without librdkafka's fixed half second.

While the old leader's open transaction is being aborted the coordinator answers CONCURRENT_TRANSACTIONS, and
librdkafka then waits 500 ms, whatever its settings say. So a call is made in short slices. One that comes
back without an answer is resumed, since the broker is only slow. Once the answer is known to be that one, the
producer is thrown away: it has started the abort, and a following one, already connected, gets through. A
dropped producer never tries again; if one of its requests arrived late all the same, it would fence the
rightful leader, who repeats the fence: safe, only slow.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Producer

from relevo_partitions.errors import KafkaUnavailable
from relevo_partitions.fork import ForkGuard
from relevo_partitions.kafka.connection import Connection, Faults, drop_in_background
from relevo_partitions.kafka.writer import producer_settings

SLICE_S: Final = 0.005
PAUSE_FIRST_S: Final = 0.005
"""Wait for the abort before the second try; grows from try to try."""
PAUSE_MAX_S: Final = 1.0
"""Longest wait before a try: for so long a partition may stand still after its brokers can end transactions
again. They can't while they are below the in-sync minimum. No shorter: each try costs a producer."""
GROWTH: Final = 1.5
ANSWER_S: Final = 0.3
"""A producer that has no answer by then is given up: its connection may be broken. Grows from try to try."""
TRY_MAX_S: Final = 5.0
LIMIT_S: Final = 20.0
"""Longest whole fence; then somebody else may have better luck."""
WARM_STANDBY: Final = 4
"""Producers that a first standby keeps ready (0.6 MB and 5 threads each)."""
WARM_TAKEOVER: Final = 3
"""Producers that are made ready once a takeover turns out to need more: making one takes from what the others
have of the processor."""
TRIES_BEFORE_MORE: Final = 2
CONNECT_TIMEOUT_S: Final = 5.0

Armed = tuple[Producer, Faults]


class ProducerPool:
    """Producers of one transactional id that are connected and have not called `init_transactions` yet.

    Args:
        connection: Where Kafka is.
        transactional_id: Of the partition.
        topic: Asked for to connect.
    """

    def __init__(self, connection: Connection, transactional_id: str, topic: str) -> None:
        self.connection = connection
        self._transactional_id = transactional_id
        self._topic = topic
        self._changed = threading.Condition()
        self._ready: deque[Armed] = deque()
        self._wanted = 0
        self._filler: threading.Thread | None = None
        self._problem: KafkaUnavailable | None = None
        self._fork = ForkGuard("a pool of producers")

    def __len__(self) -> int:
        return len(self._ready)

    def keep(self, count: int) -> None:
        """Hold ``count`` producers ready from now on; they are made in the background. 0 lets go of all."""
        self._fork.check()
        with self._changed:
            self._wanted = count
            spare = [self._ready.pop() for _ in range(len(self._ready) - count)]
            self._fill()
        for producer, _ in spare:
            drop_in_background(producer)

    def tend(self) -> None:
        """Serve the callbacks of waiting producers, now and then: their log lines would pile up.

        One that has lost a connection goes: librdkafka doesn't log the same again for half a minute, so that
        its next loss, with a transaction on its way, might not be heard of.
        """
        with self._changed:
            for _ in range(len(self._ready)):
                self._keep_if_sound(*self._ready.popleft())
            with contextlib.suppress(RuntimeError):  # no thread is left; later perhaps
                self._fill()

    def take(self, timeout_s: float) -> Armed:
        """A connected producer.

        Raises:
            KafkaUnavailable: None could be connected in time.
        """
        self._fork.check()
        deadline = time.monotonic() + timeout_s
        with self._changed:
            self._problem = None
            while True:
                for _ in range(len(self._ready)):
                    self._keep_if_sound(*self._ready.popleft())
                if self._ready:
                    return self._ready.popleft()
                left = deadline - time.monotonic()
                if left <= 0:
                    raise KafkaUnavailable(f"no producer could be connected in {timeout_s:g} s")
                self._fill()
                self._changed.wait(left)
                self._raise_problem()

    def _keep_if_sound(self, producer: Producer, faults: Faults) -> None:
        """Behind the others. The lock is held."""
        if _sound(producer, faults):
            self._ready.append((producer, faults))
        else:
            drop_in_background(producer)

    def _raise_problem(self) -> None:
        if self._problem is not None and not self._ready:
            raise self._problem

    def _fill(self) -> None:
        """Start the filler where one is needed. The lock is held."""
        if len(self._ready) < self._wanted and self._filler is None:
            filler = threading.Thread(target=self._run, name="relevo-warm", daemon=True)
            filler.start()  # raises where there is no thread left; it waits for the lock before it ends
            self._filler = filler

    def _run(self) -> None:
        """Make producers until there are enough, or one can't be connected."""
        while True:
            armed: Armed | None = None
            problem: KafkaUnavailable | None = None
            try:
                armed = self._make(CONNECT_TIMEOUT_S)
            except KafkaUnavailable as error:
                problem = error
            except Exception as error:  # no thread left, a certificate being replaced: it may pass
                problem = KafkaUnavailable(f"no producer can be made: {self.connection.redact(str(error))}")
            with self._changed:
                if armed is not None and len(self._ready) < self._wanted:
                    self._ready.append(armed)
                    armed = None
                self._problem = problem
                finished = problem is not None or len(self._ready) >= self._wanted
                if finished:
                    self._filler = None
                self._changed.notify_all()
            if armed is not None:
                drop_in_background(armed[0])
            if finished:
                return

    def _make(self, timeout_s: float) -> Armed:
        faults = Faults()
        producer = Producer(producer_settings(self.connection, faults, self._transactional_id))
        try:
            producer.list_topics(self._topic, timeout=timeout_s)
        except KafkaException as error:
            _serve(producer)
            drop_in_background(producer)
            raise KafkaUnavailable(self.connection.describe(error.args[0], faults)) from None
        return producer, faults


def _serve(producer: Producer) -> None:
    """Let the client's callbacks run: log lines, and what its threads complain about."""
    with contextlib.suppress(KafkaException):  # a fatal error; whoever uses the producer gets it again
        producer.poll(0)


def _sound(producer: Producer, faults: Faults) -> bool:
    _serve(producer)
    return not faults.connection_lost


def fence(pool: ProducerPool, cancelled: Callable[[], bool], *, throw_away: bool = True) -> Armed:
    """Initialise a producer: whoever was initialised before can't commit any more.

    Args:
        pool: Gives the producers.
        cancelled: Asked between tries.
        throw_away: False makes one plain call, to compare.

    Raises:
        KafkaUnavailable: It didn't work within `LIMIT_S`, Kafka refuses, or ``cancelled`` said so.
    """
    deadline = time.monotonic() + LIMIT_S
    tries = 0
    pause_s, answer_s = PAUSE_FIRST_S, ANSWER_S
    if not len(pool):
        pool.keep(WARM_TAKEOVER)
    while True:
        producer, faults = pool.take(CONNECT_TIMEOUT_S + 1.0)
        slice_s = SLICE_S if throw_away else LIMIT_S
        error = _initialise(producer, slice_s, min(time.monotonic() + answer_s, deadline), cancelled)
        if error is None and _sound(producer, faults):
            pool.keep(0)
            return producer, faults
        if error is None:
            # It fences, and would do for one commit: with that, all that the standby has built would be gone.
            error = KafkaError(KafkaError._TRANSPORT, "a connection broke meanwhile", False, True)
        _serve(producer)
        drop_in_background(producer)
        del producer
        tries += 1
        if tries == TRIES_BEFORE_MORE:
            pool.keep(WARM_TAKEOVER)
        late = time.monotonic() + pause_s > deadline  # a further try would have no time for an answer
        if cancelled() or late or error.fatal() or not error.retriable():
            pool.keep(0)
            words = pool.connection.describe(error, faults)
            raise KafkaUnavailable(f"the partition's producer couldn't be initialised: {words}")
        time.sleep(pause_s)
        pause_s, answer_s = min(pause_s * GROWTH, PAUSE_MAX_S), min(answer_s * GROWTH, TRY_MAX_S)


def _initialise(
    producer: Producer, slice_s: float, until: float, cancelled: Callable[[], bool]
) -> KafkaError | None:
    """Call in slices until there is an answer; None for success, else what it was."""
    while True:
        try:
            producer.init_transactions(slice_s)
        except KafkaException as raised:
            error: KafkaError = raised.args[0]
            unanswered = error.code() == KafkaError._TIMED_OUT  # noqa: SLF001,RUF100
            if not unanswered or time.monotonic() > until or cancelled():
                return error
        else:
            return None
