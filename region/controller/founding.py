"""Asking the other founders until a fresh broker knows whether it founds its region or joins it.

The decision is made in founding_core.py. A broker that is not fresh answers with `answer_of`.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from georelay.errors import BadRequest, GeorelayError
from georelay.fields import FieldError, JsonObject
from georelay.ids import BrokerId, RegionNumber
from region.controller import answers
from region.controller.founding_core import Decision, Founding, FoundingRecord, Standing, Status
from region.controller.routing import Request

log = structlog.get_logger()

FOUNDING: Final = "controller.founding"
ROUNDS_PER_LINE: Final = 50  # one line of the log for so many rounds without a decision


def answer_of(*, broker: BrokerId, disk: str, record: FoundingRecord | None, is_formed: bool) -> JsonObject:
    """Return what a broker that is not fresh answers: it has a record, or is a member of a formed region, or both."""
    standing = Standing.FORMED if is_formed or record is None else Standing.FOUNDED
    return Status(broker=broker, disk=disk, standing=standing, record=record).to_json()


def answer_while_fresh(founding: Founding, body: JsonObject) -> JsonObject:
    """Return what a fresh broker answers, after it took in what the asking one says.

    Raises:
        BadRequest: the body is not a status.
    """
    try:
        founding.heard(Status.from_json(body))
    except FieldError as error:
        raise BadRequest(f"{FOUNDING}: {error}") from error
    return founding.status().to_json()


async def settle_founding(
    founding: Founding, request: Request, *, region: RegionNumber, pause_s: float, timeout_s: float = 2.0
) -> Decision:
    """Ask all founders again and again until there is a decision; cancel it to give up. `pause_s` between rounds."""
    rounds = 0
    while founding.decision is None:
        others = [broker for broker in founding.founders if broker != founding.me]
        await asyncio.gather(*(_ask(founding, request, region, broker, timeout_s) for broker in others))
        if founding.decision is not None:
            break
        if rounds % ROUNDS_PER_LINE == 0:
            log.info("founding.waited", broker=founding.me, missing=list(founding.missing()))
        rounds += 1
        await asyncio.sleep(pause_s)
    log.info("founding.decided", broker=founding.me, decision=type(founding.decision).__name__.lower())
    return founding.decision


async def _ask(founding: Founding, request: Request, region: RegionNumber, broker: BrokerId, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            answer = await request(
                region=region, broker=broker, method=FOUNDING, body={"hops": 0, **founding.status().to_json()}
            )
        founding.heard(Status.from_json(answers.result_of(answer)))
    except (GeorelayError, FieldError, TimeoutError) as error:
        log.debug("founding.peer_not_heard", peer=broker, reason=str(error))
