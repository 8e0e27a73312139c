"""Tells the brokers of the gateway's region that operators drain it for clients, and where those are to go.

Kafka clients that are connected speak with brokers, not with a gateway: only brokers can send them away. They learn it
from a tag of this gateway in the region's pool, which goes when the decision does, or the gateway.

Rule: clients are sent to the ready region that comes next for this gateway and does not drain. Without one they stay.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from gateway.routing.router import Router
from georelay.cadence import Recurring
from mesh.gossip.directory_core import DRAIN_TAG

LOOK_EVERY_S: Final = 1.0

log = structlog.get_logger()


class DrainTeller(Recurring):
    """Args:
    region: of the gateway. set_tags: changes its tags in the pool, "" takes one away.
    """

    def __init__(self, router: Router, *, region: str, set_tags: Callable[..., Awaitable[None]]) -> None:
        super().__init__("drain_teller", every_s=LOOK_EVERY_S)
        self._router = router
        self._region = region
        self._set_tags = set_tags
        self._told = ""

    async def look(self) -> None:
        """Tell what has changed."""
        heading = self._heading()
        if heading != self._told:
            await self._set_tags(**{DRAIN_TAG: heading})
            self._told = heading

    def _heading(self) -> str:
        """Return the region that clients of the own one are to go to, "" where they stay."""
        rules = self._router.rules
        if rules.draining_since_s(self._region) is None:
            return ""
        others = (region for region in self._router.ranking() if region.ready and region.name != self._region)
        return next((region.name for region in others if rules.draining_since_s(region.name) is None), "")
