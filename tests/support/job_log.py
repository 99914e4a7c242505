"""The job log of a cluster, read to its end as any consumer may, and checked."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from relevo_engine.verify import LogCheck
from relevo_schemas import events as ev
from relevo_schemas.records import Event

_FINISHING = (ev.JobCompleted, ev.JobErrored, ev.JobCancelled, ev.JobExpired)


@dataclass
class JobLog:
    """What a whole job log says.

    Attributes:
        check: Whether it is sound.
        events: Every event with its partition, each partition in order.
        finished: How often each key finished; more than once is a fault.
    """

    check: LogCheck
    events: list[tuple[int, Event]] = field(default_factory=list)
    finished: Counter[str] = field(default_factory=Counter)

    def of(self, *kinds: type[Event]) -> list[Event]:
        """The events of these kinds."""
        return [event for _, event in self.events if isinstance(event, kinds)]

    def about(self, key: str) -> list[Event]:
        """The events of one job."""
        return [e for _, e in self.events if key in (getattr(e, "key", None), _job_key(e))]

    def created(self) -> set[str]:
        """Keys of all jobs; fails where one was made twice."""
        keys = [event.job.key for event in self.of(ev.JobCreated) if isinstance(event, ev.JobCreated)]
        assert len(keys) == len(set(keys)), "a job was created twice"
        return set(keys)

    def completed(self) -> set[str]:
        """Keys of all jobs that were completed; fails where one finished twice."""
        twice = [key for key, count in self.finished.items() if count > 1]
        assert not twice, f"finished twice: {twice[:5]}"
        return {event.key for event in self.of(ev.JobCompleted) if isinstance(event, ev.JobCompleted)}

    def elections(self) -> list[tuple[int, ev.LeaderElected]]:
        """Every announcement with its partition."""
        return [(p, event) for p, event in self.events if isinstance(event, ev.LeaderElected)]


def _job_key(event: Event) -> str | None:
    return event.job.key if isinstance(event, ev.JobCreated) else None


def read_job_log(kafka: str, cluster: str, partitions: int, *, timeout_s: float = 60.0) -> JobLog:
    """Read everything that is committed now."""
    topic = f"{cluster}.log"
    log = JobLog(LogCheck(topic))
    consumer = Consumer(
        {
            "bootstrap.servers": kafka,
            "group.id": "job-log-of-a-test",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
        unread = set(range(partitions))
        deadline = time.monotonic() + timeout_s
        while unread:
            assert time.monotonic() < deadline, f"the end of {topic} {sorted(unread)} was not reached"
            for message in consumer.consume(1000, 0.2):
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    unread.discard(message.partition() or 0)
                elif error is not None:
                    raise KafkaException(error)
                else:
                    partition = message.partition() or 0  # a message that was read has one
                    event = log.check.take(partition, message.offset() or 0, message.value())
                    if event is not None:
                        log.events.append((partition, event))
                        if isinstance(event, _FINISHING):
                            log.finished[event.key] += 1
    finally:
        consumer.close()
    return log
