"""The one thread of a host that talks to ZooKeeper: registers, claims, starts and ends standbys and terms.

It acts on what it finds, not on what it was told: a watch, a state change or a proof of death only says where
to look again, and it looks again now and then without. So a missed watch can't leave a partition without a
leader, nor a leader that nobody knows.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable
from typing import Final

from relevo_partitions.election.election import Election
from relevo_partitions.election.membership import Membership, NodeInfo
from relevo_partitions.errors import NodeIdTaken, PartitionsError, ZooKeeperUnavailable
from relevo_partitions.observer import Observer
from relevo_partitions.pulse.evidence import Peer
from relevo_partitions.runtime import Mailbox, Task
from relevo_partitions.settings import HostSettings
from relevo_partitions.statemachine import MachineFactory, Term
from relevo_partitions.supervisor.deaths import Deaths
from relevo_partitions.supervisor.handover import HandOvers
from relevo_partitions.supervisor.post import Post
from relevo_partitions.supervisor.replicas import Replicas
from relevo_partitions.supervisor.scene import Scene
from relevo_partitions.supervisor.signals import Died, Event, Finished, Standing, StateChanged, Touched
from relevo_partitions.supervisor.steward import Steward
from relevo_partitions.surroundings import Surroundings
from relevo_partitions.term.endings import Ending
from relevo_partitions.term.roles import Role, RoleKeeper

log: Final = logging.getLogger(__name__)

TICK_S: Final = 0.25
"""Longest sleep between two looks at what is due."""
RETRY_S: Final = 0.02
"""Pause after a call that ZooKeeper didn't answer, which may fail at once."""
COMPLAIN_FIRST_S: Final = 1.0
COMPLAIN_EVERY_S: Final = 5.0
"""How often an absent ZooKeeper is reported while starting."""
HAND_OVER_SHARE: Final = 0.5
"""Part of the time for stopping that may be spent on handing partitions over."""
END_SHARE: Final = 0.75
"""After this part of the time for stopping all terms are ended, whatever the supervisor does."""


