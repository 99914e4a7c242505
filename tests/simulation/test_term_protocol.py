"""The rules of a term, checked over every interleaving of two nodes on a model of Kafka.

ZooKeeper isn't in the model: any node may try to lead at any moment, so nothing here rests on it. A commit is
sent, takes effect or is refused, and is heard of, in separate steps; a node may give up waiting at any of
them, and what it gave up on may still take effect later. Each variant plants a mistake that the check has to
find.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Literal, NamedTuple

import pytest

NODES = 2
LOG_MAX = 5
FENCES_MAX = 3

Variant = Literal[
    "as built", "no fence", "no barrier", "same epoch again", "same producer after a time-out",
    "reads from memory", "reads behind an earlier commit",
]  # fmt: skip


class Rec(NamedTuple):
    kind: Literal["barrier", "elected", "event"]
    node: int
    epoch: int
    seq: int


class Node(NamedTuple):
    step: Literal["idle", "fenced", "replayed", "leading"] = "idle"
    producer: int = 0
    seq: int = 0
    epoch: int = 0
    sent: Rec | None = None
    fate: Literal["open", "in", "refused"] = "open"
    read: int | None = None
    """Number of events that stood in the log when a read arrived."""
    proven: bool = False
    """A commit began after the read arrived."""


class World(NamedTuple):
    fence: int
    log: tuple[Rec, ...]
    nodes: tuple[Node, ...]
    late: frozenset[tuple[int, Rec]]
    """Commits that nobody waits for any more, with their producer's number."""
    wrong: str = ""


def folded(log: tuple[Rec, ...]) -> tuple[int, int]:
    seq = epoch = 0
    for rec in log:
        if rec.kind != "barrier":
            seq, epoch = rec.seq, rec.epoch
    return seq, epoch


def damage(log: tuple[Rec, ...]) -> str:
    seq = epoch = 0
    leader = -1
    for rec in log:
        if rec.kind == "barrier":
            continue
        if rec.seq != seq + 1:
            return f"seq {rec.seq} follows {seq}"
        if rec.kind == "elected" and rec.epoch != epoch + 1:
            return f"epoch {rec.epoch} announced after {epoch}"
        if rec.kind == "event" and (rec.node, rec.epoch) != (leader, epoch):
            return f"an event of node {rec.node} in the term of node {leader}"
        seq, epoch = rec.seq, rec.epoch
        leader = rec.node if rec.kind == "elected" else leader
    return ""


def next_worlds(world: World, variant: Variant) -> Iterator[World]:
    for producer, rec in world.late:
        rest = world.late - {(producer, rec)}
        yield world._replace(late=rest)
        if (producer == world.fence or variant == "no fence") and len(world.log) < LOG_MAX:
            yield world._replace(late=rest, log=(*world.log, rec))
    for index, node in enumerate(world.nodes):
        yield from steps_of(world, index, node, variant)


def steps_of(world: World, index: int, node: Node, variant: Variant) -> Iterator[World]:
    def now(changed: Node, **more: object) -> World:
        nodes = list(world.nodes)
        nodes[index] = changed
        return world._replace(nodes=tuple(nodes), **more)  # type: ignore[arg-type]

    if node.sent is not None:
        yield from fates_of(world, node, variant, now)
        return
    if node.step == "idle" and world.fence < FENCES_MAX:
        fence = world.fence + 1
        fresh = Node("fenced", fence)
        if variant == "no barrier":  # looks at the log before the fence, and believes that
            fresh = Node("replayed", fence, *node[2:4])
        yield now(fresh, fence=fence)
    if node.step == "idle" and variant == "no barrier":
        yield now(Node("idle", 0, *folded(world.log)))
    if node.step == "fenced":
        yield now(node._replace(sent=Rec("barrier", index, node.producer, 0)))  # unlike any other
    if node.step == "replayed":
        epoch = node.epoch if variant == "same epoch again" and node.epoch else node.epoch + 1
        yield now(send(node, Rec("elected", index, epoch, node.seq + 1)))
    if node.step == "leading":
        yield now(send(node, Rec("event", index, node.epoch, node.seq + 1)))
        if node.read is None:
            arrived = folded(world.log)[0]
            if variant == "reads from memory":
                yield now(node, wrong=stale(node.seq, arrived))
            else:
                yield now(node._replace(read=arrived))


