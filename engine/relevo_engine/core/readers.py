"""Which worker reads which slot: what workers tell, so that a job doesn't wait behind one that is dead."""

from __future__ import annotations

from collections.abc import Collection, Iterable

Slot = tuple[str, int]
"""(job type, partition of its activation topic)."""


class Readers:
    """Who was last heard to own each slot, and who fell silent since. A leader's own memory, as leases are.

    It only chooses where a retry goes, which then stands in the log; replay needs nothing of it. A new leader
    starts without, and is told within seconds by workers that run something.

    Bounded by the slots: a worker is remembered while one is its.
    """

    __slots__ = ("_allowed", "_counts", "_owner", "_silent")

    def __init__(self) -> None:
        self._owner: dict[Slot, str] = {}
        self._counts: dict[str, int] = {}
        self._silent: set[str] = set()
        self._allowed: dict[tuple[Slot, int, int], list[int]] = {}

    def report(self, job_type: str, worker: str, slots: Iterable[int]) -> None:
        """``worker`` says that of this type it owns ``slots``, and no others."""
        own = {(job_type, slot) for slot in slots}
        for slot, owner in list(self._owner.items()):
            if slot[0] == job_type and owner == worker and slot not in own:
                self._release(slot)
        for slot in own:
            if self._owner.get(slot) != worker:
                self._release(slot)
                self._owner[slot] = worker
                self._counts[worker] = self._counts.get(worker, 0) + 1
                self._allowed.clear()
        self.heard(worker)

    def _release(self, slot: Slot) -> None:
        worker = self._owner.pop(slot, None)
        if worker is None:
            return
        self._allowed.clear()
        self._counts[worker] -= 1
        if not self._counts[worker]:
            del self._counts[worker]
            self._silent.discard(worker)

    def heard(self, worker: str) -> None:
        """``worker`` gave a sign of life."""
        if worker in self._silent:
            self._silent.discard(worker)
            self._allowed.clear()

    def fell_silent(self, worker: str) -> None:
        """A lease of ``worker`` ran out."""
        if worker in self._counts and worker not in self._silent:
            self._silent.add(worker)
            self._allowed.clear()

    def allowed(self, job_type: str, before: int, slots: int, own: Collection[int]) -> list[int]:
        """Where a job may go that fell silent in slot ``before``; empty where nothing better is known.

        Not to that slot, nor to any of the worker that it belongs to or of one that is silent; to the
        partition's ``own`` slots where one of them is left.
        """
        place = ((job_type, before), slots, len(own))
        found = self._allowed.get(place)
        if found is None:
            found = self._allowed[place] = self._choose(job_type, before, slots, own)
        return found

    def _choose(self, job_type: str, before: int, slots: int, own: Collection[int]) -> list[int]:
        avoided = set(self._silent)
        if (job_type, before) in self._owner:
            avoided.add(self._owner[job_type, before])
        if not avoided:
            return []
        fine = [
            slot
            for slot in range(slots)
            if slot != before and self._owner.get((job_type, slot), "") not in avoided
        ]
        return [slot for slot in fine if slot in own] or fine
