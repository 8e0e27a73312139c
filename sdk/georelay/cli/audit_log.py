"""`georelay audit-log`: what brokers of a region wrote down: refused sign-ins, denials, changes; the newest first."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated, Any, Final

import typer

from georelay.cli.asking import listed, region_query
from georelay.cli.failure import CommandFailed
from georelay.cli.location import EndpointsOption, GatewayOption, JsonOption, UserOption, open_gateway
from georelay.cli.printing import cell, print_listing

COLUMNS: Final = ("time", "broker", "event", "who", "from", "about")
PAGE_EVENTS: Final = 200
EVENTS_MAX: Final = 100_000
_OWN_COLUMNS: Final = frozenset({"id", "written_by", "timestamp", "event", "host"})


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="audit-log")(_audit_log)


def _audit_log(
    region: Annotated[str, typer.Option("--region", metavar="R", help="Which region's; default: the nearest.")] = "",
    event: Annotated[str, typer.Option("--event", metavar="E", help="Only these, such as security.changed.")] = "",
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=EVENTS_MAX, help="At most so many.")] = 50,
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """Print what the brokers of a region wrote down of sign-ins, rights and changes, the newest first."""
    rows, unheard = asyncio.run(_collect((gateway, endpoints, user), region, event, limit))
    print_listing(rows, COLUMNS, event_line, as_json=as_json)
    if unheard:
        sys.stderr.write(f"not heard, their events are missing: {', '.join(map(str, sorted(unheard)))}\n")


async def _collect(where: tuple[str, str, str], region: str, event: str, limit: int) -> tuple[list[Any], set[int]]:
    """Return the events, and the brokers that were not heard."""
    rows: list[Any] = []
    unheard: set[int] = set()
    query: dict[str, str | int] = region_query(region) | ({"event": event} if event else {})
    async with open_gateway(*where) as client:
        while len(rows) < limit:
            page = await client.get("/v1/audit/events", {**query, "limit": min(PAGE_EVENTS, limit - len(rows))})
            rows += listed(page, "events")
            unheard.update(broker for broker in listed(page, "unheard") if isinstance(broker, int))
            following = page.get("next")
            if not isinstance(following, str) or following == query.get("before"):
                break
            query |= {"before": following, "region": str(page.get("region", region))}
    return rows, unheard


def event_line(row: Any) -> dict[str, object]:
    """Return the cells of one event."""
    if not isinstance(row, dict):
        raise CommandFailed("the answer has something else than events")
    actor = next((name for name in ("principal", "user", "by") if row.get(name)), "")
    about = ", ".join(f"{name}={value}" for name, value in row.items() if name not in _OWN_COLUMNS and name != actor)
    return {
        "time": cell(str(row.get("timestamp", "-"))[:23]),
        "broker": cell(row.get("written_by", "-")),
        "event": cell(row.get("event", "-")),
        "who": cell(row.get(actor, "-")),
        "from": cell(row.get("host", "-")),
        "about": cell(about),
    }
