"""What a cluster says of itself while some of its nodes are dead, frozen or cut off, and waiting for it."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from relevo.client.results import JobHandle, finish_of
from relevo.events.events import JobEvents
from relevo.testing.faults import DrillError, FaultMark, FaultRefused
from relevo.testing.waiting import NotInTime, wait_for

if TYPE_CHECKING:
    from relevo_engine.api.client import ApiClient

_ASKED_AT_ONCE_MAX: Final = 4
"""Questions that one node may owe an answer to; a node that is slow to answer is passed over meanwhile."""
_THREADS: Final = 32
_PATIENCE_S: Final = 2.0
_ROUNDS_S: Final = (0.2, 0.2, 0.2, _PATIENCE_S)
"""How long each round of a wait listens: a node that hangs must not hide what the others say by now."""
_WHOLE_VIEW_S: Final = 10.0
_EVENTS_S: Final = 0.2
T = TypeVar("T")


class NodeHandle(Protocol):
    """A node process, whoever started it."""

    @property
    def api(self) -> ApiClient:
        """Its HTTP API."""

    @property
    def address(self) -> str:
        """``host:port`` of its HTTP API."""

    @property
    def running(self) -> bool:
        """Whether its process exists, frozen or not."""

    @property
    def pid(self) -> int:
        """Its process id."""

    def kill(self) -> None:
        """``kill -9``; returns when it is gone."""

    def freeze(self) -> None:
        """SIGSTOP."""

    def thaw(self) -> None:
        """SIGCONT."""

    def stop(self) -> None:
        """SIGTERM; returns when it is gone."""

    def spawn(self) -> None:
        """Starts it again, under the same id."""

    def await_ready(self) -> None:
        """Waits until it is connected and settled."""


class ClusterFacts:
    """Asks the nodes that can answer, each for what it knows itself: one that hangs holds up nobody.

    May be used by several threads.
    """

    def __init__(self, name: str, partitions: int) -> None:
        self.name = name
        self.partitions = partitions
        self.kafka_options: dict[str, Any] = {}
        self._handles: dict[str, NodeHandle] = {}
        self._frozen: set[str] = set()
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="relevo-facts")
        self._turns: dict[str, threading.BoundedSemaphore] = {}

    @property
    def kafka(self) -> str:
        """Kafka's address, for clients."""
        raise NotImplementedError

    # The nodes

    @property
    def nodes(self) -> list[str]:
        """Names of all nodes, running or not."""
        return list(self._handles)

    @property
    def running(self) -> list[str]:
        """Names of the nodes whose process exists, frozen or not."""
        return [name for name, handle in self._handles.items() if handle.running]

    @property
    def frozen(self) -> set[str]:
        """Names of the nodes that are frozen now."""
        return set(self._frozen)

    def node(self, name: str) -> NodeHandle:
        """The process of this name.

        Raises:
            DrillError: There is none.
        """
        if name not in self._handles:
            raise DrillError(f"there is no node {name!r}; there is {', '.join(self._handles) or 'none'}")
        return self._handles[name]

    # Facts

    def leaders(self, patience_s: float = _PATIENCE_S) -> dict[int, str]:
        """Name of the node that leads each partition and has just proven it; the others are missing.

        Args:
            patience_s: How long to wait for those that don't answer while a partition is missing, in seconds.
        """
        found: dict[int, tuple[int, str]] = {}
        for name, answer in self._answers("/v1/partitions", {"scope": "local"}, patience_s):
            for row in answer["partitions"]:
                claim = (int(row.get("epoch", 0)), name)
                if row.get("role") == "LEADING" and claim > found.get(row["partition"], (-1, "")):
                    found[row["partition"]] = claim
            if len(found) == self.partitions:
                break  # a node that can't prove that it leads would be waited for in vain
        return {partition: name for partition, (_, name) in sorted(found.items())}

    def leader_of(self, partition: int) -> str:
        """Name of the node that leads a partition.

        Raises:
            DrillError: Nobody does at this moment.
        """
        leader = self.leaders().get(partition)
        if leader is None:
            raise DrillError(f"nobody leads partition {partition} now")
        return leader

    def partition_rows(self) -> list[dict[str, Any]]:
        """All partitions as the first node that answers sees them: the rows of ``/v1/partitions``.

        It may take seconds while a node hangs.

        Raises:
            DrillError: No node answers.
        """
        from relevo_engine.api.client import ApiClient
        from relevo_engine.errors import EngineError

        problem: Exception | None = None
        for name, handle in self._handles.items():
            if not handle.running or name in self._frozen:
                continue
            try:
                answer = ApiClient(handle.address, _WHOLE_VIEW_S).get("/v1/partitions")
                rows: list[dict[str, Any]] = answer["partitions"]
                return rows
            except EngineError as error:
                problem = error
        raise DrillError(f"no node of the cluster answers ({problem or 'none is running'})")

    def standbys(self) -> dict[int, list[dict[str, Any]]]:
        """Who follows each partition: ``{"node": …, "hot": …, "lag": …}`` each. Empty where no node tells."""
        found: dict[int, list[dict[str, Any]]] = {}
        for _, answer in self._answers("/v1/partitions", {"scope": "local"}):
            for each in answer.get("standbys", ()):
                row = {name: value for name, value in each.items() if name != "partition"}
                found.setdefault(each["partition"], []).append(row)
        return found

    def takeovers(self, since_wall: float | None = None) -> list[dict[str, Any]]:
        """The takeovers that the nodes remember, in order; each says which ``node`` it was.

        Args:
            since_wall: Only those noticed or announced since, in Unix milliseconds.
        """
        found = [
            {"node": answer.get("node", name), **each}
            for name, answer in self._answers("/v1/takeovers")
            for each in answer["takeovers"]
        ]
        return sorted((each for each in found if _moment(each) >= (since_wall or 0.0)), key=_moment)

    def health(self) -> dict[str, str]:
        """How each node is: ``ready``, ``not ready``, ``unreachable``, ``frozen`` or ``down``."""
        asked = {name: self._pool.submit(self._health, handle) for name, handle in self._handles.items()}
        return {
            name: "frozen" if name in self._frozen else answer.result(_WHOLE_VIEW_S)
            for name, answer in asked.items()
        }

    # Waiting

    def wait_for(self, fact: Callable[[], T], what: str, *, timeout_s: float = 30.0) -> T:
        """Returns what the fact gives, as soon as that is true; see `relevo.testing.wait_for`.

        Raises:
            NotInTime: It didn't hold in time.
        """
        return wait_for(fact, what, timeout_s=timeout_s)

    def await_leader(
        self, partition: int, *, not_: str | Collection[str] = (), timeout_s: float = 60.0
    ) -> str:
        """Waits until somebody leads a partition, and works.

        Args:
            partition: Which.
            not_: The node, or nodes, that don't count.
            timeout_s: The longest wait, in seconds.

        Returns:
            The leader's name.

        Raises:
            NotInTime: Nobody does in time.
        """
        others = {not_} if isinstance(not_, str) else set(not_)

        rounds = itertools.cycle(_ROUNDS_S)

        def found() -> str | None:
            leader = self.leaders(next(rounds)).get(partition)
            return None if leader in others else leader

        besides = f" besides {', '.join(sorted(others))}" if others else ""
        return str(wait_for(found, f"somebody{besides} leads partition {partition}", timeout_s=timeout_s))

    def await_all_led(self, *, without: Collection[str] = (), timeout_s: float = 90.0) -> dict[int, str]:
        """Waits until every partition has a leader that works, the nodes `without` not counted.

        Raises:
            NotInTime: Some partition has none in time; the error says which.
        """
        last: dict[int, str] = {}
        rounds = itertools.cycle(_ROUNDS_S)

        def found() -> dict[int, str]:
            nonlocal last
            last = {p: name for p, name in self.leaders(next(rounds)).items() if name not in without}
            return last if len(last) == self.partitions else {}

        try:
            return wait_for(found, "every partition is led", timeout_s=timeout_s)
        except NotInTime as error:
            missing = sorted(set(range(self.partitions)) - set(last))
            raise NotInTime(f"{error}; partitions {missing} are not. Nodes: {self.health()}") from error

    def await_hot_standby(self, partition: int, *, timeout_s: float = 60.0) -> str:
        """Waits until a node stands by for a partition and has caught up; gives its name.

        Raises:
            FaultRefused: The nodes tell nothing about standbys.
            NotInTime: None has caught up in time.
        """
        if not self.tells_standbys:
            raise FaultRefused("the nodes of this cluster tell nothing about standbys")

        def hot() -> str:
            return next((each["node"] for each in self.standbys().get(partition, ()) if each["hot"]), "")

        return wait_for(hot, f"a standby of partition {partition} is hot", timeout_s=timeout_s)

    def await_all_hot(self, *, timeout_s: float = 60.0) -> bool:
        """Waits until every partition has a hot standby. False, at once, where the nodes don't tell.

        Raises:
            NotInTime: Some partition has none in time.
        """
        if not self.tells_standbys:
            return False

        def all_hot() -> bool:
            standbys = self.standbys()
            return all(
                any(each["hot"] for each in standbys.get(partition, ()))
                for partition in range(self.partitions)
            )

        return wait_for(all_hot, "every partition has a hot standby", timeout_s=timeout_s)

    @property
    def tells_standbys(self) -> bool:
        """Whether the nodes say who stands by."""
        return any("standbys" in each for _, each in self._answers("/v1/partitions", {"scope": "local"}))

    def await_takeover(self, partition: int, *, since: FaultMark, timeout_s: float = 60.0) -> dict[str, Any]:
        """Waits for the first takeover of a partition announced after a fault, and gives it.

        Raises:
            NotInTime: There is none in time, or the nodes tell of none.
        """

        def found() -> dict[str, Any]:
            later = [each for each in self.takeovers(since.at_wall) if each["partition"] == partition]
            return next((each for each in later if (each.get("announced_at") or 0) >= since.at_wall), {})

        return wait_for(found, f"a takeover of partition {partition} is told", timeout_s=timeout_s)

    def await_done(self, jobs: Iterable[str | JobHandle], *, timeout_s: float = 60.0) -> None:
        """Waits until the log says that all these jobs were completed.

        Args:
            jobs: Their keys, or what `Client.create` gave.
            timeout_s: The longest wait, in seconds.

        Raises:
            DrillError: One ended in another way; the error says how.
            NotInTime: Some are not completed in time; the error names a few.
        """
        missing = {each if isinstance(each, str) else each.key for each in jobs}
        with JobEvents(self.kafka, self.name, keys=set(missing), **self.kafka_options) as events:

            def all_done() -> bool:
                for event in events.read(_EVENTS_S) if missing else ():
                    finish = finish_of(event.event)
                    if finish is not None and finish.state != "COMPLETED":
                        raise DrillError(f"job {event.key!r} ended as {finish.state}")
                    if finish is not None:
                        missing.discard(event.key)
                return not missing

            try:
                wait_for(all_done, "all jobs are completed", timeout_s=timeout_s)
            except NotInTime as error:
                raise NotInTime(
                    f"{error}; {len(missing)} are not, such as {', '.join(sorted(missing)[:3])}"
                ) from error

    # Asking

    def _answers(
        self, path: str, query: Mapping[str, str] | None = None, patience_s: float = _PATIENCE_S
    ) -> Iterator[tuple[str, Any]]:
        """The answers of all nodes that give one in time, as they come."""
        asked: dict[Future[Any], str] = {}
        for name, handle in self._handles.items():
            turn = self._turns.setdefault(name, threading.BoundedSemaphore(_ASKED_AT_ONCE_MAX))
            if handle.running and name not in self._frozen and turn.acquire(blocking=False):
                question = self._pool.submit(_get, handle.api, path, query)
                question.add_done_callback(lambda _, turn=turn: turn.release())  # type: ignore[misc]
                asked[question] = name
        with contextlib.suppress(TimeoutError):
            for answer in as_completed(asked, patience_s):
                if answer.result() is not None:
                    yield asked[answer], answer.result()

    def _health(self, handle: NodeHandle) -> str:
        from relevo_engine.api.client import ApiError
        from relevo_engine.errors import EngineError

        if not handle.running:
            return "down"
        try:
            handle.api.get("/readyz")
        except ApiError:
            return "not ready"
        except EngineError:
            return "unreachable"
        return "ready"


def _get(api: ApiClient, path: str, query: Mapping[str, str] | None) -> Any:
    """The answer; None where the node doesn't give one: it is away, or doesn't know the path."""
    from relevo_engine.errors import EngineError

    try:
        return api.get(path, query)
    except EngineError:
        return None


def _moment(takeover: Mapping[str, Any]) -> float:
    return float(takeover.get("announced_at") or takeover.get("noticed_at") or 0.0)
