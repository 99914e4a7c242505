"""Topics on a real broker: made as they must be, and refused where they aren't."""

from __future__ import annotations

import signal
from concurrent.futures import Future
from unittest.mock import MagicMock

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

from relevo_engine.api.client import ApiClient
from relevo_engine.local.kafka import admin
from relevo_engine.topic_admin import TopicAdmin
from relevo_engine.topics import plan
from tests.support.brokers import Brokers
from tests.support.nodes import NodeProcess, Ran, relevo


def make(brokers: Brokers, name: str, partitions: int = 2, settings: dict[str, str] | None = None) -> None:
    topic = NewTopic(
        name, partitions, 1, config={"retention.ms": "-1", "max.message.bytes": "1200000"} | (settings or {})
    )
    client = admin(brokers.kafka)  # held until the answer is there
    client.create_topics([topic])[name].result(30)


def topics(command: str, brokers: Brokers, cluster: str, *more: str) -> Ran:
    return relevo(
        "topics", command, "--kafka", brokers.kafka, "--cluster", cluster, "--partitions", "2", *more
    )


def node(brokers: Brokers, cluster: str, *more: str) -> tuple[str, ...]:
    return (
        "--node-id", "a", "--kafka", brokers.kafka, "--zookeeper", brokers.zookeeper, "--cluster", cluster,
        "--partitions", "2", "--settle-s", "0", *more,
    )  # fmt: skip


def test_topics_are_made_once_and_found_good(brokers: Brokers, cluster_name: str) -> None:
    refused = topics("init", brokers, cluster_name)
    assert refused.code == 3, refused
    assert "--allow-unsafe-topics" in refused.err
    made = topics("init", brokers, cluster_name, "--allow-unsafe-topics", "--type", "mail")
    assert made.code == 0, made
    assert [line.split()[1].removeprefix(cluster_name) for line in made.out.splitlines()] == [
        ".commands", ".log", ".snapshots", ".activations.mail",
    ]  # fmt: skip
    again = topics("init", brokers, cluster_name, "--allow-unsafe-topics", "--type", "mail")
    assert (again.code, again.out) == (0, "nothing to do: all topics are there\n")
    unsafe = topics("check", brokers, cluster_name)
    assert unsafe.code == 3, unsafe
    assert "replication is 1, must be at least 3" in unsafe.err
    accepted = topics("check", brokers, cluster_name, "--allow-unsafe-topics")
    assert accepted.code == 0, accepted
    assert "warning: " in accepted.err


def test_topics_that_are_made_have_the_settings_they_must(brokers: Brokers, cluster_name: str) -> None:
    client = TopicAdmin(brokers.kafka, cluster_name)
    client.init(2, ["mail"], allow_unsafe=True)
    found = client.overview().topics
    log, mail = found[f"{cluster_name}.log"], found[f"{cluster_name}.activations.mail"]
    assert (log.partitions, mail.partitions) == (2, 2)
    assert (log.config["retention.ms"], mail.config["retention.ms"]) == ("-1", "604800000")
    assert log.config["cleanup.policy"] == "delete"
    assert found[f"{cluster_name}.snapshots"].config["cleanup.policy"] == "compact"
    assert log.config["unclean.leader.election.enable"] == "false"
    assert client.slots() == {"mail": 2}


def test_missing_topics_are_told_with_what_to_run(brokers: Brokers, cluster_name: str) -> None:
    ran = relevo("node", *node(brokers, cluster_name))
    assert ran.code == 3, ran
    assert f"relevo topics init --cluster {cluster_name} --kafka {brokers.kafka} --partitions 2" in ran.err
    assert "Traceback" not in ran.err


def test_a_node_makes_missing_topics_when_asked(brokers: Brokers, cluster_name: str) -> None:
    with NodeProcess(*node(brokers, cluster_name, "--create-topics", "--allow-unsafe-topics")) as running:
        running.await_ready()


