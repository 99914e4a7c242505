"""Which topics are refused, and what the user is told to change."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest

from relevo_engine.errors import SettingsError, TopicsError, UnreachableError
from relevo_engine.topic_admin import Overview, TopicAdmin, require_safe
from relevo_engine.topics import TopicFacts, judge, plan
from relevo_engine.verify.reader import TopicReader

SAFE = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "min.insync.replicas": "2",
    "unclean.leader.election.enable": "false",
    "max.message.bytes": "1200000",
}


OWN = ("c.commands", "c.log", "c.snapshots")


def facts(name: str, partitions: int = 4, replication: int = 3, **config: str) -> TopicFacts:
    changes = {key.replace("_", "."): value for key, value in config.items()}
    policy = {"cleanup.policy": "compact"} if name == "c.snapshots" else {}
    return TopicFacts(name, partitions, replication, SAFE | policy | changes)


def judged(*topics: TopicFacts) -> list[tuple[str, str, bool]]:
    own = {name: facts(name) for name in OWN}
    found = judge("c", own | {each.name: each for each in topics}, 4, kafka="k:1", brokers=3)
    return [(each.topic, each.setting, each.unsafe_only) for each in found]


def test_topics_as_they_are_made_are_accepted() -> None:
    for name in (*OWN, "c.activations.mail"):
        made = plan("c", name, 4, brokers=3)
        assert judged(TopicFacts(name, made.partitions, made.replication, made.config)) == []


def test_on_one_broker_topics_are_made_with_one_copy_and_called_unsafe() -> None:
    made = plan("c", "c.log", 4, brokers=1)
    assert (made.replication, made.config["min.insync.replicas"]) == (1, "1")
    found = judged(TopicFacts(made.name, made.partitions, made.replication, made.config))
    assert found == [("c.log", "replication", True), ("c.log", "min.insync.replicas", True)]


def test_missing_topics_are_told_with_the_command_that_makes_them() -> None:
    found = judge("c", {}, 4, kafka="k:1", brokers=3)
    assert [each.topic for each in found] == list(OWN)
    assert found[0].remedy == "relevo topics init --cluster c --kafka k:1 --partitions 4"
    with pytest.raises(TopicsError, match=r"c\.commands: existence is missing"):
        require_safe(found, allow_unsafe=True)


def test_a_cluster_from_before_snapshots_is_let_through_with_a_warning() -> None:
    """After an upgrade its nodes would not start until somebody has made the topic, and jobs would wait."""
    found = judge(
        "c", {name: facts(name) for name in OWN if name != "c.snapshots"}, 4, kafka="k:1", brokers=3
    )
    assert require_safe(found, allow_unsafe=False) == found
    (warned,) = found
    assert (warned.topic, warned.slow_only) == ("c.snapshots", True)
    assert warned.remedy == "relevo topics init --cluster c --kafka k:1 --partitions 4"


@pytest.mark.parametrize(
    ("topic", "setting", "unsafe_only"),
    [
        (facts("c.log", partitions=3), "partitions", False),
        (facts("c.commands", partitions=8), "partitions", False),
        (facts("c.log", cleanup_policy="compact"), "cleanup.policy", False),
        (facts("c.log", cleanup_policy="compact,delete"), "cleanup.policy", False),
        (facts("c.commands", cleanup_policy="compact"), "cleanup.policy", False),
        (facts("c.snapshots", cleanup_policy="delete"), "cleanup.policy", False),
        (facts("c.snapshots", cleanup_policy="compact,delete"), "cleanup.policy", False),
        (facts("c.snapshots", partitions=3), "partitions", False),
        (facts("c.snapshots", max_message_bytes="1000"), "max.message.bytes", False),
        (facts("c.log", max_message_bytes="1000"), "max.message.bytes", False),
        (facts("c.log", replication=2), "replication", True),
        (facts("c.log", min_insync_replicas="1"), "min.insync.replicas", True),
        (facts("c.log", min_insync_replicas="4"), "min.insync.replicas", False),
        (facts("c.log", unclean_leader_election_enable="true"), "unclean.leader.election.enable", True),
        (facts("c.log", retention_ms="604800000"), "retention.ms", True),
        (facts("c.commands", retention_bytes="1000"), "retention.bytes", True),
        (facts("c.activations.mail", retention_ms="1000"), "retention.ms", True),
        (facts("c.activations.mail", partitions=6), "partitions", False),
    ],
)
def test_each_wrong_setting_is_found(topic: TopicFacts, setting: str, unsafe_only: bool) -> None:
    assert judged(topic) == [(topic.name, setting, unsafe_only)]


def test_a_multiple_of_partitions_and_a_longer_retention_are_fine_for_activations() -> None:
    assert judged(facts("c.activations.mail", partitions=8, retention_ms="-1")) == []
    assert judged(facts("c.activations.mail", partitions=4, retention_ms="999999999")) == []


def test_a_finding_says_what_to_run() -> None:
    own = {name: facts(name) for name in OWN}
    own["c.log"] = facts("c.log", retention_ms="5")
    (found,) = judge("c", own, 4, kafka="k:1", brokers=3)
    assert str(found) == (
        "c.log: retention.ms is 5, must be -1 (for ever): Kafka would delete records that are still needed.\n"
        "      kafka-configs.sh --bootstrap-server k:1 --alter --entity-type topics --entity-name c.log"
        " --add-config retention.ms=-1"
    )


def test_an_option_that_librdkafka_does_not_know_is_told_by_its_name() -> None:
    with pytest.raises(ValueError, match=r"kafka_options: .*sasl.mechanismm"):
        TopicAdmin("localhost:1", "c", {"sasl.mechanismm": "PLAIN"})
    with pytest.raises(SettingsError, match=r"kafka_options: .*sasl.mechanismm"):
        TopicReader("localhost:1", {"sasl.mechanismm": "PLAIN"}).bounds("c.log", None)


def test_a_type_is_not_made_with_fewer_copies_because_a_broker_knows_nothing_yet() -> None:
    admin = TopicAdmin("localhost:1", "c")
    admin._client = MagicMock()
    unknown = MagicMock(error="Unknown topic or partition", partitions={})
    admin._client.list_topics.return_value.topics = {"c.log": unknown}
    with pytest.raises(UnreachableError, match=r"doesn't know the topic c\.log yet"):
        admin.create_type("mail", 4)
    admin._client.create_topics.assert_not_called()


def test_no_topic_is_made_for_a_name_that_nothing_accepts() -> None:
    with pytest.raises(ValueError, match=r"'my\.cluster' must be 1 to 100 letters"):
        TopicAdmin("localhost:1", "my.cluster")


def test_topics_just_made_are_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another broker answers than the one that knew them, and a node would end for a topic that is there."""
    admin = TopicAdmin("localhost:1", "c")
    answers = [Overview(3, {}), Overview(3, {name: facts(name) for name in OWN})]
    monkeypatch.setattr(admin, "overview", lambda _timeout_s: answers.pop(0))
    assert admin.check(4, just_made=True) == []
    answers += [Overview(3, {})]
    assert [each.topic for each in admin.check(4)] == list(OWN)
    answers += [Overview(3, {})]
    assert len(admin.check(4, just_made=True, timeout_s=-1.0)) == len(OWN)
