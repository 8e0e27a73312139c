"""Named questions to other brokers over their links, with a deadline.

Rule 1: a question that was sent is never sent again unless its answer said that nothing was done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from georelay.clock import Clock
from georelay.errors import GeorelayError, HomeUnreachable, NotLeader, OutcomeUnknown, TooLarge, Unavailable
from georelay.ids import BrokerId, RegionNumber
from mesh.replication.faults import from_fault
from mesh.replication.frames import FrameError, Part, Reply, Request, RequestFailed
from mesh.replication.link_endpoint import RegionNames, unknown_region
from mesh.replication.outgoing_link import OutgoingLink
from mesh.replication.outgoing_links import OutgoingLinks
from mesh.replication.ports import Answer, JsonObject

_NS_PER_S: Final = 1_000_000_000


class Requests:
    """Asks, and follows hints to the leader."""

    def __init__(
        self,
        links: OutgoingLinks,
        *,
        clock: Clock,
        next_request: Callable[[], int],
        patience_s: float,
        region_name: RegionNames = unknown_region,
    ) -> None:
        self._region_name = region_name
        self._links = links
        self._clock = clock
        self._next_request = next_request
        self._patience_s = patience_s  # for a link to open

    async def request(
        self,
        region: RegionNumber,
        method: str,
        body: JsonObject,
        *,
        timeout_s: float,
        broker: BrokerId | None = None,
    ) -> Answer:
        """Ask a broker of `region`; without `broker` each in turn until one answers.

        Raises:
            HomeUnreachable: nothing was sent. OutcomeUnknown: sent, and the answer is lost or late.
            GeorelayError: the answer is this error.
        """
        deadline_ns = self._clock.monotonic_ns() + int(timeout_s * _NS_PER_S)
        asked: set[int] = set()
        refusal: GeorelayError | None = None
        while True:
            link = await self._open_link(region, broker, asked, deadline_ns, preferred=_leader_in(refusal))
            if link is None:
                raise refusal or HomeUnreachable(
                    f"no broker of region {self._region_name(region) or region} can be reached"
                )
            asked.add(link.broker_id)
            try:
                return await self._ask(link, method, body, deadline_ns)
            except (NotLeader, Unavailable) as error:
                refusal = error

    async def _open_link(
        self,
        region: RegionNumber,
        broker: BrokerId | None,
        asked: set[int],
        deadline_ns: int,
        *,
        preferred: int,
    ) -> OutgoingLink | None:
        """Return an open link to a broker not asked yet; None when there is none in time."""
        links: Sequence[OutgoingLink] = self._links.of_region(region)
        wanted = [link for link in links if link.broker_id not in asked and broker in (None, link.broker_id)]
        wanted.sort(key=lambda link: link.broker_id != preferred)  # stable: else the order of the configuration
        for link in wanted:
            link.want()
        until_ns = min(deadline_ns, self._clock.monotonic_ns() + int(self._patience_s * _NS_PER_S))
        while wanted:
            opened = next((link for link in wanted if link.is_open), None)
            left_s = (until_ns - self._clock.monotonic_ns()) / _NS_PER_S
            if opened is not None or left_s <= 0:
                return opened
            await self._links.wait_opened(left_s)
        return None

    async def _ask(self, link: OutgoingLink, method: str, body: JsonObject, deadline_ns: int) -> Answer:
        number = self._next_request()
        future: asyncio.Future[Part | None] = asyncio.get_running_loop().create_future()

        def answered(part: Part | None) -> None:
            if not future.done():
                future.set_result(part)

        try:
            link.ask(number, Request(number, method, body), answered)
        except FrameError as error:
            link.forget(number)
            raise TooLarge(str(error)) from error
        left_s = max((deadline_ns - self._clock.monotonic_ns()) / _NS_PER_S, 0)
        try:
            await asyncio.wait([future], timeout=left_s)
        finally:
            link.forget(number)
        part = future.result() if future.done() else None
        if isinstance(part, Reply):
            return Answer(part.body, part.attachment)
        if isinstance(part, RequestFailed):
            raise from_fault(part.fault)
        why = "the link broke" if future.done() else "no answer in time"
        raise OutcomeUnknown(f"{method}: {why} (broker {link.broker_id})")


def _leader_in(error: GeorelayError | None) -> int:
    return error.leader if isinstance(error, NotLeader) else -1
