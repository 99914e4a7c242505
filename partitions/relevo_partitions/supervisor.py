"""The one thread of a host that talks to ZooKeeper: registers, claims, starts and ends terms.

It acts on what it finds, not on what it was told: a watch or a state change only says where to look again,
and it looks again now and then without. So a missed watch can't leave a partition without a leader, nor a
leader that nobody knows.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable
from typing import Final

from relevo_partitions.election import Claim, Election
from relevo_partitions.endings import Ending, TermOver
from relevo_partitions.errors import NodeIdTaken, PartitionsError, ZooKeeperUnavailable
from relevo_partitions.fence import WARM_STANDBY
from relevo_partitions.membership import Membership, NodeInfo
from relevo_partitions.observer import Observer
from relevo_partitions.post import Post
from relevo_partitions.ranking import rank
from relevo_partitions.roles import Role, RoleKeeper
from relevo_partitions.runtime import Mailbox, Task
from relevo_partitions.settings import HostSettings
from relevo_partitions.signals import Finished, StateChanged, Touched
from relevo_partitions.statemachine import MachineFactory, Term
from relevo_partitions.surroundings import Surroundings
from relevo_partitions.term import Leadership

log: Final = logging.getLogger(__name__)

TICK_S: Final = 0.25
"""Longest sleep between two looks at what is due."""
COMPLAIN_FIRST_S: Final = 1.0
COMPLAIN_EVERY_S: Final = 5.0
"""How often an absent ZooKeeper is reported while starting."""


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
        self._make_machine = machine_factory
        self._observer = observer
        self._on_topic_failure = on_topic_failure
        self._runtime = surroundings.runtime
        self._now = self._runtime.monotonic
        self._events: Mailbox[StateChanged | Touched | Finished | None] = self._runtime.mailbox()
        self._who = Term(settings.node, settings.incarnation)
        me = NodeInfo(settings.node, settings.address, settings.incarnation)
        self._zookeeper = surroundings.zookeeper(
            lambda state: self._events.put(StateChanged(state)),
            lambda path: self._events.put(Touched(path)),
        )
        self._membership = Membership(self._zookeeper, settings.cluster, me, self._runtime)
        self._election = Election(self._zookeeper, self._membership.root, self._who)
        self.posts = [
            Post(
                number,
                RoleKeeper(number, self._role_changed, self._runtime.wall),
                surroundings.partition(number),
            )
            for number in range(settings.partitions)
        ]
        self.nodes: tuple[NodeInfo, ...] = ()
        self.error: PartitionsError | None = None
        self.started = self._runtime.signal()
        self._stopping = self._runtime.signal()
        self._stop_by = 0.0
        self._thread: Task | None = None
        self._session = 0
        """The session that this node is registered in, 0 while it isn't."""
        self._nodes_dirty = True
        self._started_at = self._tended_at = 0.0
        self._register_at = 0.0
        self._leaderless = -1

    # -- for other threads
    # ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin; `started` is set once the node belongs to the cluster, or `error` says why it doesn't."""
        self._thread = self._runtime.spawn("relevo-supervisor", self._run)

    def stop(self, deadline_s: float) -> bool:
        """End all terms and leave the cluster; False where something still hangs after ``deadline_s``."""
        self._stop_by = self._now() + deadline_s
        self._stopping.set()
        for post in self.posts:
            leadership = post.leadership
            if leadership is not None:
                leadership.end(Ending.STOPPED, "the host stops")
        self._events.put(None)
        if self._thread is None:
            return True
        self._thread.join(max(0.0, self._stop_by - self._now()))
        return not self._thread.is_alive()

    # -- the thread
    # -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._join_cluster()
        except PartitionsError as error:
            self.error = error
        except Exception as error:
            log.exception("joining the cluster failed")
            self.error = PartitionsError(f"joining the cluster failed: {type(error).__name__}: {error}")
        else:
            self._started_at = self._now()
            self.started.set()
            while not self._stopping.is_set():
                self._take_events()
                try:
                    self._tend()
                except ZooKeeperUnavailable as problem:
                    self._observer.fault(None, "zookeeper", str(problem))
                except Exception as error:
                    # It acts on what it finds, so looking again is safe, and better than a node without it.
                    log.exception("the supervisor failed; it looks again")
                    self._observer.fault(None, "supervisor", f"{type(error).__name__}: {error}")
                    self._stopping.wait(TICK_S)
        self._leave()
        self.started.set()

    def _join_cluster(self) -> None:
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
        self._session = session if session == self._zookeeper.session else 0

    def _take_events(self) -> None:
        """Wait for the next event or the next thing due, then take in all that have arrived."""
        now = self._now()
        due = min((post.claim_at for post in self.posts if post.claim_at is not None), default=now + TICK_S)
        try:
            event = self._events.get(max(0.0, min(TICK_S, due - now)))
            while True:
                self._take(event)
                event = self._events.get(0.0)
        except queue.Empty:
            pass

    def _take(self, event: StateChanged | Touched | Finished | None) -> None:
        if isinstance(event, Touched):
            number = self._election.partition_of(event.path)
            if number is None:
                self._nodes_dirty = True
            elif number < len(self.posts):
                self.posts[number].dirty = True
        elif isinstance(event, Finished):
            self._finish(event)
        elif isinstance(event, StateChanged):
            self._observer.note("zookeeper_state", state=event.state)
            self._nodes_dirty = True
            for post in self.posts:
                post.dirty = True

    def _tend(self) -> None:
        """Do what is due."""
        now = self._now()
        self._watch_over(now)
        if not self._zookeeper.connected:
            return
        if self._zookeeper.session != self._session:
            self._enter_session(now)
            if not self._session:
                return
        if self._nodes_dirty:
            self.nodes = tuple(self._membership.nodes())
            self._nodes_dirty = False
        for post in self.posts:
            if post.dirty or now - post.looked_at > self._settings.reconcile_s:
                self._look(post)
            if post.claim_at is not None and post.claim_at <= self._now():
                self._claim(post)
        self._count_leaderless()

    def _enter_session(self, now: float) -> None:
        """The session that our znodes stood in is over: what they stood for is, too."""
        for post in self.posts:
            if post.leadership is not None:
                post.leadership.end(Ending.LOST, "ZooKeeper ended the session")
            post.claim_at = None
            post.dirty = True
        self._session = 0
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
        for post in self.posts:
            leadership = post.leadership
            call = leadership.overdue() if leadership is not None else None
            if leadership is not None and call is not None:
                self._abandon(post, leadership, f"Kafka's {call} didn't return")

    # -- one partition
    # ----------------------------------------------------------------------------------------------

    def _look(self, post: Post) -> None:
        """Compare what ZooKeeper shows with what this node does, and act on the difference."""
        now = self._now()
        sight = self._election.look(post.partition)
        post.saw(sight, now)
        if post.leadership is not None:
            if post.claim is None or not post.claim.is_shown_by(sight):
                post.leadership.end(Ending.LOST, "ZooKeeper shows another claim, or none")
            return
        leader = sight.leader
        ready = now >= post.blocked_until and self._settings.eligible(post.partition)
        if leader is not None and self._election.is_own(leader) and leader.session == self._session:
            if ready and leader.token == post.token:
                self._begin(post, self._election.adopt(post.partition, leader))
            else:
                self._observer.fault(post.partition, "leftover", "removed a claim of an earlier term")
                self._election.remove(post.partition, leader)
                post.dirty = True
            return
        self._set_candidacy(post, ready, self._settings.node in sight.candidates)
        rivals = [
            name for name in sight.candidates if name != post.previous_leader or name == self._settings.node
        ]
        place = rank(post.partition, self._settings.node, {*rivals, self._settings.node})
        if not ready or leader is not None:
            post.claim_at = None
        else:
            post.claim_at = self._claim_base(post, now) + place * self._settings.claim_step_s
        others = [name for name in rivals if leader is None or name != leader.node]
        first = ready and rank(post.partition, self._settings.node, others) == 0
        post.io.keep_warm(WARM_STANDBY if first else 0)

    def _claim_base(self, post: Post, now: float) -> float:
        """When the candidate ranked first may claim; about the same moment on every node.

        While nodes start together that is some time after the last of them turned up: otherwise the first one
        up would lead everything. A node that has been up for long doesn't wait for newcomers.
        """
        free_since = post.free_since if post.free_since is not None else now
        settle_s = self._settings.settle_s
        settled = max(self._started_at, min(post.joined_at, self._started_at + 4 * settle_s)) + settle_s
        return max(free_since, settled)

    def _set_candidacy(self, post: Post, ready: bool, listed: bool) -> None:
        if ready:
            if not listed:
                self._election.enroll(post.partition)
            post.roles.to(Role.STANDBY)
        else:
            if listed:
                self._election.withdraw(post.partition)
            if post.roles.role is Role.STANDBY:
                post.roles.to(Role.OUT)

    def _claim(self, post: Post) -> None:
        post.claim_at = None
        post.dirty = True  # whatever comes of it, look again
        post.token = self._runtime.token()
        claim = self._election.claim(post.partition, post.token)
        if claim is not None:
            self._begin(post, claim)

    def _begin(self, post: Post, claim: Claim) -> None:
        if post.free_since is not None:
            self._observer.takeover_step(post.partition, "claim", self._now() - post.free_since)
        leadership = Leadership(
            post.partition,
            who=self._who,
            seat=claim,
            io=post.io,
            machine_factory=self._make_machine,
            roles=post.roles,
            observer=self._observer,
            on_topic_failure=self._on_topic_failure,
            settings=self._settings.term,
            runtime=self._runtime,
            checkpoint=self._settings.checkpoint,
        )

        def run() -> None:
            self._events.put(Finished(post.partition, leadership, leadership.run()))

        post.claim = claim
        post.claim_at = None
        post.leadership = leadership
        if self._stopping.is_set():
            leadership.end(Ending.STOPPED, "the host stops")
        post.thread = self._runtime.spawn(f"relevo-partition-{post.partition}", run)

    def _finish(self, event: Finished) -> None:
        post = self.posts[event.partition]
        if post.leadership is not event.leadership:
            return  # given up before; nobody waits for it any more
        self._dismiss(post, event.over)

    def _abandon(self, post: Post, leadership: Leadership, detail: str) -> None:
        leadership.abandon(detail)
        post.roles.to(Role.ENDING, detail)
        self._dismiss(post, TermOver(Ending.ABANDONED, detail))

    def _dismiss(self, post: Post, over: TermOver) -> None:
        """The term is over: back to standby, or out for a while. Its znode goes as soon as it can."""
        claim = post.claim
        if over.ending is not Ending.STOPPED:
            self._observer.fault(post.partition, f"term_{over.ending.lower()}", over.detail)
        now = self._now()
        post.ended(over, now)
        if self._stopping.is_set():
            post.roles.to(Role.STOPPED)
        elif over.ending is Ending.LOG_DAMAGED:
            post.roles.to(Role.DAMAGED, over.detail)
        else:
            post.roles.to(Role.OUT if now < post.blocked_until else Role.STANDBY, over.detail)
        if claim is not None and self._zookeeper.connected:
            try:
                self._election.remove(post.partition, claim.record)
            except ZooKeeperUnavailable as problem:
                self._observer.fault(None, "zookeeper", str(problem))

    def _leave(self) -> None:
        """End what runs within the deadline, then the session: that takes all znodes with it."""
        for post in self.posts:
            if post.leadership is not None:
                post.leadership.end(Ending.STOPPED, "the host stops")
        for post in self.posts:
            thread = post.thread
            if thread is not None:
                # Part of the time is kept for ZooKeeper; a term that doesn't end by then is left to Kafka's
                # fence.
                thread.join(max(0.0, (self._stop_by - self._now()) * 0.7))
                if thread.is_alive() and post.leadership is not None:
                    self._abandon(post, post.leadership, "didn't end before the host's deadline")
        self._take_events()
        for post in self.posts:
            post.roles.to(Role.STOPPED)
            post.io.keep_warm(0)
        self._zookeeper.close(max(0.5, (self._stop_by - self._now()) * 0.8))

    # -- small parts
    # ------------------------------------------------------------------------------------------------

    def _count_leaderless(self) -> None:
        count = sum(1 for post in self.posts if post.sight is not None and post.sight.leader is None)
        if count != self._leaderless:
            self._leaderless = count
            self._observer.leaderless(count)

    def _role_changed(self, partition: int, before: Role, after: Role, reason: str) -> None:
        self._observer.role_changed(partition, str(before), str(after), reason)
