"""Keeps one node's part in each partition as it should be: it follows it, leads it, or neither.

It compares what ZooKeeper shows with what this node does, and acts on the difference; see
`relevo_partitions.supervisor.supervisor` for whose thread that is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from relevo_partitions.election import placement
from relevo_partitions.election.election import Claim, Election, Sight
from relevo_partitions.election.ranking import rank
from relevo_partitions.errors import ZooKeeperUnavailable
from relevo_partitions.kafka.fence import WARM_STANDBY
from relevo_partitions.observer import Observer
from relevo_partitions.runtime import Mailbox, Runtime
from relevo_partitions.settings import HostSettings
from relevo_partitions.statemachine import Term
from relevo_partitions.supervisor.post import Post
from relevo_partitions.supervisor.replicas import Replicas
from relevo_partitions.supervisor.scene import Scene
from relevo_partitions.supervisor.signals import Event, Finished, Standing
from relevo_partitions.term.endings import Ending, TermOver
from relevo_partitions.term.fence_ahead import FenceAhead
from relevo_partitions.term.leadership import Leadership
from relevo_partitions.term.roles import Role
from relevo_partitions.term.standby import Beginning, Load, Standby
from relevo_partitions.term.takeover import Cause, Takeover

_NO_THREAD: Final = "no thread can be started"
TAKEOVERS_MAX: Final = 100
"""So many of the last takeovers are remembered."""


class Steward:
    """Used by the supervisor's thread; `takeovers` may be read from any.

    Args:
        settings: Of the host.
        scene: What this node knows of the cluster.
        election: ZooKeeper's part.
        replicas: Makes standbys and machines.
        observer: Hears what happens.
        on_topic_failure: Passed to terms.
        runtime: Clocks and threads.
        events: The supervisor's mailbox.
    """

    def __init__(
        self,
        settings: HostSettings,
        scene: Scene,
        election: Election,
        replicas: Replicas,
        observer: Observer,
        on_topic_failure: Callable[[str, str], None],
        runtime: Runtime,
        events: Mailbox[Event | None],
    ) -> None:
        self.takeovers: list[Takeover] = []
        self._settings = settings
        self._scene = scene
        self._election = election
        self._replicas = replicas
        self._observer = observer
        self._on_topic_failure = on_topic_failure
        self._runtime = runtime
        self._now = runtime.monotonic
        self._events = events
        self._who = Term(settings.node, settings.incarnation)

    # -- what ZooKeeper shows

    def look(self, post: Post) -> None:
        """Look, and act on the difference."""
        if post.leadership is None:
            post.give_up_fence()  # of a claim that wasn't to be had
        sight = self._election.look(post.partition)
        post.saw(sight, self._now(), self._scene.live())
        self._act(post, sight)

    def doomed(self, post: Post) -> str | None:
        """A dead leader's claim is about to be deleted: whoever ranks first begins to fence meanwhile.

        Not before ZooKeeper has shown the claim of the dead: one that was taken for dead by mistake would be
        fenced, and without ZooKeeper it couldn't learn that it may go on.

        Returns:
            The token of the claim that this node makes together with the deletion; None: it makes none.
        """
        sight, me = post.sight, self._settings.node
        if sight is None or post.leadership is not None or not (self._may_follow(post) and self._hot(post)):
            return None
        if rank(post.partition, me, {*self._rivals(post, sight), me}) != 0:
            return None
        if post.fence_ahead is None:
            post.fence_ahead = FenceAhead(post.io, post.partition, self._runtime)
        post.token = self._runtime.token()
        post.takeover = self._takeover(
            post, Cause.PULSE, sight.leader.node if sight.leader else None, post.death_noticed_at
        )
        return post.token

    def freed(self, post: Post, claim: Claim | None) -> None:
        """A dead leader's claim was just deleted: whoever ranks first claims without another look."""
        if post.sight is None or post.leadership is not None:
            return
        takeover, post.takeover = post.takeover, None
        post.saw(Sight(None, post.sight.candidates), self._now(), self._scene.live())
        post.dirty = True
        if claim is not None:
            self._begin(post, claim, takeover)
            return
        self._plan_claim(post, self._may_follow(post))
        self.claim_if_due(post)

    def _act(self, post: Post, sight: Sight) -> None:
        if post.leadership is not None:
            self._check_claim(post, sight)
            return
        leader = sight.leader
        may_follow = self._may_follow(post)
        if leader is not None and self._election.is_own(leader) and leader.session == self._scene.session:
            if may_follow and leader.token == post.token and post.roles.role is Role.STANDBY:
                takeover, post.takeover = post.takeover, None
                self._begin(post, self._election.adopt(post.partition, leader), takeover)
            else:
                self._observer.fault(post.partition, "leftover", "removed a claim of an earlier term")
                self._election.remove(post.partition, leader)
                post.dirty = True
            return
        self._stand_by(post, sight, may_follow)
        self._plan_claim(post, may_follow)

    def _check_claim(self, post: Post, sight: Sight) -> None:
        if post.leadership is not None and (post.claim is None or not post.claim.is_shown_by(sight)):
            post.leadership.end(Ending.LOST, "ZooKeeper shows another claim, or none")
        elif post.roles.role is Role.LEADING and self._settings.node in sight.candidates:
            self._election.withdraw(post.partition)  # candidates are those who could take over

    def _may_follow(self, post: Post) -> bool:
        return (
            not self._scene.leaving
            and self._now() >= post.blocked_until
            and self._settings.eligible(post.partition)
        )

    # -- standing by

    def _stand_by(self, post: Post, sight: Sight, may_follow: bool) -> None:
        """Begin or end to follow, and be a candidate just while hot."""
        me, now = self._settings.node, self._now()
        dead = self._scene.dead_names()
        wanted = may_follow and placement.stands_by(
            post.partition,
            me,
            live=self._scene.live(),
            leader=sight.leader.node if sight.leader is not None else None,
            candidates=[name for name in sight.candidates if name not in dead],
            replicas=self._settings.replicas,
            already=post.standby is not None,
            lacking_s=now - post.lacking_since if post.lacking_since is not None else 0.0,
        )
        if wanted and post.standby is None:
            self._follow(post)
        elif not wanted and post.standby is not None:
            post.standby.stop()
            post.standby = None
        standby = post.standby
        hot = standby is not None and standby.hot
        listed = me in sight.candidates
        if hot and not listed:
            self._election.enroll(post.partition)
        elif listed and not hot:
            self._election.withdraw(post.partition)
        if standby is not None:
            post.roles.to(Role.STANDBY if hot else Role.FOLLOWING)
        elif post.roles.role is not Role.DAMAGED or may_follow:
            post.roles.to(Role.OUT)
        if hot or (standby is None and self._may_follow(post)):
            post.fault = None  # over: it can follow again, or needn't
        rivals = self._rivals(post, sight)
        leader = sight.leader.node if sight.leader is not None else None
        first = hot and rank(post.partition, me, {*rivals, me} - {leader}) == 0
        post.io.keep_warm(WARM_STANDBY if first else 0)
        if standby is not None:
            standby.takes_snapshots = first
            standby.waited_for = sight.leader is None

    def _follow(self, post: Post, load: Load | None = None) -> None:
        standby = self._replicas.standby(post, lambda standby: self._events.put(Standing(standby)), load)
        post.standby = standby
        post.roles.to(Role.FOLLOWING)
        try:
            self._runtime.spawn(f"relevo-standby-{post.partition}", standby.run)
        except RuntimeError as error:
            post.standby_ended(TermOver(Ending.MACHINE_FAILED, f"{_NO_THREAD}: {error}"), self._now())
            self._observer.fault(post.partition, "standby_not_started", str(error))
            post.roles.to(Role.OUT, _NO_THREAD)

    def standing(self, post: Post, event: Standing) -> None:
        """A standby became hot, fell behind, or ended."""
        post.dirty = True
        standby = event.standby
        if standby is not post.standby:
            return
        if standby.replica is not None and standby.await_end(0):
            # It came to the barrier of a term that had ended just before, and reads no further.
            post.standby = None
            self._go_on(post, standby)
            return
        if standby.over is None:
            return
        over = standby.over
        if over.ending is not Ending.STOPPED:
            self._observer.fault(post.partition, f"standby_{over.ending.lower()}", over.detail)
        post.standby_ended(over, self._now())
        if post.roles.role is not Role.STOPPED:
            damaged = over.ending is Ending.LOG_DAMAGED
            post.roles.to(Role.DAMAGED if damaged else Role.OUT, over.detail)

    # -- claiming

    def _rivals(self, post: Post, sight: Sight) -> list[str]:
        """The candidates that may claim; a leader that has just died may still be listed."""
        me, dead = self._settings.node, self._scene.dead_names()
        return [
            name
            for name in sight.candidates
            if name == me or (name != post.previous_leader and name not in dead)
        ]

    def _plan_claim(self, post: Post, may_follow: bool) -> None:
        sight = post.sight
        if sight is None or sight.leader is not None or not (may_follow and self._hot(post)):
            post.claim_at = None
            return
        me = self._settings.node
        place = rank(post.partition, me, {*self._rivals(post, sight), me})
        post.claim_at = self._claim_base(post, self._now()) + place * self._settings.claim_step_s

    @staticmethod
    def _hot(post: Post) -> bool:
        return post.standby is not None and post.standby.hot and post.roles.role is Role.STANDBY

    def _claim_base(self, post: Post, now: float) -> float:
        """When the candidate ranked first may claim; about the same moment on every node.

        While nodes start together that is some time after the last of them turned up: otherwise the first one
        up would lead everything. A node that has been up for long doesn't wait for newcomers.
        """
        free_since = post.free_since if post.free_since is not None else now
        if post.previous_leader is not None:
            return free_since  # not a start: somebody led it
        settle_s, started_at = self._settings.settle_s, self._scene.started_at
        settled = max(started_at, min(post.joined_at, started_at + 4 * settle_s)) + settle_s
        return max(free_since, settled)

    def claim_if_due(self, post: Post) -> None:
        """Try to get the partition, if it is this node's turn."""
        if post.claim_at is None or post.claim_at > self._now():
            return
        post.claim_at = None
        post.dirty = True  # whatever comes of it, look again
        if post.standby is None or not post.standby.hot or self._scene.leaving:
            return
        post.token = self._runtime.token()
        post.takeover = self._takeover(post, post.cause, post.previous_leader, post.free_since)
        claim = self._election.claim(post.partition, post.token)
        takeover, post.takeover = post.takeover, None
        if claim is not None:
            self._begin(post, claim, takeover)

    def _takeover(self, post: Post, cause: Cause, previous: str | None, free_since: float | None) -> Takeover:
        takeover = Takeover(
            post.partition,
            cause,
            previous,
            free_since,
            lambda step, seconds: self._observer.takeover_step(post.partition, step, seconds),
            self._runtime,
            post.leader_lost_at if cause is Cause.PULSE else None,
        )
        takeover.step("detect")
        return takeover

    # -- leading

    def _begin(self, post: Post, claim: Claim, takeover: Takeover | None = None) -> None:
        if takeover is None:
            takeover = self._takeover(post, post.cause, post.previous_leader, post.free_since)
        takeover.step("claim")
        standby, post.standby = post.standby, None
        fence_ahead, post.fence_ahead = post.fence_ahead, None
        leadership = Leadership(
            post.partition,
            who=self._who,
            seat=claim,
            io=post.io,
            machine_factory=self._replicas.make_machine,
            roles=post.roles,
            observer=self._observer,
            on_topic_failure=self._on_topic_failure,
            settings=self._settings.term,
            runtime=self._runtime,
            checkpoint=self._settings.checkpoint,
            standby=standby,
            load=self._replicas.load(post),
            takeover=takeover,
            snapshots=self._replicas.leader_snapshots(post),
            fence_ahead=fence_ahead,
            last=post.last_committed,
        )

        def run() -> None:
            over = TermOver(Ending.MACHINE_FAILED, "the term's thread has died")
            try:
                over = leadership.run()
            finally:
                self._events.put(Finished(post.partition, leadership, over))

        post.claim = claim
        post.claim_at = None
        post.leadership = leadership
        post.began_at = self._now()
        self.takeovers = [*self.takeovers[-TAKEOVERS_MAX + 1 :], takeover]
        try:
            post.thread = self._runtime.spawn(f"relevo-partition-{post.partition}", run)
        except RuntimeError as error:
            over = leadership.never_ran(f"{_NO_THREAD}: {error}")
            self._events.put(Finished(post.partition, leadership, over))

    def finish(self, post: Post, event: Finished) -> None:
        """A term has ended by itself."""
        if post.leadership is not event.leadership:
            # Given up before; nobody waits for it any more, nor for its standby.
            standby, event.leadership.unused_standby = event.leadership.unused_standby, None
            if standby is not None:
                self._end_standby(standby)
            return
        self._dismiss(post, event.over)

    def abandon(self, post: Post, leadership: Leadership, detail: str) -> None:
        """Give up a term whose thread hangs."""
        leadership.abandon(detail)
        post.roles.to(Role.ENDING, detail)
        self._dismiss(post, TermOver(Ending.ABANDONED, detail))

    def _dismiss(self, post: Post, over: TermOver) -> None:
        """The term is over: its znode goes as soon as it can. This node stands by again, or keeps out."""
        claim, leadership = post.claim, post.leadership
        post.ended(over, self._now())
        if claim is not None and self._election.reachable:
            try:
                self._election.remove(post.partition, claim.record)
            except ZooKeeperUnavailable as problem:
                self._observer.fault(None, "zookeeper", str(problem))
        if over.ending not in (Ending.STOPPED, Ending.HANDED_OVER):
            self._observer.fault(post.partition, f"term_{over.ending.lower()}", over.detail)
        if leadership is not None:
            self._take_back(post, leadership)
        if over.ending is Ending.LOG_DAMAGED:
            post.roles.to(Role.DAMAGED, over.detail)
        else:
            post.roles.to(Role.FOLLOWING if post.standby is not None else Role.OUT, over.detail)

    def _take_back(self, post: Post, leadership: Leadership) -> None:
        """A standby that the term never came to use goes on as it was."""
        standby, leadership.unused_standby = leadership.unused_standby, None
        if standby is None:
            return
        if self._scene.leaving:
            self._end_standby(standby)
        elif standby.await_end(0):
            self._go_on(post, standby)
        else:
            post.standby = standby

    def _go_on(self, post: Post, standby: Standby) -> None:
        """Follow from the barrier on at which a standby has stopped for a term that is over.

        A barrier changes nothing; loading a large state anew would leave the partition without a candidate.
        """
        replica = standby.hand_out()
        if replica is None:
            return  # it failed, or was stopped
        replica.reader.close()
        # Taken out by the one who loads it: nothing else shall keep the state.
        held = [Beginning(replica.machine, replica.next_offset)]
        self._follow(post, lambda _partition, _pace: held.pop())

    @staticmethod
    def _end_standby(standby: Standby) -> None:
        standby.stop()
        replica = standby.hand_out()
        if replica is not None:
            replica.reader.close()
