"""Whether every broker of the mesh has heard that a region drains.

A broker that has not heard of it may go on as before: one of the leaving region takes records that only it has, and a
home elsewhere counts the copy of the leaving region for an acknowledgement. What is compared before a region is removed
holds only once nobody does.

Rule 1: each broker answers from what it has applied, and what is applied is committed in its region: it stays heard
        through restarts, and a broker that begins later knows it before it serves a stream.
Rule 2: a broker that does not answer, an old one that does not know the question, and a region that never said which
        brokers it has may not have heard. One that was removed from its region is not asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from georelay.errors import GeorelayError
from georelay.fields import INT64_MAX, FieldError, Fields, JsonObject
from georelay.ids import REGION_NUMBER_MAX, BrokerId, RegionNumber
from region.control.calls import PREFIX, AskBroker
from region.controller.mesh_rows import RegionRow, RegionState

HEARD: Final = "region.heard"
WAIT_S: Final = 3.0  # for the news on its way
ASK_S: Final = 2.0  # one broker, once
AGAIN_S: Final = 0.1
ASKED_AT_ONCE: Final = 64
_STATE_CHARS_MAX: Final = 16
Rows = Callable[[], Mapping[RegionNumber, RegionRow]]


class DrainHeard:
    """Asks all brokers, on behalf of control's leader.

    Args:
        rows: the regions as this broker's own region knows them.
        envelope: puts a question into the envelope of mesh control.
    """

    def __init__(
        self, *, me: BrokerId, rows: Rows, ask: AskBroker, envelope: Callable[[JsonObject], JsonObject]
    ) -> None:
        self._me = me
        self._rows = rows
        self._ask = ask
        self._envelope = envelope

    async def unheard(self, row: RegionRow, regions: Sequence[RegionRow]) -> list[str]:
        """Name the brokers of `regions` that may not have heard that `row` drains, one line each."""
        slots = asyncio.Semaphore(ASKED_AT_ONCE)

        async def of(broker: BrokerId) -> str:
            async with slots:
                return await self._fault(broker, row)

        brokers = [broker for region in regions for broker in region.brokers]
        faults = await asyncio.gather(*map(of, brokers))
        lines = [
            f"broker {broker} may not know that region {row.name} leaves ({fault})"
            for broker, fault in zip(brokers, faults, strict=True)
            if fault
        ]
        silent = [region.name for region in regions if not region.brokers]
        return lines + [f"region {name} has not said which brokers it has" for name in silent]

    async def _fault(self, broker: BrokerId, row: RegionRow) -> str:
        """Return why a broker may not have heard, "" when it has."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + WAIT_S
        while True:
            try:
                if await self._has_heard(broker, row):
                    return ""
                fault = "the news is on its way: ask again"
            except (GeorelayError, FieldError) as error:
                return str(error)
            if loop.time() + AGAIN_S >= deadline_s:
                return fault
            await asyncio.sleep(AGAIN_S)

    async def _has_heard(self, broker: BrokerId, row: RegionRow) -> bool:
        question: JsonObject = {"number": row.number}
        if broker == self._me:
            fields = Fields(answer_heard(self._rows(), question), HEARD)
        else:
            answer = await self._ask(broker, f"{PREFIX}{HEARD}", self._envelope(question), timeout_s=ASK_S)
            fields = Fields(answer, "answer").child("ok")
        state = fields.text("state", chars_max=_STATE_CHARS_MAX)
        index = fields.integer("index", low=0, high=INT64_MAX)
        fields.done()
        return state == RegionState.DRAINING and index >= row.index


def answer_heard(rows: Mapping[RegionNumber, RegionRow], question: JsonObject) -> JsonObject:
    """Return what a broker that has applied `rows` knows of the region that is asked about. Raises FieldError."""
    fields = Fields(question, HEARD)
    row = rows.get(RegionNumber(fields.integer("number", low=1, high=REGION_NUMBER_MAX)))
    fields.done()
    return {"state": "" if row is None else str(row.state), "index": 0 if row is None else row.index}
