"""A consumer group's coordinator: members come, go and fall silent; partitions move, cooperatively."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Final

from tests.simulation.world.kafka import Group, Kafka, NotMember
from tests.simulation.world.scheduler import Scheduler

MEMBER_S: Final = 3.0
"""A member that isn't heard for so long is out."""


@dataclass(frozen=True)
class Assignment:
    """What a member is told: its partitions with their generation, and those it is to give back."""

    owned: dict[int, int]
    revoked: tuple[int, ...]


@dataclass
class _Members:
    heard: dict[str, float] = field(default_factory=dict)
    generations: dict[int, int] = field(default_factory=dict)


class Coordinator:
    """All groups of a world; a group has the name of its topic."""

    def __init__(self, scheduler: Scheduler, kafka: Kafka) -> None:
        self._scheduler = scheduler
        self._kafka = kafka
        self._members: dict[str, _Members] = {}

    def create(self, topic: str) -> None:
        """A group for the readers of ``topic``."""
        self._kafka.groups[topic] = Group()
        self._members[topic] = _Members()

    def heartbeat(self, topic: str, member: str) -> Assignment:
        """Join or stay; what the member owns now."""
        members = self._members[topic]
        if member not in members.heard:
            self._scheduler.after(MEMBER_S, partial(self._look_after, topic, member))
        members.heard[member] = self._scheduler.now
        self._assign(topic)
        group = self._kafka.groups[topic]
        wanted = self._wanted(topic)
        mine = [number for number, owner in group.owner.items() if owner == member]
        return Assignment(
            {number: members.generations[number] for number in mine},
            tuple(number for number in mine if wanted[number] != member),
        )

    def leave(self, topic: str, member: str) -> None:
        """Go at once."""
        if self._members[topic].heard.pop(member, None) is not None:
            self._drop(topic, member)

    def release(self, topic: str, member: str, number: int) -> None:
        """Give one partition back."""
        group = self._kafka.groups[topic]
        if group.owner.get(number) == member:
            del group.owner[number]
            self._assign(topic)

    def commit(self, topic: str, number: int, member: str, generation: int, offset: int) -> None:
        """OffsetCommit."""
        if self._members[topic].generations.get(number) != generation:
            raise NotMember(f"{member} has an old generation of {topic} [{number}]")
        self._kafka.commit_offset(topic, number, member, offset)

    def _look_after(self, topic: str, member: str) -> None:
        heard = self._members[topic].heard.get(member)
        if heard is None:
            return
        left = heard + MEMBER_S - self._scheduler.now
        if left > 0:
            self._scheduler.after(left, partial(self._look_after, topic, member))
        else:
            self._scheduler.note("group", f"{member} is out of {topic}")
            del self._members[topic].heard[member]
            self._drop(topic, member)

    def _drop(self, topic: str, member: str) -> None:
        group = self._kafka.groups[topic]
        for number in [number for number, owner in group.owner.items() if owner == member]:
            del group.owner[number]
        self._assign(topic)

    def _wanted(self, topic: str) -> dict[int, str]:
        members = sorted(self._members[topic].heard)
        if not members:
            return {}
        return {place.number: members[place.number % len(members)] for place in self._kafka.topics[topic]}

    def _assign(self, topic: str) -> None:
        group, members = self._kafka.groups[topic], self._members[topic]
        for number, member in self._wanted(topic).items():
            if number not in group.owner:
                group.owner[number] = member
                members.generations[number] = members.generations.get(number, 0) + 1