def send(node: Node, rec: Rec) -> Node:
    """Decide, apply, and begin to commit."""
    return node._replace(seq=rec.seq, epoch=rec.epoch, sent=rec, fate="open", proven=node.read is not None)


def stale(seq: int, arrived: int) -> str:
    return (
        "" if seq >= arrived else f"a read saw {seq} events where {arrived} stood in the log when it arrived"
    )


def fates_of(world: World, node: Node, variant: Variant, now: object) -> Iterator[World]:
    assert node.sent is not None
    assert callable(now)
    if node.fate == "open":
        if node.producer != world.fence and variant != "no fence":
            yield now(node._replace(fate="refused"))
        elif len(world.log) < LOG_MAX:
            yield now(node._replace(fate="in"), log=(*world.log, node.sent))
        # Nobody waits any longer: it may take effect later, or never.
        late = world.late | {(node.producer, node.sent)}
        if variant == "same producer after a time-out" and node.step == "leading":
            yield now(node._replace(sent=None, seq=node.seq - 1), late=late)
        else:
            yield now(Node(), late=late)
    if node.fate == "refused":
        yield now(Node())
    if variant == "reads behind an earlier commit" and node.step == "leading" and node.read is None:
        yield now(node._replace(read=folded(world.log)[0]))  # arrives while the commit is under way
    if node.fate == "in":
        yield now(Node())  # the answer was lost
        yield now(*heard(world, node, variant))


def heard(world: World, node: Node, variant: Variant) -> tuple[Node]:
    assert node.sent is not None
    if node.step == "fenced":
        seq, epoch = folded(world.log[: world.log.index(node.sent) + 1])
        return (node._replace(step="replayed", seq=seq, epoch=epoch, sent=None),)
    return (node._replace(step="leading", sent=None),)


def answered(world: World, variant: Variant) -> Iterator[str]:
    """What is wrong with the reads that a commit just heard of lets a node answer."""
    for node in world.nodes:
        due = node.proven or variant == "reads behind an earlier commit"
        if node.fate == "in" and node.sent is not None and node.read is not None and due:
            yield stale(node.seq, node.read)


def search(variant: Variant) -> tuple[int, str]:
    start = World(0, (), (Node(),) * NODES, frozenset())
    seen = {start}
    todo = deque([start])
    while todo:
        world = todo.popleft()
        problem = world.wrong or damage(world.log) or "".join(answered(world, variant))
        if problem:
            return len(seen), problem
        for found in next_worlds(world, variant):
            # Once a read was answered, the node is free for another.
            nodes = tuple(
                n._replace(read=None, proven=False) if n.sent is None and n.proven else n for n in found.nodes
            )
            found = found._replace(nodes=nodes)
            if found not in seen:
                seen.add(found)
                todo.append(found)
    return len(seen), ""


def test_no_interleaving_damages_the_log_or_answers_a_stale_read() -> None:
    worlds, problem = search("as built")
    assert problem == ""
    assert worlds > 10_000, "the model does hardly anything"


@pytest.mark.parametrize(
    ("variant", "damage_found"),
    [
        ("no fence", "seq"),
        ("no barrier", "seq"),
        ("same epoch again", "epoch"),
        ("same producer after a time-out", "seq"),
        ("reads from memory", "a read saw"),
        ("reads behind an earlier commit", "a read saw"),
    ],
)
def test_each_planted_mistake_is_found(variant: Variant, damage_found: str) -> None:
    """Otherwise the check above would prove nothing."""
    _, problem = search(variant)
    assert damage_found in problem
