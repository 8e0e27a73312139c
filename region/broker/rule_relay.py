"""Carries what operators decided about clients between the gateways of this region, and to those of other ones.

A decision is told to one gateway. Gateways are members of their region's pool only, so brokers carry it, as they carry
distances (region.broker.distance_relay).

Rule 1: nobody is asked unless somebody has asked this broker within WANTED_S.
Rule 2: what was heard is kept in `client-rules.json` of the data directory: gateways that start again learn it here,
        also when nobody else ran meanwhile. Of a file that cannot be read nothing is taken: others tell it again.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import structlog

from georelay.cadence import Recurring
from georelay.errors import BadRequest, GeorelayError
from georelay.fields import FieldError, Fields, JsonObject, parse_object
from georelay.ids import RegionNumber
from mesh.distance.rule_set_core import FINGERPRINT_BYTES, RULES_MAX, Rule, RuleSet, rule_of
from mesh.gossip.directory_core import gateways_of
from mesh.gossip.rule_pages_core import answer
from mesh.gossip.rule_reading import read_rules
from region.broker.distance_relay import AskRegion, RelayPool
from region.controller.topology import Topology
from region.log.filesystem import OsFileSystem, read_file, replace_file

RULES_METHOD: Final = "clients.rules"
LOOK_EVERY_S: Final = 5.0
WANTED_S: Final = 300.0
REQUEST_TIMEOUT_S: Final = 5.0
RULES_FILE: Final = "client-rules.json"
FILE_VERSION: Final = 1

log = structlog.get_logger()


class RuleRelay(Recurring):
    """Args:
    own, mesh: this region's name, and the mesh. pool: of the region. topology: the mesh as it is known now.
    directory: where what was heard is kept.
    """

    def __init__(
        self,
        *,
        own: str,
        mesh: str,
        pool: RelayPool,
        topology: Callable[[], Topology | None],
        request: AskRegion,
        directory: Path,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__("rule_relay", every_s=LOOK_EVERY_S)
        self._own = own
        self._mesh = mesh
        self._pool = pool
        self._topology = topology
        self._request = request
        self._monotonic_s = monotonic_s
        self._file = directory / RULES_FILE
        self._held = self._kept = _read(self._file)
        self._wanted_s = float("-inf")

    def answer(self, payload: bytes) -> bytes | None:
        """Answer RULES_QUERY of a gateway; called in the gossip thread."""
        self._wanted_s = self._monotonic_s()
        return answer(payload, self._held)

    def serve(self, body: Mapping[str, Any]) -> JsonObject:
        """Answer a broker of another region, which says what it knows. Raises BadRequest."""
        try:
            fields = Fields(dict(body), RULES_METHOD)
            known = fields.text("known", chars_max=2 * FINGERPRINT_BYTES)
            fields.done()
        except FieldError as error:
            raise BadRequest(str(error)) from error
        self._wanted_s = self._monotonic_s()
        told: list[JsonObject] = [] if known == self._held.fingerprint else [r.to_json() for r in self._held.rules]
        return {"rules": told}

    async def look(self) -> None:
        """Learn what gateways of this region, and brokers of the others, know."""
        if self._monotonic_s() - self._wanted_s > WANTED_S:
            return
        topology = self._topology()
        others = [] if topology is None else [row for row in topology.data_regions if row.name != self._own]
        told = await asyncio.gather(
            *(self._told_by(name) for name in gateways_of(self._pool.members(), mesh=self._mesh, region=self._own)),
            *(self._told_in(row.number, row.name) for row in others),
        )
        self._held, _ = self._held.merged((rule for rules in told for rule in rules), now_us=time.time_ns() // 1000)
        if self._held is not self._kept:
            await self._keep(self._held)

    async def _keep(self, held: RuleSet) -> None:
        document = {"v": FILE_VERSION, "rules": [rule.to_json() for rule in held.rules]}
        try:
            await asyncio.to_thread(replace_file, OsFileSystem(), self._file, json.dumps(document).encode() + b"\n")
        except OSError as error:  # tried again the next time
            log.warning("routes.not_kept", file=str(self._file), reason=error.strerror)
        else:
            self._kept = held

    async def _told_by(self, gateway: str) -> list[Rule]:
        try:
            return await read_rules(self._pool, gateway, self._held) or []
        except FieldError as error:
            log.warning("routes.refused", member=gateway, reason=str(error))
            return []

    async def _told_in(self, number: RegionNumber, name: str) -> list[Rule]:
        try:
            body = {"known": self._held.fingerprint}
            told = await self._request(number, RULES_METHOD, body, timeout_s=REQUEST_TIMEOUT_S)
            return [rule_of(item) for item in Fields(dict(told.body), RULES_METHOD).items("rules", count_max=RULES_MAX)]
        except (GeorelayError, FieldError) as error:
            log.debug("routes.not_told", region=name, reason=str(error))
            return []


def _read(file: Path) -> RuleSet:
    fs = OsFileSystem()
    try:
        fields = Fields(parse_object(read_file(fs, file)), RULES_FILE)
        fields.integer("v", low=FILE_VERSION, high=FILE_VERSION)
        rules = [rule_of(item) for item in fields.items("rules", count_max=RULES_MAX)]
        fields.done()
    except FileNotFoundError:
        return RuleSet()
    except (OSError, ValueError, FieldError) as error:
        log.warning("routes.file_refused", file=str(file), reason=str(error))
        return RuleSet()
    return RuleSet(rules)
