"""Commit indexes that a leader tells when there is nothing else to send: held back a little, many are never sent.

Only groups at whose followers somebody may wait have them (StateMachine.serves_at_followers): the controller's. In all
others the next Append or beat tells the index. Here the next Append of the same group, if it comes before HOLD_MS are
over, says the same and more. A commit index that gets lost is told again by the next beat.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from georelay.ids import GroupId
from region.log.entry import Entry
from region.raft.core import Append

HOLD_MS: Final = 10


class QuietCommits:
    """The newest quiet Append for each follower and group.

    Args:
        send: sends one now.
    """

    def __init__(self, send: Callable[[GroupId, Append[Entry]], None]) -> None:
        self._send = send
        self._held: dict[tuple[int, GroupId], Append[Entry]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def takes(self, group_id: GroupId, message: Append[Entry], loop: asyncio.AbstractEventLoop) -> bool:
        """Hold a quiet Append, in the place of an older one, and return True; any other one overtakes what is held."""
        place = (message.to, group_id)
        if not message.quiet:
            if self._held:
                self._held.pop(place, None)
            return False
        self._held[place] = message
        if self._timer is None:
            self._timer = loop.call_later(HOLD_MS / 1000, self._send_all)
        return True

    def stop(self) -> None:
        """Send nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._held.clear()

    def _send_all(self) -> None:
        self._timer = None
        held, self._held = self._held, {}
        for (_, group_id), message in held.items():
            self._send(group_id, message)
