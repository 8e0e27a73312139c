"""When a group should campaign without waiting for an election timeout.

Rule 1: a sole voter leads at once; the preferred leader of a new group asks first. A pre-vote disturbs nobody who
        hears a leader.
Rule 2: when the leader's connection is reset its survivors campaign in turn: two at once would split the votes and
        wait a whole timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Final

from georelay.ids import BrokerId
from region.multiraft.group import Group

FAILOVER_FIRST_MS: Final = 50  # from the reset of the leader's connection to the first survivor's campaign
FAILOVER_TURN_MS: Final = 100  # to the next one's: time for an election with its syncs
FAILOVER_JITTER_MS: Final = 25
FIRST_CAMPAIGNS_MS: Final = (20, 150, 400)  # of a group's preferred leader; the other voters may open it later


class Campaigns:
    """Plans campaigns of one broker's groups."""

    def __init__(self, *, me: BrokerId, rng: Random, campaign: Callable[[Group], None]) -> None:
        """`campaign` lets a group campaign now, unless it has a leader."""
        self._me = me
        self._rng = rng
        self._campaign = campaign

    def opened(self, group: Group, loop: asyncio.AbstractEventLoop | None) -> None:
        """Let a group that was just opened campaign when it should."""
        voters = group.membership.electors()
        if voters == (self._me,):
            self._campaign(group)
        elif voters and voters[0] == self._me and loop is not None:
            for delay_ms in FIRST_CAMPAIGNS_MS:
                loop.call_later(delay_ms / 1000, self._campaign, group)

    def leader_lost(self, group: Group, lost: BrokerId, loop: asyncio.AbstractEventLoop) -> None:
        """Campaign in turn with the other survivors among the voters of now."""
        survivors = sorted(voter for voter in group.membership.electors() if voter != lost)
        if self._me not in survivors:
            return
        turn = (survivors.index(self._me) + group.group_id) % len(survivors)
        delay_ms = FAILOVER_FIRST_MS + turn * FAILOVER_TURN_MS + self._rng.uniform(0, FAILOVER_JITTER_MS)
        loop.call_later(delay_ms / 1000, self._campaign, group)
