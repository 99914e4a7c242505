"""A broker is killed, or restarted."""

from __future__ import annotations

from typing import Any, Final

from relevo.testing.drills.scene import Scene
from relevo.testing.drills.settings import BROKER_SESSION_S
from relevo.testing.report import Run

_IN_SYNC_S: Final = 120.0
_NOTICED_S: Final = BROKER_SESSION_S + 1.0
"""Jobs sent so long after a broker's death don't owe anything to its last breath."""


def broker_kill(scene: Scene, run: Run) -> None:
    """``kill -9`` of one of three brokers: work goes on after the others have noticed."""
    number = scene.choice % scene.settings.brokers + 1
    run.target = f"kafka-{number}"
    fault = scene.cluster.kill_broker(number)
    scene.mark(f"kill -9 broker {number} of {scene.settings.brokers}", fault)
    scene.await_flow(fault.at_wall + _NOTICED_S * 1000)
    run.extra["broker_gap_ms"] = round(scene.gap_ms(fault.at_monotonic), 1)
    scene.cluster.start_broker(number)
    scene.mark(f"broker {number} started again")
    await_in_sync(scene)
    scene.await_calm(run)


def broker_restart(scene: Scene, run: Run) -> None:
    """SIGTERM of a broker, and a start: with one broker everything waits for it, and then goes on."""
    number = scene.choice % scene.settings.brokers + 1
    run.target = f"kafka-{number}"
    fault = scene.cluster.restart_broker(number)
    scene.mark(f"broker {number} restarted", fault)
    scene.await_flow()
    run.extra["broker_gap_ms"] = round(scene.gap_ms(fault.at_monotonic), 1)
    await_in_sync(scene)
    scene.await_calm(run)


def await_in_sync(scene: Scene) -> None:
    """Wait until every copy of every partition is in sync: another broker can be spared then.

    Raises:
        NotInTime: Some copy isn't in time.
    """
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    from relevo.kafka_options import options_for_producer

    admin = AdminClient(options_for_producer(scene.cluster.kafka, scene.settings.kafka_options))

    def in_sync() -> bool:
        try:
            topics: dict[str, Any] = admin.list_topics(timeout=5).topics
        except KafkaException:
            return False
        parts = [part for topic in topics.values() for part in topic.partitions.values()]
        return bool(parts) and all(
            part.leader >= 0 and len(part.isrs) == len(part.replicas) for part in parts
        )

    scene.cluster.wait_for(in_sync, "every copy is in sync", timeout_s=_IN_SYNC_S)
