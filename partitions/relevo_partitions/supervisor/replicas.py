"""Makes what follows a partition: machines from what is kept of it, standbys, and what takes snapshots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from relevo_partitions.observer import Observer
from relevo_partitions.pace import Pace
from relevo_partitions.runtime import Runtime
from relevo_partitions.settings import HostSettings
from relevo_partitions.snapshots.loading import load
from relevo_partitions.snapshots.ports import Manifest, SnapshotStore
from relevo_partitions.snapshots.snapshotter import SnapshotSettings, Snapshotter
from relevo_partitions.statemachine import MachineFactory, StateMachine
from relevo_partitions.supervisor.post import Post
from relevo_partitions.term.leading import LeaderSnapshots
from relevo_partitions.term.standby import Beginning, Load, SnapshotTurns, Standby, from_the_beginning

LONE_AFTER_S: Final = 30.0
"""A leader takes its partition's snapshots itself after nobody has been hot for so long."""


class Replicas:
    """Used by the supervisor's thread; what it makes is used by others.

    Args:
        settings: Of the host; without ``snapshots`` none are taken, and none is looked for.
        make_machine: Makes an empty machine for a partition.
        observer: Hears of snapshots.
        runtime: Clocks and threads.
    """

    def __init__(
        self, settings: HostSettings, make_machine: MachineFactory, observer: Observer, runtime: Runtime
    ) -> None:
        self.make_machine = make_machine
        self._settings = settings
        self._observer = observer
        self._runtime = runtime

    def load(self, post: Post) -> Load:
        """How a machine for ``post`` is made."""
        if self._settings.snapshots is None:
            return from_the_beginning(self.make_machine)

        def from_a_snapshot(partition: int, pace: Pace) -> Beginning:
            store = post.io.snapshots()
            try:
                loaded = load(partition, self.make_machine, store, self._observer, pace)
            finally:
                store.close()
            return Beginning(loaded.machine, loaded.log_offset, loaded.manifest)

        return from_a_snapshot

    def standby(self, post: Post, changed: Callable[[Standby], None], load: Load | None = None) -> Standby:
        """A standby, not run; ``load`` makes its machine, if not what is kept of the partition does."""
        return Standby(
            post.partition,
            io=post.io,
            load=load or self.load(post),
            observer=self._observer,
            changed=changed,
            settings=self._settings.standby,
            snapshots=self._turns(post),
            runtime=self._runtime,
        )

    def leader_snapshots(self, post: Post) -> Callable[[], LeaderSnapshots | None]:
        """Makes what takes snapshots within a term, while nobody stands by."""
        if self._settings.snapshots is None:
            return lambda: None

        def is_lone() -> bool:
            since = post.lacking_since
            return since is not None and self._runtime.monotonic() - since > LONE_AFTER_S

        return lambda: _LoneLeader(is_lone, lambda: self._turns(post))

    def _turns(self, post: Post) -> _Turns | None:
        settings = self._settings.snapshots
        if settings is None:
            return None
        reached = self._settings.checkpoint

        def checkpoint(name: str) -> None:
            if reached is not None:
                reached(post.partition, f"snapshot-{name}")

        return _Turns(post, self.make_machine, self._observer, settings, self._runtime, checkpoint)


class _Turns(SnapshotTurns):
    """One replica's snapshots, and the clients that they need."""

    def __init__(
        self,
        post: Post,
        make_machine: MachineFactory,
        observer: Observer,
        settings: SnapshotSettings,
        runtime: Runtime,
        checkpoint: Callable[[str], None],
    ) -> None:
        self._store: SnapshotStore = post.io.snapshots()
        self._snapshotter = Snapshotter(
            post.partition, self._store, make_machine, observer, settings, runtime, checkpoint
        )

    @property
    def busy(self) -> bool:
        return self._snapshotter.busy

    def loaded(self, manifest: Manifest | None) -> None:
        self._snapshotter.loaded(manifest)

    def turn(self, machine: StateMachine, next_log_offset: int) -> None:
        self._snapshotter.turn(machine, next_log_offset)

    def turn_leading(self, machine: StateMachine, commits: int) -> None:
        self._snapshotter.turn_leading(machine, commits)

    def stop(self) -> None:
        self._snapshotter.stop()

    def close(self) -> None:
        self._store.close()


class _LoneLeader:
    """Takes snapshots just while nobody else could."""

    def __init__(self, is_lone: Callable[[], bool], make: Callable[[], _Turns | None]) -> None:
        self._is_lone = is_lone
        self._make = make
        self._turns: _Turns | None = None

    @property
    def busy(self) -> bool:
        return self._turns is not None and self._turns.busy

    def turn_leading(self, machine: StateMachine, commits: int) -> None:
        if self._is_lone():
            self._turns = self._turns or self._make()
            if self._turns is not None:
                self._turns.turn_leading(machine, commits)
        else:
            self.stop()

    def stop(self) -> None:
        turns, self._turns = self._turns, None
        if turns is not None:
            turns.stop()
            turns.close()
