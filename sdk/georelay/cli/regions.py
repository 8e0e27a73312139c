"""Which region a command about brokers is for: the one that is named, else the one whose number the ids carry."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from georelay.cli.failure import EXIT_ERROR, EXIT_USAGE, CommandFailed
from georelay.cli.location import open_gateway
from georelay.client.gateway_http import GatewayError, GatewayHttp, JsonObject
from georelay.ids import BrokerId, region_of

RegionOption = Annotated[
    str, typer.Option("--region", metavar="R", help="Region of the brokers; default: by the number in their ids.")
]


async def region_of_brokers(client: GatewayHttp, brokers: Sequence[int], named: str) -> str:
    """Return the name of the one region that has such broker ids; `named` is not questioned.

    Raises:
        CommandFailed: no region has that number, or the ids belong to several.
    """
    if named:
        return named
    numbers = {int(region_of(BrokerId(broker))) for broker in brokers}
    if len(numbers) != 1:
        ids = ",".join(map(str, brokers))
        raise CommandFailed(f"brokers {ids} belong to several regions; name those of one", exit_code=EXIT_USAGE)
    number = numbers.pop()
    regions = await numbered_regions(client)
    if number not in regions:
        known = ", ".join(f"{name} ({number_})" for number_, name in sorted(regions.items()))
        raise CommandFailed(f"no region has the number {number} of broker {brokers[0]}; there are {known}")
    return regions[number]


async def numbered_regions(client: GatewayHttp) -> dict[int, str]:
    """Return region number -> name."""
    document = await client.get("/v1/status")
    rows: list[dict[str, Any]] = document.get("regions") or []
    if not rows or not all(isinstance(row.get("number"), int) for row in rows):
        raise CommandFailed("the gateway's answer numbers no regions; is it of another version?")
    return {row["number"]: str(row["region"]) for row in rows}


def ask_regions(where: tuple[str, str, str], path: str, named: str) -> list[JsonObject]:
    """Return what each region answers to GET `path`, or what the one that is named does.

    One that gives no answer has {"region", "error"} (GatewayError: the named one has none).
    """

    async def asked() -> list[JsonObject]:
        async with open_gateway(*where) as client:
            names = [named] if named else sorted((await numbered_regions(client)).values())
            return list(await asyncio.gather(*(_answer_of(client, name, path, fails=bool(named)) for name in names)))

    return asyncio.run(asked())


async def _answer_of(client: GatewayHttp, name: str, path: str, *, fails: bool) -> JsonObject:
    try:
        return await client.get(path, {"region": name})
    except GatewayError as error:
        if fails:
            raise
        return {"region": name, "error": str(error)}


def fail_for_silent(answers: Sequence[JsonObject]) -> None:
    """End the command with 1 if a region gave no answer (CommandFailed); call it once the others are shown."""
    silent = [f"{answer['region']}: {answer['error']}" for answer in answers if "error" in answer]
    if silent:
        raise CommandFailed("; ".join(silent), exit_code=EXIT_ERROR)
