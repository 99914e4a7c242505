"""What the demo waits for before it begins."""

from __future__ import annotations

import time

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from relevo_engine.local.cluster import LocalCluster
from relevo_engine.local.errors import LocalError

WORKERS_READY_S = 60.0
POLL_S = 0.1


def await_workers(cluster: LocalCluster, types: list[str], workers: int) -> None:
    """Wait until the workers have shared out every activation topic among themselves.

    Raises:
        LocalError: They have not within a minute.
    """
    admin = AdminClient({"bootstrap.servers": cluster.kafka})
    waiting = {f"{cluster.name}.workers.{job_type}" for job_type in types}
    deadline = time.monotonic() + WORKERS_READY_S
    while waiting:
        for group, answer in admin.describe_consumer_groups(sorted(waiting)).items():
            try:
                members = answer.result().members
            except KafkaException:
                continue  # not there yet
            owned = sum(len(member.assignment.topic_partitions) for member in members)
            if len(members) == workers and owned >= cluster.partitions:
                waiting.discard(group)
        if time.monotonic() > deadline:
            raise LocalError(f"no worker took up {', '.join(sorted(waiting))} in {WORKERS_READY_S:g} s")
        time.sleep(POLL_S)