def test_nodes_work_without_the_topic_of_snapshots_and_say_so(brokers: Brokers, cluster_name: str) -> None:
    """A cluster from before snapshots has none, and an upgrade must not stop it."""
    make(brokers, f"{cluster_name}.commands")
    make(brokers, f"{cluster_name}.log")
    for epoch in (1, 2):
        with NodeProcess(*node(brokers, cluster_name, "--allow-unsafe-topics")) as running:
            running.await_ready()
            partitions = ApiClient(running.address).get("/v1/partitions")["partitions"]
            assert [(each["role"], each["epoch"]) for each in partitions] == [("LEADING", epoch)] * 2
            running.signal(signal.SIGTERM)
            assert running.await_exit() == 0
        assert '"no snapshots"' in running.err
        assert f"relevo topics init --cluster {cluster_name}" in running.err
    checked = topics("check", brokers, cluster_name, "--allow-unsafe-topics")
    assert checked.code == 3, checked
    assert f"{cluster_name}.snapshots: existence is missing" in checked.err
    made = topics("init", brokers, cluster_name, "--allow-unsafe-topics")
    assert (made.code, made.out) == (0, f"created {cluster_name}.snapshots\n")


def test_topics_that_somebody_else_is_making_are_waited_for() -> None:
    """Nodes that start together with --create-topics: one makes a topic, another looks for it too soon."""
    admin = TopicAdmin("localhost:1", "c")
    client = admin._client = MagicMock()
    made, there = Future[None](), Future[None]()
    made.set_result(None)
    there.set_exception(KafkaException(KafkaError(KafkaError.TOPIC_ALREADY_EXISTS)))
    client.create_topics.return_value = {"c.commands": made, "c.log": there}
    led = MagicMock(error=None, partitions={0: MagicMock(leader=1)})
    client.list_topics.side_effect = [
        MagicMock(topics={"c.commands": led}),
        MagicMock(topics={"c.commands": led, "c.log": MagicMock(error=None, partitions={})}),
        MagicMock(topics={"c.commands": led, "c.log": led}),
    ]
    assert admin.create([plan("c", name, 1, 1) for name in ("c.commands", "c.log")]) == ["c.commands"]
    assert client.list_topics.call_count == 3


def test_a_wrong_partition_count_is_refused_even_where_unsafe_topics_are_allowed(
    brokers: Brokers, cluster_name: str
) -> None:
    """With another count the same key would be looked for in another partition."""
    make(brokers, f"{cluster_name}.commands", 3)
    make(brokers, f"{cluster_name}.log", 2)
    ran = relevo("node", *node(brokers, cluster_name, "--allow-unsafe-topics"))
    assert ran.code == 3, ran
    assert f"{cluster_name}.commands: partitions is 3, must be 2" in ran.err
    assert "Set partitions = 3" in ran.err


@pytest.mark.parametrize(
    ("setting", "value", "remedy"),
    [
        ("retention.ms", "604800000", "--add-config retention.ms=-1"),
        ("unclean.leader.election.enable", "true", "--add-config unclean.leader.election.enable=false"),
    ],
)
def test_an_unsafe_log_is_refused_with_the_command_that_mends_it(
    brokers: Brokers, cluster_name: str, setting: str, value: str, remedy: str
) -> None:
    make(brokers, f"{cluster_name}.commands")
    make(brokers, f"{cluster_name}.log", 2, {setting: value})
    ran = relevo("node", *node(brokers, cluster_name))
    assert ran.code == 3, ran
    assert f"--entity-name {cluster_name}.log {remedy}" in ran.err


def test_a_compacted_log_is_refused_whatever_is_allowed(brokers: Brokers, cluster_name: str) -> None:
    """Compaction keeps the last event of a job and forgets how it came there."""
    make(brokers, f"{cluster_name}.commands")
    make(brokers, f"{cluster_name}.log", settings={"cleanup.policy": "compact"})
    ran = relevo("node", *node(brokers, cluster_name, "--allow-unsafe-topics"))
    assert ran.code == 3, ran
    assert "cleanup.policy is compact, must be delete" in ran.err


def test_an_illegal_type_name_is_refused(brokers: Brokers, cluster_name: str) -> None:
    ran = topics("init", brokers, cluster_name, "--type", "a/b", "--allow-unsafe-topics")
    assert ran.code == 2, ran
    assert "'a/b'" in ran.err


def test_kafka_that_is_away_is_told_without_traceback() -> None:
    ran = relevo("topics", "check", "--kafka", "127.0.0.1:1")
    assert ran.code == 6, ran
    assert "Kafka at 127.0.0.1:1 did not answer" in ran.err
    assert "Traceback" not in ran.err
