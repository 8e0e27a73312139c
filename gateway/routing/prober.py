"""Measures every broker: GET /readyz on a warm connection, each broker by its own task and clock.

Rule 1: regions that are not chosen are measured as often as the chosen one, or they could never be chosen again.
Rule 2: one probe at a time per broker and its own connection, so queueing here is never taken for distance.
Rule 3: the interval is jittered, so that gateways do not probe in step.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

import structlog

from gateway.routing.broker_health import Probe
from gateway.routing.endpoints import BrokerEndpoints, RegionEndpoints
from gateway.routing.probe_line import BadAnswer, NotReached, ProbeAnswer, ProbeLine
from gateway.routing.region_view_core import RegionView
from georelay.tls import TlsContexts
from mesh.distance.shed_core import SHED_HEADER, share_from

INTERVAL_S_MIN: Final = 0.5
INTERVAL_S_MAX: Final = 1.0
PROBE_TIMEOUT_S: Final = 1.5  # longer than any RTT on this planet, short enough for a fail-over in seconds

log = structlog.get_logger()


class Prober:
    """Feeds a RegionView until it is closed."""

    def __init__(
        self,
        view: RegionView,
        *,
        monotonic_ns: Callable[[], int],
        rng: random.Random,
        interval_s: tuple[float, float] = (INTERVAL_S_MIN, INTERVAL_S_MAX),
        tls: TlsContexts | None = None,
    ) -> None:
        self._tls = tls
        self._view = view
        self._monotonic_ns = monotonic_ns
        self._rng = rng
        self._interval_s = interval_s
        self._tasks: dict[tuple[str, BrokerEndpoints], asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def follow(self) -> None:
        """Probe the brokers that the view has now: one task each, and none for those that are gone."""
        wanted = {(region.name, broker): region for region in self._view.regions for broker in region.brokers}
        for key in [key for key in self._tasks if key not in wanted]:
            task = self._tasks.pop(key)
            task.cancel()
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
        for (name, broker), region in wanted.items():
            if (name, broker) not in self._tasks:
                task = asyncio.create_task(self._probe_for_ever(region, broker), name=f"probe-{broker.id}")
                self._tasks[name, broker] = task

    async def close(self) -> None:
        """Stop probing."""
        ending = [*self._tasks.values(), *self._ending]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        self._tasks.clear()

    async def _probe_for_ever(self, region: RegionEndpoints, broker: BrokerEndpoints) -> None:
        line = ProbeLine(broker.admin, "/readyz", monotonic_ns=self._monotonic_ns, tls=self._tls)
        try:
            while True:
                await self._probe(line, region, broker)
                await asyncio.sleep(self._rng.uniform(*self._interval_s))
        finally:
            line.close()

    async def _probe(self, line: ProbeLine, region: RegionEndpoints, broker: BrokerEndpoints) -> None:
        answer: ProbeAnswer | None = None
        self._view.on_asked(broker.id, now_ns=self._monotonic_ns())
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                answer = await line.ask()
            probe = Probe.OK if answer.status == 200 else Probe.FAILED
        except NotReached:
            probe = Probe.REFUSED
        except (BadAnswer, TimeoutError):
            probe = Probe.FAILED
        changed = self._view.on_probe(
            broker.id,
            probe,
            now_ns=self._monotonic_ns(),
            rtt_ns=None if answer is None else answer.rtt_ns,
            warm=answer is not None and answer.warm,
            shed=None if answer is None else share_from(answer.headers.get(SHED_HEADER.lower())),
        )
        if changed:
            log.info(
                "broker.health_changed",
                region=region.name,
                broker=broker.id,
                health=self._view.health(broker.id).value,
                probe=probe.value,
            )