class Supervisor:
    """Runs until `stop`; see `relevo_partitions.host.PartitionHost` for the arguments."""

    def __init__(
        self,
        settings: HostSettings,
        machine_factory: MachineFactory,
        observer: Observer,
        on_topic_failure: Callable[[str, str], None],
        surroundings: Surroundings,
    ) -> None:
        self._settings = settings
        self._observer = observer
        self._runtime = surroundings.runtime
        self._now = self._runtime.monotonic
        self._events: Mailbox[Event | None] = self._runtime.mailbox()
        self._zookeeper = surroundings.zookeeper(
            lambda state: self._events.put(StateChanged(state)),
            lambda path: self._events.put(Touched(path)),
        )
        self._pulse = surroundings.pulse(
            lambda node, incarnation, lost_at: self._events.put(Died(node, incarnation, self._now(), lost_at))
        )
        me = NodeInfo(settings.node, settings.address, settings.incarnation)
        self._membership = Membership(self._zookeeper, settings.cluster, me, self._runtime)
        self._election = Election(
            self._zookeeper, self._membership.root, Term(settings.node, settings.incarnation)
        )
        self.posts = [
            Post(
                number,
                RoleKeeper(number, self._role_changed, self._runtime.wall),
                surroundings.partition(number),
            )
            for number in range(settings.partitions)
        ]
        self.scene = Scene(settings.node)
        self.steward = Steward(
            settings,
            self.scene,
            self._election,
            Replicas(settings, machine_factory, observer, self._runtime),
            observer,
            on_topic_failure,
            self._runtime,
            self._events,
        )
        self._deaths = Deaths(
            self.scene, self.posts, self._election, self._membership, observer, settings.claim_step_s
        )
        self._hand_overs = HandOvers(self.scene, self.posts, observer, settings.give_back_after_s)
        self.error: PartitionsError | None = None
        self.started = self._runtime.signal()
        self._stopping = self._runtime.signal()
        self._stop_by = self._hand_over_by = 0.0
        self._thread: Task | None = None
        self._nodes_dirty = True
        self._tended_at = 0.0
        self._register_at = 0.0
        self._leaderless = -1

    # -- for other threads

    def start(self) -> None:
        """Begin; `started` is set once the node belongs to the cluster, or `error` says why it doesn't."""
        self._thread = self._runtime.spawn("relevo-supervisor", self._run)

    def stop(self, deadline_s: float) -> bool:
        """Hand over, end all terms and leave; False where something still hangs after ``deadline_s``."""
        now = self._now()
        self._stop_by = now + deadline_s
        self._hand_over_by = now + deadline_s * HAND_OVER_SHARE
        self._stopping.set()
        self._events.put(None)
        if self._thread is None:
            return True
        self._thread.join(deadline_s * END_SHARE)
        self._end_terms()  # though the supervisor may wait for ZooKeeper
        self._thread.join(max(0.0, self._stop_by - self._now()))
        return not self._thread.is_alive()

    # -- the thread

    def _run(self) -> None:
        try:
            self._join_cluster()
        except PartitionsError as error:
            self.error = error
        except Exception as error:
            log.exception("joining the cluster failed")
            self.error = PartitionsError(f"joining the cluster failed: {type(error).__name__}: {error}")
        else:
            self.scene.started_at = self._now()
            self.started.set()
            while not (self._stopping.is_set() and self._handed_over()):
                self._take_events()
                try:
                    self._tend()
                except ZooKeeperUnavailable as problem:
                    self._observer.fault(None, "zookeeper", str(problem))
                    self._runtime.sleep(RETRY_S)
                except Exception as error:
                    # It acts on what it finds, so looking again is safe, and better than a node without it.
                    log.exception("the supervisor failed; it looks again")
                    self._observer.fault(None, "supervisor", f"{type(error).__name__}: {error}")
                    self._runtime.sleep(TICK_S)
        self._leave()
        self.started.set()

    def _join_cluster(self) -> None:
        if self._pulse is not None:
            self._pulse.start()
            self._membership.set_pulse(self._pulse.address)
        self._zookeeper.start()
        self._wait_for_zookeeper()
        while not self._stopping.is_set():
            try:
                self._membership.agree(self._settings.config())
                self._register()
                for post in self.posts:
                    self._election.prepare(post.partition)
                return
            except ZooKeeperUnavailable as problem:
                self._observer.fault(None, "zookeeper", str(problem))
                self._wait_for_zookeeper()

    def _wait_for_zookeeper(self) -> None:
        complain_at = self._now() + COMPLAIN_FIRST_S
        while not self._stopping.is_set() and not self._zookeeper.wait_connected(TICK_S):
            if self._now() > complain_at:
                complain_at = self._now() + COMPLAIN_EVERY_S
                where = self._zookeeper.hosts
                self._observer.fault(None, "zookeeper", f"ZooKeeper isn't reachable at {where}; trying again")

    def _register(self) -> None:
        session = self._zookeeper.session
        self._membership.register(self._stopping.is_set)
        self.scene.session = session if session == self._zookeeper.session else 0

    def _take_events(self) -> None:
        """Wait for the next event or the next thing due, then take in all that have arrived."""
        now = self._now()
        due = [post.claim_at for post in self.posts if post.claim_at is not None]
        wait_s = min([TICK_S, *(at - now for at in (*due, *self._deaths.due()))])
        if not self._zookeeper.connected or self._zookeeper.session != self.scene.session:
            wait_s = TICK_S  # nothing can be done about what is due
        try:
            event = self._events.get(max(0.0, wait_s))
            while True:
                self._take(event)
                event = self._events.get(0.0)
        except queue.Empty:
            pass

    def _take(self, event: Event | None) -> None:
        if isinstance(event, Touched):
            number = self._election.partition_of(event.path)
            if number is None:
                self._nodes_dirty = True
            elif number < len(self.posts):
                self.posts[number].dirty = True
        elif isinstance(event, Finished):
            self.steward.finish(self.posts[event.partition], event)
        elif isinstance(event, Standing):
            self.steward.standing(self.posts[event.standby.partition], event)
        elif isinstance(event, Died):
            self._observer.note("node_died", node=event.node, incarnation=event.incarnation)
            self._deaths.heard(event)
        elif isinstance(event, StateChanged):
            self._observer.note("zookeeper_state", state=event.state)
            self._nodes_dirty = True
            for post in self.posts:
                post.dirty = True

    def _tend(self) -> None:
        """Do what is due, the most urgent first."""
        now = self._now()
        self._watch_over(now)
        if self._stopping.is_set():
            self._stop_taking_on()
        if not self._zookeeper.connected:
            return
        if self._zookeeper.session != self.scene.session:
            self._enter_session(now)
            if not self.scene.session:
                return
        self._deaths.act(now, self.steward.doomed, self.steward.freed)
        for post in self.posts:
            self.steward.claim_if_due(post)
        if self._nodes_dirty:
            self._look_at_nodes()
        for post in self.posts:
            if post.dirty or now - post.looked_at > self._settings.reconcile_s:
                self.steward.look(post)
            self.steward.claim_if_due(post)
        if not self.scene.leaving:
            self._hand_overs.tend(self._now())
        self._count_leaderless()

    def _look_at_nodes(self) -> None:
        nodes = tuple(self._membership.nodes())
        self._nodes_dirty = False
        changed = nodes != self.scene.nodes
        self.scene.nodes = nodes
        me = (self._settings.node, self._settings.incarnation)
        if not any((node.node, node.incarnation) == me for node in nodes):
            # Taken for dead, wrongly, by somebody who deleted it.
            self._observer.fault(None, "unregistered", "this node's registration is gone; registering again")
            self._nodes_dirty = True
            self._register()
        if changed:
            for post in self.posts:
                post.dirty = True
        if self._pulse is not None:
            self._pulse.watch(Peer(node.node, node.incarnation, node.pulse) for node in nodes)

    def _enter_session(self, now: float) -> None:
        """The session that our znodes stood in is over: what they stood for is, too."""
        for post in self.posts:
            if post.leadership is not None:
                post.leadership.end(Ending.LOST, "ZooKeeper ended the session")
            post.claim_at = None
            post.dirty = True
        self.scene.session = 0
        self._nodes_dirty = True
        if now < self._register_at:
            return
        try:
            self._register()
        except NodeIdTaken as error:
            self._register_at = now + COMPLAIN_EVERY_S
            self._observer.fault(None, "node_id_taken", str(error))

    def _watch_over(self, now: float) -> None:
        if now - self._tended_at > 1.0:
            self._tended_at = now
            for post in self.posts:
                post.io.tend()
                standby = post.standby
                self._observer.standby_lag(post.partition, None if standby is None else standby.lag)
        for post in self.posts:
            leadership = post.leadership
            call = leadership.overdue() if leadership is not None else None
            if leadership is not None and call is not None:
                self.steward.abandon(post, leadership, f"Kafka's {call} didn't return")

    # -- the end

    def _stop_taking_on(self) -> None:
        """Be nobody's candidate any more, from now on."""
        if not self.scene.leaving:
            self.scene.leaving = True
            for post in self.posts:
                post.dirty = True
                post.claim_at = None

    def _handed_over(self) -> bool:
        """Whether nothing is left to hand over, or no time."""
        now = self._now()
        if now >= self._hand_over_by or not self._zookeeper.connected or not self.scene.session:
            return True
        return self.scene.leaving and self._hand_overs.leave(now)

    def _end_terms(self) -> None:
        for post in self.posts:
            leadership = post.leadership
            if leadership is not None:
                leadership.end(Ending.STOPPED, "the host stops")

    def _leave(self) -> None:
        """End what runs within the deadline, then the session: that takes all znodes with it."""
        self.scene.leaving = True
        self._end_terms()
        for post in self.posts:
            if post.standby is not None:
                post.standby.stop()
        for post in self.posts:
            thread = post.thread
            if thread is not None:
                # Part of the time is kept for ZooKeeper; a term that doesn't end by then is left to Kafka's
                # fence.
                thread.join(max(0.0, (self._stop_by - self._now()) * 0.7))
                if thread.is_alive() and post.leadership is not None:
                    self.steward.abandon(post, post.leadership, "didn't end before the host's deadline")
        self._take_events()
        for post in self.posts:
            if post.standby is not None:
                post.standby.await_end(max(0.0, min(1.0, (self._stop_by - self._now()) * 0.3)))
            post.roles.to(Role.STOPPED)
            post.give_up_fence()
            post.io.keep_warm(0)
        self._zookeeper.close(max(0.5, (self._stop_by - self._now()) * 0.8))
        if self._pulse is not None:
            self._pulse.stop()

    # -- small parts

    def _count_leaderless(self) -> None:
        count = sum(1 for post in self.posts if post.sight is not None and post.sight.leader is None)
        if count != self._leaderless:
            self._leaderless = count
            self._observer.leaderless(count)

    def _role_changed(self, partition: int, before: Role, after: Role, reason: str) -> None:
        self._observer.role_changed(partition, str(before), str(after), reason)
