"""Moves leadership of this broker's groups to where it should be; see balancer_core for the rules."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import structlog

from georelay.cadence import pause_s
from georelay.clock import Clock
from georelay.ids import BrokerId, GroupId
from region.multiraft.balancer_core import BalancerCore, LedGroup
from region.multiraft.group import Group

log = structlog.get_logger()

LOOK_MS: Final = 1_000


class BalancedHost(Protocol):
    """What the balancer needs of the host."""

    me: BrokerId
    groups: dict[GroupId, Group]

    def heirs_of(self, group: Group) -> frozenset[BrokerId]:
        """Return the voters that could lead the group at once."""


class LeaderBalancer:
    """One per broker.

    Args:
        preferred: voters of each group in the order in which they should lead.
        draining: brokers that shall lead nothing.
    """

    def __init__(
        self,
        host: BalancedHost,
        *,
        clock: Clock,
        preferred: Callable[[], Mapping[GroupId, tuple[BrokerId, ...]]],
        draining: Callable[[], frozenset[BrokerId]],
        interval_ms: int = LOOK_MS,
    ) -> None:
        self._host = host
        self._clock = clock
        self._preferred = preferred
        self._draining = draining
        self._interval_ms = interval_ms
        self._core = BalancerCore(me=host.me, now_ns=clock.monotonic_ns())
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to look, on the running loop."""
        self._timer = asyncio.get_running_loop().call_later(pause_s(self._interval_ms / 1000), self._look_again)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_again(self) -> None:
        self.look()
        self.start()

    def look(self) -> None:
        """Begin the hand-overs that are due."""
        preferred, draining = self._preferred(), self._draining()
        me = self._host.me
        if not self._core.is_settled(self._clock.monotonic_ns(), draining):
            return
        led = [
            LedGroup(group_id=group_id, preferred=preferred.get(group_id, ()), healthy=self._host.heirs_of(group))
            for group_id, group in self._host.groups.items()
            if group.serves_as_leader
            if me in draining or preferred.get(group_id, (me,))[:1] != (me,)  # else it is where it belongs
            if group.node.transferee == 0 and not group.membership.outgoing
        ]
        for move in self._core.plan(self._clock.monotonic_ns(), led, draining):
            begun = self._host.groups[move.group_id].transfer_leadership(move.to)
            log.info("leadership.handed_over", group=move.group_id, to=move.to, begun=begun)
