"""Where the brokers of other regions are: asked for again and again, because regions grow and brokers move.

Rule 1: an address is a hint: who answers at it is checked by the link's own greeting.
Rule 2: who asks says where its own region is: a region that moved finds the others, and they find it by that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import structlog

from georelay.errors import BadRequest, GeorelayError
from georelay.fields import FieldError, Fields, JsonObject
from georelay.ids import BROKERS_PER_REGION_MAX, BrokerId, RegionNumber, region_of
from mesh.replication.mesh_links import BrokerAddress
from region.controller.registration import ADDRESS_CHARS_MAX, BrokerRegistration
from region.controller.routing import Request
from region.controller.topology import BROKER_ID_MAX

log = structlog.get_logger()

BROKERS_METHOD: Final = "region.brokers"
ASK_EVERY_S: Final = 5.0


class RegionDirectory:
    """Asks other regions for their brokers, and answers them.

    Args:
        registrations: the brokers of the own region. learned: told the link addresses of another region.
        is_linked: whether there is a link to a region anyway; none is dialled only to ask.
    """

    def __init__(
        self,
        *,
        own: RegionNumber,
        others: Sequence[RegionNumber],
        registrations: Callable[[], Mapping[BrokerId, BrokerRegistration]],
        request: Request,
        learned: Callable[[RegionNumber, Sequence[BrokerAddress]], None],
        is_linked: Callable[[RegionNumber], bool],
    ) -> None:
        self._own = own
        self._others = list(others)
        self._registrations = registrations
        self._request = request
        self._learned = learned
        self._is_linked = is_linked

    def know(self, region: RegionNumber) -> None:
        """Ask one more region from now on."""
        if region not in self._others and region != self._own:
            self._others.append(region)

    def forget(self, region: RegionNumber) -> None:
        """Ask a region no more."""
        if region in self._others:
            self._others.remove(region)

    async def run(self) -> None:
        """Ask for ever; a region that cannot be reached is asked again the next time."""
        while True:
            await asyncio.sleep(ASK_EVERY_S)
            for region in filter(self._is_linked, tuple(self._others)):
                try:
                    answer = await self._request(
                        region=region, broker=None, method=BROKERS_METHOD, body=self._own_brokers()
                    )
                    self._learned(region, read_brokers(answer, region))
                except (GeorelayError, FieldError) as error:
                    log.debug("region.brokers_unknown", region=region, reason=str(error))

    def serve(self, body: JsonObject, asker: RegionNumber) -> JsonObject:
        """Answer a broker of `asker` with the brokers of the own region, and learn its region's from what it asks.

        Raises:
            BadRequest: what it says is not readable.
        """
        if "brokers" in body and asker in self._others:  # an older broker says nothing
            try:
                self._learned(asker, read_brokers(body, asker))
            except FieldError as error:
                raise BadRequest(f"{BROKERS_METHOD}: {error}") from error
        return self._own_brokers()

    def _own_brokers(self) -> JsonObject:
        rows: list[dict[str, Any]] = [
            {"broker": row.broker, "link": row.link} for row in self._registrations().values() if row.link
        ]
        return {"brokers": rows}


def read_brokers(answer: JsonObject, region: RegionNumber) -> list[BrokerAddress]:
    """Read what another region says of its brokers. Raises FieldError."""
    found = []
    for item in Fields(answer, "brokers").items("brokers", count_max=BROKERS_PER_REGION_MAX):
        fields = Fields(item, "broker")
        broker = BrokerId(fields.integer("broker", low=1001, high=BROKER_ID_MAX))
        address = fields.text("link", chars_min=1, chars_max=ADDRESS_CHARS_MAX)
        if region_of(broker) != region:
            raise FieldError(f"broker {broker} is not one of region {region}")
        found.append(BrokerAddress(broker_id=broker, address=address))
    return found
