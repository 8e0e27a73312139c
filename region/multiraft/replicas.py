"""Drives the memberships of the groups that this broker leads towards what the controller wants.

Rule 1: a new leader acts only on a view of the controller that is not older than its leadership: it waits for a
        barrier first.
Rule 2: a report is made only after the leadership was confirmed by a quorum, so a deposed leader reports nothing.
Rule 3: a report that is refused is dropped; the next look reports what is true then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import structlog

from georelay.cadence import pause_s
from georelay.errors import GeorelayError
from georelay.ids import BrokerId, GroupId
from region.multiraft.group import Group
from region.multiraft.replica_keeper_core import (
    CAUGHT_UP_ENTRIES,
    ChangeMembers,
    GroupView,
    Members,
    MemberView,
    ReplicaTarget,
    decide,
    is_moving,
    is_reached,
    must_report,
    still_unsafe,
)
from region.raft.core import Membership, ProgressState

log = structlog.get_logger()

LOOK_MS: Final = 200
SETTLED_LOOKS: Final = 5  # of which one is taken while all groups are as they should be and nothing else is wanted
MOVES_MAX: Final = 8  # groups of this leader whose log is being copied to another broker
REPORT_AGAIN_LOOKS: Final = 5

Report = Callable[[GroupId, tuple[BrokerId, ...], tuple[BrokerId, ...], int, int], Awaitable[object]]


class KeptHost(Protocol):
    """What the keeper needs of the host."""

    me: BrokerId
    groups: dict[GroupId, Group]

    def is_alive(self, broker: BrokerId) -> bool:
        """Return whether a broker was heard lately."""


@dataclass(slots=True)
class _Office:
    """What the keeper remembers of one group in one term of leadership."""

    term: int
    informed: bool = False  # the controller's view is not older than this leadership
    asking: bool = False
    reporting: bool = False
    reported: Members | None = None
    settled: tuple[Membership, ReplicaTarget] | None = None  # there was nothing to do
    looks_since_report: int = REPORT_AGAIN_LOOKS
    seen: dict[BrokerId, int] = field(default_factory=dict)


class ReplicaKeeper:
    """One per broker; acts on the groups it leads.

    Args:
        targets: what the controller wants, by group; groups without one are left alone. The same object again only
            while nothing has changed.
        barrier: returns when this broker has applied everything the controller had committed when it was called.
        report: tells the controller (group, voters, learners, generation of the target, index of the membership); may
            raise GeorelayError.
    """

    def __init__(
        self,
        host: KeptHost,
        *,
        targets: Callable[[], Mapping[GroupId, ReplicaTarget]],
        barrier: Callable[[], Awaitable[object]],
        report: Report,
        interval_ms: int = LOOK_MS,
        moves_max: int = MOVES_MAX,
    ) -> None:
        self._host = host
        self._targets = targets
        self._barrier = barrier
        self._report = report
        self._interval_ms = interval_ms
        self._moves_max = moves_max
        self._offices: dict[GroupId, _Office] = {}
        self._settled_targets: Mapping[GroupId, ReplicaTarget] | None = None  # with which a look found nothing to do
        self._looks_left_out = 0
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = False

    def start(self) -> None:
        """Begin to look, on the running loop."""
        self._timer = asyncio.get_running_loop().call_later(pause_s(self._interval_ms / 1000), self._look_again)

    async def stop(self) -> None:
        """Look no more."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _look_again(self) -> None:
        if self._targets() is self._settled_targets and self._looks_left_out + 1 < SETTLED_LOOKS:
            self._looks_left_out += 1
        else:
            self._looks_left_out = 0
            self.look()
        if not self._stopped:
            self.start()

    def look(self) -> None:
        """Take one step in every group that this broker leads and that is not as it should be."""
        targets = self._targets()
        led = [group for group in self._host.groups.values() if group.serves_as_leader and group.group_id in targets]
        for group_id in self._offices.keys() - {group.group_id for group in led}:
            del self._offices[group_id]
        due = [group for group in led if not self._is_settled(group, targets[group.group_id])]
        self._settled_targets = None if due else targets
        moving = sum(
            1 for group in due if is_moving(self._view(group, targets[group.group_id]), targets[group.group_id])
        )
        for group in due:
            target = targets[group.group_id]
            begins = self._keep(group, target, may_move=moving < self._moves_max)
            moving += begins

    def _is_settled(self, group: Group, target: ReplicaTarget) -> bool:
        """Return whether a look found nothing to do or to tell, and nothing has changed since.

        Who is alive does not matter then: members that are what is wanted stay what they are.
        """
        office = self._offices.get(group.group_id)
        return office is not None and office.term == group.node.term and office.settled == (group.membership, target)

    def _keep(self, group: Group, target: ReplicaTarget, *, may_move: bool) -> bool:
        """Take one step; return whether a new replica begins to be made."""
        office = self._office(group)
        if not office.informed:
            self._ask_controller(group, office)
            return False
        membership = group.membership
        if membership.outgoing or not group.membership_committed:
            return False
        unsafe = still_unsafe(target, office.seen, membership.members())
        wanted, target = target, replace(target, unsafe=unsafe)
        members: Members = (membership.voters, membership.learners)
        self._report_if_due(group, office, members, target)
        view = self._view(group, target)
        action = decide(view, target, may_move=may_move)
        if action is None:
            if is_reached(view, target) and not must_report(members, target, reported=office.reported):
                office.settled = (membership, wanted)
            return False
        was_moving = is_moving(view, target)
        if isinstance(action, ChangeMembers):
            self._change(group, action)
        elif group.node.transferee == 0:
            group.transfer_leadership(action.to)
        return not was_moving and is_moving(self._view(group, target), target)

    def _office(self, group: Group) -> _Office:
        office = self._offices.get(group.group_id)
        if office is None or office.term != group.node.term:
            office = self._offices[group.group_id] = _Office(group.node.term)
        return office

    def _change(self, group: Group, action: ChangeMembers) -> None:
        try:
            group.propose_membership(voters=action.voters, learners=action.learners)
        except GeorelayError as error:  # the next look finds out what is possible then
            log.info("membership.refused", group=group.group_id, reason=str(error))
        else:
            log.info("membership.proposed", group=group.group_id, voters=action.voters, learners=action.learners)

    def _view(self, group: Group, target: ReplicaTarget) -> GroupView:
        membership = group.membership
        views = {}
        for member in membership.members():
            progress = group.node.progress(member)
            if progress is None:
                continue
            near = progress.match + CAUGHT_UP_ENTRIES >= group.node.last_index
            follows = progress.state is ProgressState.REPLICATE and not progress.repairing
            views[member] = MemberView(alive=self._host.is_alive(member), caught_up=near and follows)
        return GroupView(
            me=self._host.me,
            voters=membership.voters,
            learners=membership.learners,
            members=views,
            reachable=frozenset(filter(self._host.is_alive, (*target.voters, *target.learners))),
        )

    # --- the controller --------------------------------------------------------------------------

    def _ask_controller(self, group: Group, office: _Office) -> None:
        if not office.asking:
            office.asking = True
            self._spawn(self._inform(group, office))

    async def _inform(self, group: Group, office: _Office) -> None:
        try:
            await self._barrier()
        except GeorelayError as error:
            log.info("controller.unreachable", group=group.group_id, reason=str(error))
        else:
            office.informed = True
        finally:
            office.asking = False

    def _report_if_due(self, group: Group, office: _Office, members: Members, target: ReplicaTarget) -> None:
        office.looks_since_report += 1
        due = office.looks_since_report > REPORT_AGAIN_LOOKS or office.reported != members
        if due and not office.reporting and must_report(members, target, reported=office.reported):
            office.reporting = True
            office.looks_since_report = 0
            self._spawn(self._tell(group, office, members, target.generation, group.node.membership_index))

    async def _tell(self, group: Group, office: _Office, members: Members, generation: int, index: int) -> None:
        try:
            await group.read_index()
            if group.serves_as_leader and group.node.term == office.term:
                await self._report(group.group_id, members[0], members[1], generation, index)
                office.reported = members
        except GeorelayError as error:
            log.info("membership.report_refused", group=group.group_id, reason=str(error))
        finally:
            office.reporting = False

    def _spawn(self, work: Awaitable[None]) -> None:
        if self._stopped:
            return
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
