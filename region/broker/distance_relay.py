"""Carries what gateways of this region measured of their clients to other regions, and what those did to the gateways
of this one.

Gateways are members of their region's pool only. So a broker asks the gateways of its region by queries, and brokers of
the other regions over links.

Rule 1: nobody is asked for anything unless somebody has asked for it within WANTED_S: a mesh without gateways, or with
        one, pays nothing.
Rule 2: what is told was asked for KEEP_S ago at most; an older answer is asked for anew. Rows are aged meanwhile.
Rule 3: whoever asks at first is told nothing yet, and the next time what was learned.
"""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import structlog

from georelay.cadence import Recurring
from georelay.errors import BadRequest, GeorelayError
from georelay.fields import FieldError, Fields, JsonObject
from georelay.ids import RegionNumber
from mesh.distance.prefix_table_core import ROW_BYTES, ROWS_MAX, PrefixTable, PrefixTableFault, merge
from mesh.gossip.directory_core import gateways_of
from mesh.gossip.distance_pages_core import OWN_QUERY, answer
from mesh.gossip.distance_reading import AskedPool, read_table
from mesh.gossip.view import MemberView
from mesh.replication.ports import Answer
from region.controller.topology import Topology

DISTANCES_METHOD: Final = "clients.distances"
LOOK_EVERY_S: Final = 5.0
KEEP_S: Final = 60.0
WANTED_S: Final = 300.0
REQUEST_TIMEOUT_S: Final = 5.0
_RAW_CHARS_MAX: Final = 2 * (ROWS_MAX * ROW_BYTES + 16)

log = structlog.get_logger()


class RelayPool(AskedPool, Protocol):
    """What is used of mesh.gossip.pools.Pool."""

    def members(self) -> Sequence[MemberView]:
        """Return every member."""


class AskRegion(Protocol):
    """Carries a request to any broker of a region (mesh.replication.mesh_links.MeshLinks.request)."""

    async def __call__(self, region: RegionNumber, method: str, body: dict[str, Any], *, timeout_s: float) -> Answer:
        """Return the answer; raises GeorelayError."""


class _Kept:
    """One region's table: when it was learned, and when somebody last asked for it (monotonic seconds)."""

    __slots__ = ("learned_s", "table", "wanted_s")

    def __init__(self) -> None:
        self.table = PrefixTable()
        self.learned_s = float("-inf")
        self.wanted_s = float("-inf")


class DistanceRelay(Recurring):
    """Args:
    own, mesh: this region's name, and the mesh. pool: of the region. topology: the mesh as it is known now.
    """

    def __init__(
        self,
        *,
        own: str,
        mesh: str,
        pool: RelayPool,
        topology: Callable[[], Topology | None],
        request: AskRegion,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__("distance_relay", every_s=LOOK_EVERY_S)
        self._own = own
        self._mesh = mesh
        self._pool = pool
        self._topology = topology
        self._request = request
        self._monotonic_s = monotonic_s
        self._kept: dict[str, _Kept] = {own: _Kept()}

    def answer(self, payload: bytes) -> bytes | None:
        """Answer FAR_QUERY of a gateway; called in the gossip thread."""
        return answer(payload, self._told_of)

    def serve(self, body: Mapping[str, Any]) -> JsonObject:
        """Answer a broker of another region with what the gateways of this one measured. Raises BadRequest."""
        try:
            Fields(dict(body), DISTANCES_METHOD).done()
        except FieldError as error:
            raise BadRequest(str(error)) from error
        return {"table": base64.b64encode(self._told(self._kept[self._own]).raw).decode()}

    async def look(self) -> None:
        """Learn what is wanted and was not learned lately."""
        now_s = self._monotonic_s()
        topology = self._topology()
        numbers = {} if topology is None else {row.name: row.number for row in topology.data_regions}
        for name in [name for name in self._kept if name != self._own and name not in numbers]:
            del self._kept[name]
        for name in numbers:
            self._kept.setdefault(name, _Kept())
        for name, kept in list(self._kept.items()):
            if now_s - kept.wanted_s > WANTED_S or now_s - kept.learned_s < KEEP_S:
                continue
            found = await (self._measured_here() if name == self._own else self._measured_in(numbers[name], name))
            if found is not None:
                kept.table, kept.learned_s = found, self._monotonic_s()

    def _told_of(self, region: str) -> PrefixTable | None:
        kept = self._kept.get(region)
        return None if kept is None or region == self._own else self._told(kept)

    def _told(self, kept: _Kept) -> PrefixTable:
        kept.wanted_s = self._monotonic_s()
        return kept.table.aged(int((kept.wanted_s - kept.learned_s) / 60)) if len(kept.table) else kept.table

    async def _measured_here(self) -> PrefixTable | None:
        tables = []
        for name in gateways_of(self._pool.members(), mesh=self._mesh, region=self._own):
            try:
                table = await read_table(self._pool, name, OWN_QUERY)
            except PrefixTableFault as error:
                log.warning("distances.refused", member=name, reason=str(error))
                continue
            tables += [] if table is None else [table]
        return merge(tables) if tables else None

    async def _measured_in(self, number: RegionNumber, name: str) -> PrefixTable | None:
        try:
            told = await self._request(number, DISTANCES_METHOD, {}, timeout_s=REQUEST_TIMEOUT_S)
            raw = Fields(dict(told.body), DISTANCES_METHOD).text("table", chars_max=_RAW_CHARS_MAX)
            return PrefixTable.read(base64.b64decode(raw, validate=True))
        except (GeorelayError, FieldError, PrefixTableFault, binascii.Error) as error:
            log.info("distances.not_told", region=name, reason=str(error))
            return None
