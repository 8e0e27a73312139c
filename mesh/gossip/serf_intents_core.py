"""Join and leave intents of one member and of others: heard, ordered by their clock, told on (serf-wire 2.7). Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from mesh.gossip.broadcast_queue_core import BroadcastQueue
from mesh.gossip.lamport_core import LamportClock
from mesh.gossip.member_table_core import MemberRow, MemberTable, Outcome
from mesh.gossip.serf_messages import JoinIntent, LeaveIntent
from mesh.gossip.view import MemberChange, MemberStatus


class SerfIntents:
    """Args:
    me: own name. clock: of intents. told: what changed for a member, in order.
    """

    def __init__(
        self,
        *,
        me: str,
        clock: LamportClock,
        queue: BroadcastQueue,
        told: Callable[[MemberChange, MemberRow], None],
        counts: Counter[str],
    ) -> None:
        self.clock = clock
        self.queue = queue
        self.table = MemberTable(me=me, is_leaving=lambda: self.is_leaving)
        self.is_leaving = False
        self._me = me
        self._told = told
        self._counts = counts
        self._ticket: int | None = None

    def tell_join(self, now: float) -> None:
        """Say that this member is here."""
        intent = JoinIntent(ltime=self.clock.time, name=self._me)
        self.clock.witness(intent.ltime)
        self.table.join_intended(intent.name, intent.ltime, now=now)
        self.queue.push(intent.encode(), key=intent.name)

    def begin_leave(self) -> None:
        """Say that this member leaves."""
        self.is_leaving = True
        intent = LeaveIntent(ltime=self.clock.take(), name=self._me)
        row = self.table.rows.get(self._me)
        if row is not None:
            row.ltime, row.status = intent.ltime, MemberStatus.LEAVING
        self._ticket = self.queue.push(intent.encode(), key=intent.name)

    @property
    def leave_is_told(self) -> bool:
        """Return whether the own leave went out as often as is needed."""
        return self._ticket is None or not self.queue.is_pending(self._ticket)

    def leave_heard(self, intent: LeaveIntent, now: float) -> None:
        """Take in a leave."""
        self.clock.witness(intent.ltime)
        outcome = self.table.leave_intended(intent.name, intent.ltime, prune=intent.prune, now=now)
        if outcome.refute:
            self._counts["leave_refuted"] += 1
            self.tell_join(now)
        self._follow(outcome, intent.name, intent.encode())

    def join_heard(self, intent: JoinIntent, now: float) -> None:
        """Take in a join."""
        self.clock.witness(intent.ltime)
        outcome = self.table.join_intended(intent.name, intent.ltime, now=now)
        self._follow(outcome, intent.name, intent.encode())

    def merge(self, statuses: Mapping[str, int], left: Iterable[str], now: float) -> None:
        """Take in what another member knows of all: logical times of statuses, and who left."""
        gone = set(left)
        for name, ltime in statuses.items():
            if name in gone:
                self.leave_heard(LeaveIntent(ltime=ltime + 1, name=name), now)
            else:
                self.join_heard(JoinIntent(ltime=ltime, name=name), now)

    def statuses(self) -> dict[str, int]:
        """Return the logical time of every member's status."""
        return {row.name: row.ltime for row in self.table.rows.values()}

    def left(self) -> list[str]:
        """Return who has left."""
        return [row.name for row in self.table.of_status(MemberStatus.LEFT)]

    def _follow(self, outcome: Outcome, name: str, raw: bytes) -> None:
        for change, row in outcome.changes:
            self._told(change, row)
        if outcome.spread:
            self.queue.push(raw, key=name)
