"""`georelay clocks`: how far the clocks of the regions are apart, with hard bounds, as a broker of each sees it."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from georelay.cli.location import EndpointsOption, GatewayOption, JsonOption, UserOption
from georelay.cli.printing import print_json, print_line, print_table
from georelay.cli.regions import ask_regions, fail_for_silent
from georelay.client.gateway_http import JsonObject

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
    answers = ask_regions((gateway, endpoints, user), "/v1/clocks", region)
    if as_json:
        print_json({"regions": answers})
    else:
        print_table(COLUMNS, [line for answer in answers for line in clock_lines(answer, with_brokers=brokers)])
        if any(answer.get("is_overridden") for answer in answers):
            print_line("clock_error_us is configured: it replaces what was measured in the lines of regions")
    fail_for_silent(answers)


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
