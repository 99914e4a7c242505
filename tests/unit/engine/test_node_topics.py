"""What a node makes of topics that Kafka refuses to make: it does without where it can."""

from __future__ import annotations

import threading
from typing import Any
from unittest.mock import MagicMock

import pytest

from relevo_engine import node
from relevo_engine.errors import TopicsError
from relevo_engine.settings import NodeSettings
from relevo_engine.topics import Finding, TopicFacts, judge, own_topics, plan

REFUSAL = "Kafka at k:1 has 2 broker(s), and a record is safe only on 3."


def missing(*names: str) -> list[Finding]:
    """What is found where these topics of the cluster ``c`` aren't there, and all else is as it must be."""
    plans = [plan("c", name, 4, 3) for name in own_topics("c") if name not in names]
    facts = {each.name: TopicFacts(each.name, 4, 3, each.config) for each in plans}
    return judge("c", facts, 4, kafka="k:1", brokers=2)


def prepared(monkeypatch: pytest.MonkeyPatch, findings: list[Finding], **settings: Any) -> MagicMock:
    """The log of a node that has prepared its topics, where none can be made."""
    admin = MagicMock()
    admin.init.side_effect = TopicsError(REFUSAL)
    admin.check.return_value = findings
    monkeypatch.setattr(node, "TopicAdmin", lambda *_: admin)
    one = node.Node(NodeSettings(node_id="a", cluster="c", create_topics=True, **settings), threading.Event())
    log = one._log = MagicMock()
    try:
        one._prepare_topics(None)
    finally:
        one._api._loop.close()
    return log


def test_a_node_starts_without_the_topic_of_snapshots_that_can_not_be_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An upgrade while a broker is down, or without the right to make topics: its nodes would all end."""
    log = prepared(monkeypatch, missing("c.snapshots"))
    warned = [(each.args[0], each.kwargs["why"]) for each in log.warning.call_args_list]
    assert warned[0] == ("topics not made", REFUSAL)
    assert [headline for headline, _ in warned[1:]] == ["no snapshots"]


@pytest.mark.parametrize("name", ["c.commands", "c.log"])
def test_what_nothing_works_without_ends_the_node_and_tells_why_it_was_not_made(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """To be told to make the topic helps nobody who has just tried."""
    with pytest.raises(TopicsError) as refused:
        prepared(monkeypatch, missing(name, "c.snapshots"))
    assert f"{name}: existence is missing" in str(refused.value)
    assert str(refused.value).endswith(f"What is missing could not be made: {REFUSAL}")
