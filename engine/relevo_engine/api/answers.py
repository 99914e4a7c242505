"""Finds the answers: from this node's memory where it leads, else from the node that does."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote

import aiohttp
import orjson

from relevo_engine import queries
from relevo_engine.api.backend import Backend, LocalPartition, NodeInfo
from relevo_engine.api.problems import RETRY_AFTER_S, AnswerError
from relevo_engine.core.job import JobState
from relevo_partitions.errors import NotLeader, PartitionsError
from relevo_schemas.partitioning import partition_of

ASKED_BY: Final = "Relevo-Asked-By"
"""Header of a question that one node passes on to another, with its name: it must not be passed on again."""
READ_TIMEOUT_S: Final = 5.0
_PEER_TIMEOUT_S: Final = 6.0
_ZOOKEEPER_TIMEOUT_S: Final = 5.0
_LEADING: Final = "LEADING"


class Answers:
    """What the handlers answer with.

    Args:
        backend: The node.
        session: For asking other nodes.
    """

    def __init__(self, backend: Backend, session: aiohttp.ClientSession) -> None:
        self._backend = backend
        self._session = session

    @property
    def cluster(self) -> str:
        """The cluster's name: who asks can see that it is the one they meant."""
        return self._backend.cluster_name

    async def job(self, key: str, *, passed_on: bool) -> tuple[int, Any]:
        """HTTP status and body for one job; the body is for orjson to write."""
        partition = partition_of(key, self._backend.partitions)
        try:
            found = await self._read(partition, lambda machine: queries.find_job(machine, key))
        except NotLeader as error:
            if passed_on:
                raise _not_leader(self._backend.node_id, partition) from error
            return await self._pass_on(partition, f"/v1/jobs/{_quoted(key)}")
        if found is None:
            raise AnswerError(
                404,
                "NOT_FOUND",
                f"there is no job with the key {key!r}, or it ended so long ago that it is forgotten",
                "Check the key. The log tells of forgotten jobs:"
                " relevo events tail --key KEY --from start --no-follow",
            )
        return 200, {**found, "partition": partition, "answered_by": self._backend.node_id}

    async def jobs(
        self, where: JobState | None, job_type: str | None, limit: int, *, local: bool
    ) -> dict[str, Any]:
        """Jobs of all partitions, or of those that this node leads."""

        def query(machine: Any) -> list[dict[str, Any]]:
            return queries.list_jobs(machine, where=where, job_type=job_type, limit=limit)

        parts, failures = await self._of_mine(query)
        jobs = [[{**job, "partition": partition} for job in found] for partition, found in parts.items()]
        if not local:
            wanted = {"state": where or "", "type": job_type or "", "limit": str(limit)}
            query_of_others = {name: value for name, value in wanted.items() if value}
            for answer in await self._of_others("/v1/jobs", query_of_others, failures):
                jobs.append(answer["jobs"])
                failures += answer["not_reached"]
            claimed = {*parts, *await self._claimed(failures)}
            for partition in sorted(set(range(self._backend.partitions)) - claimed):
                reason = "nobody leads it at this moment"
                failures.append({"partition": partition, "node": None, "reason": reason})
        return {"jobs": queries.merge_lists(jobs, limit), "not_reached": failures}

    async def partition_rows(self, *, local: bool) -> dict[str, Any]:
        """All partitions, or those that this node leads."""
        parts, failures = await self._of_mine(lambda machine: queries.describe(machine))
        seen = {each.partition: each for each in self._backend.local()}
        standbys = self._standbys()
        rows = {partition: self._row(seen[partition], described) for partition, described in parts.items()}
        if not local:
            for answer in await self._of_others("/v1/partitions", {}, failures):
                rows |= {row["partition"]: row for row in answer["partitions"]}
                standbys += answer.get("standbys", ())  # a node of an earlier version tells none
                failures += answer["not_reached"]
            claimed = await self._claimed(failures)
            for partition in range(self._backend.partitions):
                if partition not in rows:
                    rows[partition] = _absent(partition, claimed.get(partition), failures)
        answer = {
            "cluster": self.cluster,
            "partitions": [rows[partition] for partition in sorted(rows)],
            "not_reached": failures,
        }
        if local:
            return answer | {"standbys": standbys}
        for partition, row in rows.items():
            row["standbys"] = [
                {name: each.get(name) for name in ("node", "hot", "lag", "held_back")}
                for each in sorted(standbys, key=lambda each: str(each["node"]))
                if each["partition"] == partition
            ]
        return answer

    def takeovers(self) -> dict[str, Any]:
        """This node's last takeovers."""
        return {"node": self._backend.node_id, "takeovers": self._backend.takeovers()}

    async def nodes(self) -> dict[str, Any]:
        """The nodes that are alive, and how many partitions each leads."""
        found = await self._ask_zookeeper(self._backend.nodes)
        leaders = await self._ask_zookeeper(self._backend.leaders)
        led = list(leaders.values())
        process = {"pid": os.getpid(), "host": socket.gethostname()}
        return {
            "cluster": self.cluster,
            "nodes": [
                {**found[name]._asdict(), "leads": led.count(name), "self": name == self._backend.node_id}
                | (process if name == self._backend.node_id else {})
                for name in sorted(found)
            ],
        }

    def _standbys(self) -> list[dict[str, Any]]:
        """What this node stands by for."""
        return [
            {
                "partition": each.partition,
                "node": self._backend.node_id,
                "hot": each.hot,
                "lag": each.standby_lag if each.standby_lag >= 0 else None,
                "held_back": each.held_back,
            }
            for each in self._backend.local()
            if each.standby_lag is not None
        ]

    def _row(self, seen: LocalPartition, described: dict[str, Any]) -> dict[str, Any]:
        lag = {"lag": seen.lag} if seen.lag is not None else {}
        head = {"partition": seen.partition, "leader": self._backend.node_id, "role": _LEADING}
        return head | described | lag | {"hand_over": seen.hand_over, "held_back": seen.held_back}

    async def _read(self, partition: int, query: Callable[[Any], Any]) -> Any:
        try:
            return await asyncio.wait_for(
                asyncio.wrap_future(self._backend.read(partition, query)), READ_TIMEOUT_S
            )
        except NotLeader:
            raise
        except TimeoutError as error:
            raise AnswerError(
                503,
                "NOT_PROVEN",
                f"the leader of partition {partition} could not prove in time that it still leads",
                "Kafka may be out of reach. Ask again.",
                retry_after_s=RETRY_AFTER_S,
            ) from error
        except PartitionsError as error:
            raise AnswerError(
                503, "UNAVAILABLE", str(error), "Ask again.", retry_after_s=RETRY_AFTER_S
            ) from error

    async def _of_mine(self, query: Callable[[Any], Any]) -> tuple[dict[int, Any], list[dict[str, Any]]]:
        """The answers of the partitions that this node leads, and those that could not be had."""
        mine = [each.partition for each in self._backend.local() if each.role == _LEADING]
        answers = await asyncio.gather(*(self._read(each, query) for each in mine), return_exceptions=True)
        parts: dict[int, Any] = {}
        failures: list[dict[str, Any]] = []
        for partition, answer in zip(mine, answers, strict=True):
            if isinstance(answer, (AnswerError, NotLeader)):
                reason = str(answer)
                failures.append({"partition": partition, "node": self._backend.node_id, "reason": reason})
            elif isinstance(answer, BaseException):
                raise answer
            else:
                parts[partition] = answer
        return parts, failures

    async def _of_others(
        self, path: str, query: Mapping[str, str], failures: list[dict[str, Any]]
    ) -> list[Any]:
        """What each other node says of the partitions that it leads."""
        try:
            found = await self._ask_zookeeper(self._backend.nodes)
        except AnswerError as problem:
            failures.append({"partition": None, "node": None, "reason": problem.message})
            return []
        others = [each for name, each in sorted(found.items()) if name != self._backend.node_id]
        answers = await asyncio.gather(
            *(self._get(each, path, {**query, "scope": "local"}) for each in others), return_exceptions=True
        )
        good = []
        for node, answer in zip(others, answers, strict=True):
            if isinstance(answer, BaseException):
                if not isinstance(answer, AnswerError):
                    raise answer
                failures.append({"partition": None, "node": node.node, "reason": answer.message})
            elif answer[0] == 200:
                good.append(answer[1])
            else:
                reason = str(answer[1].get("error", {}).get("message", f"it answered {answer[0]}"))
                failures.append({"partition": None, "node": node.node, "reason": reason})
        return good

    async def _pass_on(self, partition: int, path: str) -> tuple[int, orjson.Fragment]:
        leaders = await self._ask_zookeeper(self._backend.leaders)
        leader = leaders.get(partition)
        if leader is None:
            raise AnswerError(
                503,
                "NO_LEADER",
                f"nobody leads partition {partition} at this moment",
                "A takeover usually ends within seconds. Ask again.",
                retry_after_s=RETRY_AFTER_S,
            )
        if leader == self._backend.node_id:
            raise _not_leader(leader, partition)
        nodes = await self._ask_zookeeper(self._backend.nodes)
        if leader not in nodes:
            raise _unreachable(leader, "it is no longer registered")
        status, _, text = await self._get(nodes[leader], path, {})
        # The leader's own words: a job's variables may be deeper, or hold larger numbers, than could be
        # written anew.
        return status, orjson.Fragment(text.strip())

    async def _get(
        self, node: NodeInfo, path: str, query: Mapping[str, str]
    ) -> tuple[int, dict[str, Any], bytes]:
        """HTTP status, body, and the text of the body."""
        if not node.address:
            raise _unreachable(node.node, "it has no HTTP API")
        try:
            async with self._session.get(
                f"http://{node.address}{path}",
                params=query,
                headers={ASKED_BY: self._backend.node_id},
                timeout=aiohttp.ClientTimeout(total=_PEER_TIMEOUT_S),
            ) as response:
                text = await response.read()
                body = orjson.loads(text)
                if not isinstance(body, dict):
                    raise _unreachable(node.node, "it answered something else than was asked")
                return response.status, body, text
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise _unreachable(node.node, str(error) or type(error).__name__) from error

    async def _claimed(self, failures: list[dict[str, Any]]) -> Mapping[int, str]:
        try:
            claimed: Mapping[int, str] = await self._ask_zookeeper(self._backend.leaders)
        except AnswerError as problem:
            failures.append({"partition": None, "node": None, "reason": problem.message})
            return {}
        return claimed

    async def _ask_zookeeper(self, question: Callable[[], Any]) -> Any:
        try:
            return await asyncio.wait_for(asyncio.to_thread(question), _ZOOKEEPER_TIMEOUT_S)
        except (PartitionsError, TimeoutError) as error:
            raise AnswerError(
                503,
                "ZOOKEEPER_UNAVAILABLE",
                f"ZooKeeper did not say who leads: {str(error) or 'no answer in time'}",
                "Ask the partition's leader itself, or again when ZooKeeper is back. Jobs go on meanwhile.",
                retry_after_s=RETRY_AFTER_S,
            ) from error


def _absent(partition: int, leader: str | None, failures: list[dict[str, Any]]) -> dict[str, Any]:
    """The row of a partition that no leader told about."""
    row: dict[str, Any] = {"partition": partition, "leader": leader, "role": None}
    reasons = [
        each["reason"] for each in failures if each["partition"] == partition or each["node"] == leader
    ]
    if leader is None:
        return row | {"error": {"code": "NO_LEADER", "message": "nobody leads it at this moment"}}
    message = reasons[0] if reasons else "its leader is taking over at this moment"
    return row | {"error": {"code": "NOT_REACHED", "message": message}}


def _not_leader(node: str, partition: int) -> AnswerError:
    return AnswerError(
        503,
        "NOT_LEADER",
        f"{node} does not lead partition {partition} (yet, or any more)",
        "Ask again.",
        retry_after_s=RETRY_AFTER_S,
    )


def _unreachable(node: str, reason: str) -> AnswerError:
    return AnswerError(
        503,
        "LEADER_UNREACHABLE",
        f"node {node} was asked and did not answer: {reason}",
        "If it is dead, another takes over within seconds. Ask again.",
        retry_after_s=RETRY_AFTER_S,
    )


def _quoted(key: str) -> str:
    return quote(key, safe="")
