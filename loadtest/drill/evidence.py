"""What a drill asks the mesh itself: mesh control, homes, orphan branches, logs of all regions, the audit."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from georelay import GeorelayError, Retry, Start
from georelay.client.gateway_http import GatewayError, GatewayHttp, JsonObject
from loadtest.campaign.mesh import CampaignFailed, NotYet, until
from loadtest.drill.load import name_of
from loadtest.drill.mesh import DrillMesh
from loadtest.drill.values import Branch, Home, StoredRecord

CONTROL_S: Final = 60.0
MOVE_S: Final = 120.0
READ_S: Final = 60.0
POLL_S: Final = 0.2
ASK_S: Final = 15.0
MOVE_RETRY_S: Final = 0.5


async def until_control(mesh: DrillMesh, voters: int) -> str:
    """Wait until mesh control has so many voters that all answer; return the region that leads it (CampaignFailed)."""

    async def look() -> str:
        try:
            async with mesh.gateway() as client:
                answer = await client.get("/v1/control")
        except GatewayError as error:
            raise NotYet(f"mesh control is not whole: {error}") from error
        rows = [row for row in answer.get("replicas") or () if row.get("role") == "voter"]
        alive = [row for row in rows if row.get("alive")]
        leader = leading_region(answer)
        if not leader or len(alive) < voters:
            said = f"{len(alive)} of {len(rows)} voters answer, leader {leader or 'unknown'}"
            raise NotYet(f"mesh control is not whole: {said}")
        return leader

    return await until(look, within_s=CONTROL_S, every_s=POLL_S)


def leading_region(answer: JsonObject) -> str:
    """Return the name of the region whose broker leads mesh control, "" when nobody does."""
    names = {row["number"]: str(row["name"]) for row in answer.get("regions") or ()}
    rows = answer.get("replicas") or ()
    return next((names.get(row["region"], "") for row in rows if row["broker"] == answer.get("leader")), "")


async def create_topic(mesh: DrillMesh, name: str, *, home: str, settings: dict[str, str]) -> None:
    """Create a topic of one partition, and wait until every region has heard of it (GatewayError, CampaignFailed)."""
    body = {"name": name, "partitions": 1, "homes": "one", "home": home, "settings": settings}
    async with mesh.gateway() as client:
        await client.post("/v1/topics", body)

    async def known() -> None:
        for region in mesh.regions:
            try:
                is_known = bool(await leader_of(mesh, region, name))
            except GatewayError:
                is_known = False
            if not is_known:
                raise NotYet(f"{region} has not heard of topic {name}")

    await until(known, within_s=READ_S, every_s=POLL_S)


async def leader_of(mesh: DrillMesh, region: str, topic: str) -> str:
    """Return the broker ("us-1") that leads partition 0 in a region, "" while nobody does (GatewayError)."""
    async with mesh.admin(region) as client:
        status = await client.get("/v1/status")
    for row in status.get("streams") or ():
        if (row["topic"], row["partition"]) == (topic, 0) and row["leader"] > 0:
            return f"{region}-{row['leader'] % 1000}"
    return ""


async def delete_topic(mesh: DrillMesh, name: str) -> None:
    """Delete it (GatewayError)."""
    async with mesh.gateway() as client:
        await client.delete(f"/v1/topics/{quote(name, safe='')}")


async def home_of(mesh: DrillMesh, topic: str, *, seen_from: str) -> Home:
    """Return the present home as a region knows it: one that is cut off does not know better (CampaignFailed)."""
    answer = await _asked(partial(mesh.admin, seen_from), "/v1/homes", {"topic": topic})
    row = answer["homes"][0]
    return Home(region=str(row["home"]), epoch=int(row["epoch"]), start=int(row["start"]))


async def move_home(mesh: DrillMesh, topic: str, to: str) -> tuple[float, list[str]]:
    """Move the home as planned, again until it is there; return the seconds and what was refused (CampaignFailed)."""
    began = time.monotonic()
    elsewhere = next((region for region in mesh.regions if region != to), to)
    refusals: list[str] = []
    while time.monotonic() - began < MOVE_S:
        try:
            async with mesh.gateway() as client:
                refused = await _moved(client, topic, to, deadline=began + MOVE_S)
        except GatewayError as error:
            refused = str(error)
        if (await home_of(mesh, topic, seen_from=elsewhere)).region == to:
            return time.monotonic() - began, refusals
        refusals.append(refused or "it stayed where it was")
        await asyncio.sleep(MOVE_RETRY_S)
    raise CampaignFailed(f"the home of {topic} did not move to {to} within {MOVE_S:g} s: {refusals[-1:]}")


async def _moved(client: GatewayHttp, topic: str, to: str, *, deadline: float) -> str:
    begun = await client.post("/v1/homes/move", {"to": to, "topic": topic})
    while time.monotonic() < deadline:
        report = await client.get(f"/v1/homes/moves/{quote(str(begun.get('move_id', '')), safe='')}")
        if report.get("over"):
            return "; ".join(str(row.get("text")) for row in report.get("refused") or ())
        await asyncio.sleep(POLL_S)
    return "the move did not end"


async def branches_of(mesh: DrillMesh, topic: str) -> list[Branch]:
    """Return every orphan branch of the topic in every region, with its records (CampaignFailed)."""
    found = []
    for region in mesh.regions:
        answer = await _asked(mesh.gateway, "/v1/orphans", {"region": region, "topic": topic})
        for row in answer["branches"]:
            records = [
                StoredRecord(int(each["offset"]), int(each["epoch"]), name_of(str(each["value"]).encode())[0])
                for each in await _exported(mesh, region, topic, int(row["epoch"]))
            ]
            found.append(
                Branch(
                    region=region,
                    epoch=int(row["epoch"]),
                    listed_records=int(row["records"]),
                    records=tuple(records),
                )
            )
    return found


async def _exported(mesh: DrillMesh, region: str, topic: str, epoch: int) -> list[JsonObject]:
    rows: list[JsonObject] = []
    offset = -1
    while True:
        query = {"region": region, "format": "json", "offset": offset}
        answer = await _asked(mesh.gateway, f"/v1/orphans/{quote(topic, safe='')}/0/{epoch}", query)
        rows += answer["records"]
        if int(answer["next_offset"]) == offset:
            return rows
        offset = int(answer["next_offset"])


async def _asked(opened: Callable[[], GatewayHttp], path: str, query: dict[str, Any]) -> JsonObject:
    async def ask() -> JsonObject:
        try:
            async with opened() as client:
                return await client.get(path, query)
        except GatewayError as error:
            said = f"{path}: {error}"
            raise (CampaignFailed(said) if error.retry is Retry.NEVER else NotYet(said)) from error

    return await until(ask, within_s=ASK_S, every_s=POLL_S)


async def end_of(mesh: DrillMesh, region: str, topic: str) -> int:
    """Return the high watermark of partition 0 in a region, -1 when nobody there says."""
    best = -1
    for row in range(len(mesh.endpoints["regions"][region]["admin"])):
        try:
            async with mesh.admin(region, row) as client:
                status = await client.get("/v1/status")
        except GatewayError:
            continue
        ends = [each["high_watermark"] for each in status.get("streams") or () if each["topic"] == topic]
        best = max([best, *ends])
    return best


async def until_equal(mesh: DrillMesh, topic: str) -> int:
    """Wait until all regions end at one offset, and return it (CampaignFailed)."""

    async def look() -> int:
        ends = {region: await end_of(mesh, region, topic) for region in mesh.regions}
        if len(set(ends.values())) > 1 or min(ends.values()) <= 0:
            raise NotYet(f"the regions still end at different offsets: {ends}")
        return min(ends.values())

    return await until(look, within_s=READ_S, every_s=POLL_S)


async def read_back(mesh: DrillMesh, region: str, topic: str, end: int) -> list[StoredRecord]:
    """Return every record of partition 0 below offset `end` in a region; fewer when they do not come in READ_S."""
    deadline = time.monotonic() + READ_S
    while True:
        found: list[StoredRecord] = []
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                await _read(mesh, region, topic, end, found)
                return found
        except TimeoutError:
            return found  # what is missing is counted
        except GeorelayError as error:
            if error.retry not in (Retry.LATER, Retry.REFRESH):
                raise CampaignFailed(f"{topic} cannot be read in {region}: {error}") from error
            await asyncio.sleep(POLL_S)


async def _read(mesh: DrillMesh, region: str, topic: str, end: int, found: list[StoredRecord]) -> None:
    async with (
        mesh.dial(region) as connection,
        connection.consumer([topic], start=Start.EARLIEST) as consumer,
    ):
        while not found or found[-1].offset < end - 1:
            rows = await consumer.get_many(timeout_s=1.0)
            found += [StoredRecord(row.offset, row.epoch, name_of(row.value)[0]) for row in rows if row.offset < end]


async def audited(mesh: DrillMesh, topic: str) -> tuple[str, str]:
    """Return the result of `georelay audit TOPIC` (agrees, diverged, incomplete, or "not run") and what it said."""
    code, said, why = await mesh.cli("audit", topic, "--json")
    try:
        result = str(json.loads(said)["result"])
    except (ValueError, KeyError, TypeError):
        return "not run", why.strip().splitlines()[-1][:300] if why.strip() else f"it ended with {code}"
    return result, why.strip()[:300]
