"""`georelay clocks`: how far the clocks of the regions are apart, with hard bounds, as a broker of each sees it."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final

import typer

from georelay.cli.failure import EXIT_ERROR, CommandFailed
from georelay.cli.location import EndpointsOption, GatewayOption, JsonOption, UserOption, open_gateway
from georelay.cli.printing import print_json, print_line, print_table
from georelay.cli.regions import numbered_regions
from georelay.client.gateway_http import GatewayError, GatewayHttp, JsonObject

COLUMNS: Final = ("from", "to", "offset ms", "bound ms", "drift ppm", "rtt ms", "exchanges", "steps")
UNKNOWN: Final = "?"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="clocks")(_clocks)


def _clocks(
    region: Annotated[str, typer.Option("--region", metavar="R", help="Only as this region sees them.")] = "",
    brokers: Annotated[bool, typer.Option("--brokers", help="Also the single brokers that were asked.")] = False,
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show the offset, its hard bound and the drift of every pair of regions.

    Ends with 1 when a region does not answer; the others are shown all the same.
    """
    answers = asyncio.run(_ask_regions(region, (gateway, endpoints, user)))
    if as_json:
        print_json({"regions": answers})
    else:
        print_table(COLUMNS, [line for answer in answers for line in clock_lines(answer, with_brokers=brokers)])
        if any(answer.get("is_overridden") for answer in answers):
            print_line("clock_error_us is configured: it replaces what was measured in the lines of regions")
    silent = [f"{answer['region']}: {answer['error']}" for answer in answers if "error" in answer]
    if silent:
        raise CommandFailed("; ".join(silent), exit_code=EXIT_ERROR)


def clock_lines(answer: JsonObject, *, with_brokers: bool = False) -> list[dict[str, object]]:
    """Return the lines of one region's answer. Pure."""
    rows: list[dict[str, Any]] = answer.get("clocks") or []
    return [
        {
            "from": answer["region"],
            "to": str(row["region"]) if row.get("broker") is None else f"{row['region']}/{row['broker']}",
            "offset ms": _milliseconds(row.get("offset_us"), sign=True),
            "bound ms": _milliseconds(row.get("error_us")),
            "drift ppm": UNKNOWN if row.get("drift_ppm") is None else f"{row['drift_ppm']:+.1f}",
            "rtt ms": _milliseconds(row.get("rtt_us")),
            "exchanges": _count(rows, row, "exchanges"),
            "steps": _count(rows, row, "steps"),
        }
        for row in rows
        if with_brokers or row.get("broker") is None
    ]


def _count(rows: list[dict[str, Any]], row: dict[str, Any], name: str) -> int:
    """Return a broker's count; for a region's line, the sum of its brokers'."""
    if row.get("broker") is not None:
        return int(row.get(name) or 0)
    own = [each for each in rows if each["region"] == row["region"] and each.get("broker") is not None]
    return sum(int(each.get(name) or 0) for each in own)


def _milliseconds(value_us: object, *, sign: bool = False) -> str:
    if not isinstance(value_us, int):
        return UNKNOWN
    return f"{value_us / 1000:+.3f}" if sign else f"{value_us / 1000:.3f}"


async def _ask_regions(region: str, location: tuple[str, str, str]) -> list[JsonObject]:
    async with open_gateway(*location) as client:
        names = [region] if region else sorted((await numbered_regions(client)).values())
        return list(await asyncio.gather(*(_ask_region(client, name, fails=bool(region)) for name in names)))


async def _ask_region(client: GatewayHttp, name: str, *, fails: bool) -> JsonObject:
    try:
        return await client.get("/v1/clocks", {"region": name})
    except GatewayError as error:
        if fails:
            raise
        return {"region": name, "error": str(error)}
