"""The HTTP API on nodes that are made up: who answers, who is asked, and what is said when nobody can."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer

from relevo_engine.api.answers import ASKED_BY
from relevo_engine.api.backend import LocalPartition, NodeInfo
from relevo_engine.api.client import ApiClient, ApiError
from relevo_engine.api.server import make_app
from relevo_engine.core.channels import FixedChannels
from relevo_engine.core.rules import Rules
from relevo_engine.machine import PartitionMachine
from relevo_partitions.errors import NotLeader, ZooKeeperUnavailable
from relevo_partitions.statemachine import Incoming, Term
from relevo_schemas.codec import encode, job_spec
from relevo_schemas.commands import CreateJob
from relevo_schemas.partitioning import partition_of

PARTITIONS = 2
NOW_MS = 1_700_000_000_000


def machine(partition: int, *keys: str, variables: bytes = b'{"n":1}') -> PartitionMachine:
    made = PartitionMachine(
        Rules(partition=partition, partitions=PARTITIONS), FixedChannels(any_type=PARTITIONS)
    )
    made.lead(Term("a", "1"), NOW_MS)
    for offset, key in enumerate(keys):
        command = CreateJob(job_spec(key=key, type="mail", variables=variables))
        made.step([Incoming(offset, key.encode(), encode(command))], NOW_MS + offset)
    return made


def key_of(partition: int, number: int = 0) -> str:
    keys = (f"job/{i}" for i in range(1_000))
    return [key for key in keys if partition_of(key, PARTITIONS) == partition][number]


class FakeNode:
    """A node that leads what it is given."""

    def __init__(self, node_id: str, machines: dict[int, PartitionMachine]) -> None:
        self.node_id = node_id
        self.cluster_name = "relevo"
        self.partitions = PARTITIONS
        self.machines = machines
        self.reasons: list[str] = []
        self.cluster: dict[str, NodeInfo] = {}
        self.claims: dict[int, str] = {}
        self.zookeeper_is_away = False
        self.lag = 0

    def local(self) -> list[LocalPartition]:
        return [
            LocalPartition(p, "LEADING", 1, 0, hand_over="a better one isn't hot yet")
            if p in self.machines
            else LocalPartition(p, "STANDBY", 1, None, standby_lag=self.lag, hot=self.lag == 0)
            for p in range(PARTITIONS)
        ]

    def takeovers(self) -> list[dict[str, Any]]:
        return [{"partition": 0, "epoch": 7}]

    def not_ready(self) -> list[str]:
        return self.reasons

    def metrics(self) -> bytes:
        return b"relevo_up 1\n"

    def read(self, partition: int, query: Callable[[Any], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        if partition in self.machines:
            future.set_result(query(self.machines[partition]))
        else:
            future.set_exception(NotLeader(partition))
        return future

    def leaders(self) -> dict[int, str]:
        self._ask()
        return self.claims

    def nodes(self) -> dict[str, NodeInfo]:
        self._ask()
        return self.cluster

    def _ask(self) -> None:
        if self.zookeeper_is_away:
            raise ZooKeeperUnavailable("no answer")


class Cluster:
    """Two nodes, `a` for partition 0 and `b` for partition 1, each with an HTTP server."""

    def __init__(self) -> None:
        self.a = FakeNode("a", {0: machine(0, key_of(0), key_of(0, 1))})
        self.b = FakeNode("b", {1: machine(1, key_of(1))})
        self.clients: dict[str, TestClient[Any, Any]] = {}

    async def start(self, stack: AsyncExitStack) -> None:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        nodes = {}
        for node in (self.a, self.b):
            server = TestServer(make_app(node, session))
            self.clients[node.node_id] = await stack.enter_async_context(TestClient(server))
            nodes[node.node_id] = NodeInfo(node.node_id, f"{server.host}:{server.port}", "1")
        for node in (self.a, self.b):
            node.cluster = dict(nodes)
            node.claims = {0: "a", 1: "b"}

    async def get(self, node: str, path: str, **headers: str) -> tuple[int, Any, Any]:
        async with self.clients[node].get(path, headers=headers) as response:
            return response.status, await response.json(), response.headers


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        made = Cluster()
        await made.start(stack)
        yield made


async def test_a_job_is_found_whichever_node_is_asked(cluster: Cluster) -> None:
    for node in ("a", "b"):
        status, body, _ = await cluster.get(node, f"/v1/jobs/{key_of(1)}")
        assert (status, body["key"], body["state"]) == (200, key_of(1), "ACTIVE")
        assert (body["variables"], body["partition"], body["answered_by"]) == ({"n": 1}, 1, "b")


async def test_a_key_with_slashes_and_other_signs_is_carried_whole(cluster: Cluster) -> None:
    key = "a/b?c=d&é %2F"
    node = "ab"[partition_of(key, PARTITIONS)]
    other = "ba"[partition_of(key, PARTITIONS)]
    holder = cluster.a if node == "a" else cluster.b
    holder.machines = {partition_of(key, PARTITIONS): machine(partition_of(key, PARTITIONS), key)}
    address = cluster.a.cluster[other].address
    assert (await asyncio.to_thread(ApiClient(address).job, key))["key"] == key


@pytest.mark.parametrize(
    "variables",
    [
        b"[" * 254 + b"]" * 254,
        b"[" * 900 + b"]" * 900,
        b'{"wei":12345678901234567890123,"least":-9223372036854775809}',
        b'{\n "a": [1,\r\n2]\n}',
    ],
)
async def test_a_jobs_variables_are_answered_as_they_are(cluster: Cluster, variables: bytes) -> None:
    """One nested as deep as the SDK allows was answered with 500, and numbers beyond 64 bits with others."""
    cluster.b.machines = {1: machine(1, key_of(1), variables=variables)}
    for node in ("a", "b"):
        async with cluster.clients[node].get(f"/v1/jobs/{key_of(1)}") as response:
            text = await response.read()
        assert response.status == 200
        assert variables in text
        address = cluster.a.cluster[node].address
        found = await asyncio.to_thread(ApiClient(address).job, key_of(1))
        assert found["variables"] == json.loads(variables)
        assert found["answered_by"] == "b"


@pytest.mark.parametrize("variables", [b"1,2", b"", b"1],[2", b"\xff", b"[" * 1_024 + b"]" * 1_024])
async def test_variables_that_are_no_json_are_answered_as_text(cluster: Cluster, variables: bytes) -> None:
    """Other clients may send anything: put in as JSON it would break the whole answer."""
    cluster.b.machines = {1: machine(1, key_of(1), variables=variables)}
    for node in ("a", "b"):
        status, body, _ = await cluster.get(node, f"/v1/jobs/{key_of(1)}")
        assert (status, body["variables_text"]) == (200, variables.decode(errors="replace"))


async def test_an_answer_too_deep_for_the_client_is_an_ordinary_error(cluster: Cluster) -> None:
    variables = b"[" * 1_000 + b"]" * 1_000
    cluster.b.machines = {1: machine(1, key_of(1), variables=variables)}
    with pytest.raises(ApiError, match="nested too deep") as caught:
        await asyncio.to_thread(ApiClient(cluster.a.cluster["b"].address).job, key_of(1))
    assert caught.value.code == "TOO_DEEP"


async def test_an_unknown_job_is_404_with_what_to_do(cluster: Cluster) -> None:
    for node in ("a", "b"):
        status, body, _ = await cluster.get(node, f"/v1/jobs/{key_of(0, 5)}")
        assert (status, body["error"]["code"]) == (404, "NOT_FOUND")
        assert body["error"]["advice"]


async def test_without_a_leader_the_answer_is_503_and_when_to_ask_again(cluster: Cluster) -> None:
    cluster.b.machines.clear()
    cluster.a.claims = {0: "a"}
    status, body, headers = await cluster.get("a", f"/v1/jobs/{key_of(1)}")
    assert (status, body["error"]["code"], headers["Retry-After"]) == (503, "NO_LEADER", "1")


async def test_a_question_that_was_passed_on_is_not_passed_on_again(cluster: Cluster) -> None:
    """Two nodes that each take the other for the leader would ask each other for ever."""
    cluster.b.machines.clear()
    cluster.b.claims = {0: "a", 1: "a"}
    status, body, _ = await cluster.get("a", f"/v1/jobs/{key_of(1)}")
    assert (status, body["error"]["code"]) == (503, "NOT_LEADER")
    status, body, _ = await cluster.get("b", f"/v1/jobs/{key_of(1)}", **{ASKED_BY: "x"})
    assert (status, body["error"]["code"]) == (503, "NOT_LEADER")


async def test_a_leader_that_does_not_answer_is_named(cluster: Cluster) -> None:
    cluster.a.cluster["b"] = NodeInfo("b", "127.0.0.1:1", "1")
    status, body, headers = await cluster.get("a", f"/v1/jobs/{key_of(1)}")
    assert (status, body["error"]["code"], headers["Retry-After"]) == (503, "LEADER_UNREACHABLE", "1")
    assert "node b" in body["error"]["message"]


async def test_without_zookeeper_a_leader_still_answers_for_its_own(cluster: Cluster) -> None:
    cluster.a.zookeeper_is_away = True
    assert (await cluster.get("a", f"/v1/jobs/{key_of(0)}"))[0] == 200
    status, body, _ = await cluster.get("a", f"/v1/jobs/{key_of(1)}")
    assert (status, body["error"]["code"]) == (503, "ZOOKEEPER_UNAVAILABLE")
    status, body, _ = await cluster.get("a", "/v1/partitions")
    assert [row["role"] for row in body["partitions"]] == ["LEADING", None]
    assert body["not_reached"]


async def test_all_partitions_are_told_by_their_leaders(cluster: Cluster) -> None:
    for node in ("a", "b"):
        status, body, _ = await cluster.get(node, "/v1/partitions")
        assert status == 200
        assert [(row["partition"], row["leader"], row["role"]) for row in body["partitions"]] == [
            (0, "a", "LEADING"),
            (1, "b", "LEADING"),
        ]
        assert [row["jobs"] for row in body["partitions"]] == [{"ACTIVE": 2}, {"ACTIVE": 1}]
        assert body["partitions"][0]["epoch"] == 1
        assert body["partitions"][0]["position"] == 2
        assert body["not_reached"] == []


async def test_each_node_tells_what_it_stands_by_for(cluster: Cluster) -> None:
    """A partition without anybody hot would be slow to take over: its operator has to see that."""
    cluster.b.lag = 70
    for node in ("a", "b"):
        _, body, _ = await cluster.get(node, "/v1/partitions")
        assert [row["standbys"] for row in body["partitions"]] == [
            [{"node": "b", "hot": False, "lag": 70, "held_back": None}],
            [{"node": "a", "hot": True, "lag": 0, "held_back": None}],
        ]
        assert {row["hand_over"] for row in body["partitions"]} == {"a better one isn't hot yet"}
    cluster.b.lag = -1
    _, body, _ = await cluster.get("a", "/v1/partitions")
    assert body["partitions"][0]["standbys"][0]["lag"] is None


async def test_takeovers_are_told_by_the_node_that_made_them(cluster: Cluster) -> None:
    status, body, _ = await cluster.get("a", "/v1/takeovers")
    assert (status, body) == (200, {"node": "a", "takeovers": [{"partition": 0, "epoch": 7}]})


async def test_what_could_not_be_reached_is_marked(cluster: Cluster) -> None:
    cluster.a.cluster["b"] = NodeInfo("b", "127.0.0.1:1", "1")
    status, body, _ = await cluster.get("a", "/v1/partitions")
    assert status == 200
    assert body["partitions"][1]["leader"] == "b"
    assert body["partitions"][1]["error"]["code"] == "NOT_REACHED"
    assert body["not_reached"][0]["node"] == "b"
    cluster.a.claims = {0: "a"}
    cluster.a.cluster.pop("b")
    _, body, _ = await cluster.get("a", "/v1/partitions")
    assert body["partitions"][1]["error"]["code"] == "NO_LEADER"


async def test_jobs_are_listed_over_all_partitions(cluster: Cluster) -> None:
    _, body, _ = await cluster.get("b", "/v1/jobs")
    assert {job["key"] for job in body["jobs"]} == {key_of(0), key_of(0, 1), key_of(1)}
    _, body, _ = await cluster.get("b", "/v1/jobs?limit=1&state=active&type=mail")
    assert len(body["jobs"]) == 1
    _, body, _ = await cluster.get("b", "/v1/jobs?type=other")
    assert body["jobs"] == []


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v1/jobs?state=GONE", 400, "INVALID_STATE"),
        ("/v1/jobs?state=COMPLETED", 400, "INVALID_STATE"),
        ("/v1/jobs?limit=0", 400, "INVALID_LIMIT"),
        ("/v1/jobs?limit=x", 400, "INVALID_LIMIT"),
        ("/v1/jobs/" + "k" * 600, 400, "INVALID_KEY"),
        ("/v2", 404, "NO_SUCH_PATH"),
    ],
)
async def test_bad_questions_are_refused_in_json(cluster: Cluster, path: str, status: int, code: str) -> None:
    found, body, _ = await cluster.get("a", path)
    assert (found, body["error"]["code"]) == (status, code)
    assert body["error"]["message"]


async def test_a_method_that_is_not_allowed_is_told_which_are(cluster: Cluster) -> None:
    async with cluster.clients["a"].post("/v1/jobs") as response:
        body = await response.json()
        assert (response.status, body["error"]["code"]) == (405, "METHOD_NOT_ALLOWED")
        assert set(response.headers["Allow"].split(",")) == {"GET", "HEAD"}


async def test_readiness_is_told_with_reasons(cluster: Cluster) -> None:
    assert (await cluster.get("a", "/healthz"))[0] == 200
    assert (await cluster.get("a", "/readyz"))[0] == 200
    cluster.a.reasons = ["partition 1 is REPLAYING"]
    status, body, _ = await cluster.get("a", "/readyz")
    assert (status, body["reasons"]) == (503, ["partition 1 is REPLAYING"])
    assert (await cluster.get("a", "/healthz"))[0] == 200


async def test_nodes_are_listed_with_what_they_lead(cluster: Cluster) -> None:
    _, body, _ = await cluster.get("a", "/v1/nodes")
    assert [(node["node"], node["leads"], node["self"]) for node in body["nodes"]] == [
        ("a", 1, True),
        ("b", 1, False),
    ]


async def test_metrics_are_served_as_text(cluster: Cluster) -> None:
    async with cluster.clients["a"].get("/metrics") as response:
        assert response.status == 200
        assert response.content_type == "text/plain"
        assert await response.text() == "relevo_up 1\n"
