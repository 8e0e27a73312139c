"""Shares what operators decided with all other gateways, through the pool of the own region.

Rule 1: this gateway tells its rules to whoever asks; the brokers of its region do, and carry them to other regions.
Rule 2: one broker is asked for what others were told, the same one by all gateways: it asks all others for all.
Rule 3: what cannot be had changes nothing: a gateway that is cut off goes on with what it knows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import structlog

from gateway.routing.router import Router
from georelay.cadence import Recurring
from georelay.fields import FieldError
from mesh.gossip.directory_core import first_broker
from mesh.gossip.distance_reading import AskedPool
from mesh.gossip.rule_pages_core import answer
from mesh.gossip.rule_reading import read_rules
from mesh.gossip.view import MemberView

SHARE_EVERY_S: Final = 5.0
SHARE_SOON_S: Final = 0.5  # while no broker is known

log = structlog.get_logger()


class SharingPool(AskedPool, Protocol):
    """What is used of mesh.gossip.pools.Pool."""

    def members(self) -> Sequence[MemberView]:
        """Return every member."""


class RuleSharer(Recurring):
    """Args:
    router: whose rules are shared. pool: of the region. mesh: whose brokers count. wall_us: since 1970.
    """

    def __init__(
        self,
        router: Router,
        *,
        pool: SharingPool,
        mesh: str,
        wall_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        super().__init__("rule_sharer", every_s=SHARE_EVERY_S)
        self._router = router
        self._pool = pool
        self._mesh = mesh
        self._wall_us = wall_us

    def answer(self, payload: bytes) -> bytes | None:
        """Answer RULES_QUERY; called in the gossip thread."""
        return answer(payload, self._router.rules.held)

    async def look(self) -> float | None:
        """Take in what others were told; without a broker to ask it is done again soon."""
        teller = first_broker(self._pool.members(), mesh=self._mesh)
        if teller is None:
            return SHARE_SOON_S
        rules = self._router.rules
        try:
            told = await read_rules(self._pool, teller, rules.held)
        except FieldError as error:
            log.warning("routes.refused", member=teller, reason=str(error))
            return None
        for rule in rules.merge(told or (), now_us=self._wall_us(), now_s=self._router.now_s):
            log.info("routes.heard", kind=rule.kind, subject=rule.subject, value=rule.value, by=rule.by)
        return None
