"""`JobMachine`: the whole state machine of one partition behind one door."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from relevo_engine.core import commands, snapshot, timeouts, views
from relevo_engine.core.appliers import apply
from relevo_engine.core.channels import Channels
from relevo_engine.core.checks import brief
from relevo_engine.core.dispatch import Dispatcher, Handover, waits_for_channel
from relevo_engine.core.errors import InvariantBroken
from relevo_engine.core.job import JobState
from relevo_engine.core.restore import CopyReader, Restoration
from relevo_engine.core.rules import Rules
from relevo_engine.core.snapshot import StateCopy, StateRecord
from relevo_engine.core.state import State
from relevo_engine.core.timers import Leases
from relevo_engine.core.turn import Turn
from relevo_engine.core.views import View
from relevo_schemas import events as ev
from relevo_schemas.records import Command, Event

_LEASE_CHANGES: Final = frozenset(
    (ev.JobCompleted, ev.JobFailed, ev.JobErrored, ev.JobTimedOut, ev.JobCancelled, ev.JobExpired,
     ev.JobCheckpointed)
)  # fmt: skip
"""What ends a lease, or is a sign of life besides what is sent for that."""


class JobMachine:
    """One partition: feed it events in replay, then `elected`, then commands and time.

    Every call that returns events has applied them. Times are milliseconds since the Unix epoch; one that
    lies before the last event counts as that event's.

    Args:
        rules: The partition's rules.
        channels: What is known about activation topics.
    """

    def __init__(self, rules: Rules, channels: Channels) -> None:
        self.rules = rules
        self.state = State(rules)
        self._leases = Leases()
        self._turn = Turn(self.state, rules, channels, self._leases)
        self._dispatcher = Dispatcher()
        self._leading = False

    # Replay

    def replay(self, event: Event) -> None:
        """Apply an event of the log.

        Raises:
            InvariantBroken: The event can't follow; see `relevo_engine.core.appliers.apply`.
        """
        apply(self.replaying(), event)

    def replaying(self) -> State:
        """What many events on end are to be applied to, before the machine does anything else.

        Raises:
            InvariantBroken: The machine leads.
        """
        if self._leading:
            raise InvariantBroken("a leader's state comes from its own decisions, not from replay")
        return self.state

    # Copies

    def copy(self) -> StateCopy:
        """Begin a copy of the state as it is; one at a time, until `release`.

        Raises:
            InvariantBroken: The one before wasn't released.
        """
        if self.state.keep is not None:
            raise InvariantBroken("a state is copied once at a time")
        made = StateCopy(self.state)
        self.state.keep = made.keep
        return made

    def release(self) -> None:
        """The copy under way is complete, or given up."""
        self.state.keep = None

    def restore(self, records: Iterable[StateRecord]) -> None:
        """Fill an empty machine from the records of a copy.

        Raises:
            CopyUnfit: They aren't a whole copy. The machine must be thrown away.
        """
        reader, restoration = CopyReader(), Restoration(self.state)
        for name, record in records:
            reader.take(name, record)
            restoration.take(name, record)
        reader.finish()
        restoration.finish()

    # Leading

    def elected(self, node: str, incarnation: str, now: int) -> ev.LeaderElected:
        """Begin a term. Every started job gets a full fresh lease, so a failover by itself expires none."""
        if self._leading:
            raise InvariantBroken("a machine leads one term only")
        self._turn.begin(now, -1)
        seq, epoch, at, source = self._turn.head()
        event = ev.LeaderElected(seq, epoch + 1, at, source, node, incarnation)
        apply(self.state, event)
        self._leading = True
        self._turn.heard_since = at
        self._leases.fill({key: at + lease_ms for key, lease_ms in self.state.started.items()})
        return event

    def heard(self, since: int, until: int) -> None:
        """What silence tells from now on, as of the next `tick`.

        A leader that couldn't listen for a while gives every started attempt a full fresh lease, as a new
        leader does: its worker could tell nobody that it lives, or that the job is done.

        Args:
            since: From then on it has listened without a break.
            until: Whatever was sent until then has been decided on.
        """
        turn = self._turn
        turn.heard_until = until
        if since > turn.heard_since:
            turn.heard_since = since
            started, leases = self.state.started, self._leases
            leases.fill({key: max(leases.until(key) or 0, since + ms) for key, ms in started.items()})

    def propose(self, command: Command, source: int, now: int) -> list[Event]:
        """The events that ``command``, at offset ``source``, leads to. The state stays as it is."""
        self._turn.begin(now, source)
        return commands.decide(self._turn, command)

    def refusal(
        self, command: str, source: int, now: int, reason: str, expected: str, found: str
    ) -> ev.CommandRejected:
        """The event that refuses what can't even be decided: unreadable bytes, for one. To be accepted."""
        self._turn.begin(now, source)
        return ev.CommandRejected(*self._turn.head(), "", command, str(reason), expected, brief(found))

    def accept(self, events: Iterable[Event]) -> None:
        """Apply events that were just proposed.

        Raises:
            InvariantBroken: A bug; the term must end.
        """
        for event in events:
            apply(self.state, event)
            kind = type(event)
            if kind is ev.JobStarted:
                self._leases.arm(event.key, event.at + event.lease_ms)  # type: ignore[attr-defined]
            elif self._leases and kind in _LEASE_CHANGES:
                if kind is ev.JobCheckpointed:
                    self._prolong(event.key, event.at)  # type: ignore[attr-defined]
                else:
                    self._leases.disarm(event.key)  # type: ignore[attr-defined]

    def _prolong(self, key: str, at: int) -> None:
        """Begin the lease of ``key`` anew, if it has one; never shorten what its worker was granted."""
        until = self._leases.until(key)
        if until is not None:
            self._leases.arm(key, max(until, at + self.state.started[key]))

    def decide(self, command: Command, source: int, now: int) -> list[Event]:
        """`propose`, then `accept`."""
        events = self.propose(command, source, now)
        self.accept(events)
        return events

    def tick(self, now: int, limit: int) -> list[Event]:
        """Work off what is due, the oldest first: at most ``limit`` of all kinds of timers."""
        self._turn.begin(now, -1)
        done: list[Event] = []
        for _ in range(limit):
            events = timeouts.overdue(self._turn)
            if not events:
                break
            self.accept(events)
            done += events
        return done

    def dispatch(self, now: int, limit: int) -> list[Handover]:
        """Hand out ready jobs as windows and channels allow: at most ``limit``, and a step's bytes."""
        turn = self._turn
        turn.begin(now, -1)
        done: list[Handover] = []
        if not self.state.waiting:
            return done
        bytes_left = self.rules.step_activation_bytes
        for lane, slots, share in self._dispatcher.shares(turn, limit):
            for _ in range(share):
                handover = self._dispatcher.hand_over(turn, lane, slots) if bytes_left > 0 else None
                if handover is None:
                    break
                apply(self.state, handover.event)
                bytes_left -= len(handover.body) + len(handover.checkpoint)
                done.append(handover)
        return done

    def silent_at(self) -> int | None:
        """When the next lease runs out; None: there is none."""
        lease = self._leases.head()
        return None if lease is None else lease[0]

    def wait_ms(self, now: int) -> int | None:
        """Milliseconds until `tick` or `dispatch` has something to do; 0: at once; None: never."""
        able, blocked = waits_for_channel(self._turn)
        if able:
            return 0
        due_at = timeouts.next_at(self._turn)
        wait = None if due_at == timeouts.NEVER else max(0, due_at - max(now, self.state.last_at))
        if blocked:
            wait = self.rules.recheck_ms if wait is None else min(wait, self.rules.recheck_ms)
        return wait

    # Reading

    def job(self, key: str) -> View | None:
        """See `relevo_engine.core.views.job_view`."""
        return views.job_view(self.state, self._leases, key)

    def counts(self) -> dict[str, dict[str, int]]:
        """See `relevo_engine.core.views.counts`."""
        return views.counts(self.state)

    def list(
        self, where: JobState | None = None, job_type: str | None = None, limit: int = 100
    ) -> list[View]:
        """See `relevo_engine.core.views.list_jobs`."""
        return views.list_jobs(self.state, where, job_type, limit)

    def summary(self) -> View:
        """See `relevo_engine.core.views.summary`."""
        return views.summary(self.state, self._leases)

    def state_hash(self) -> str:
        """See `relevo_engine.core.snapshot.state_hash`."""
        return snapshot.state_hash(self.state)
