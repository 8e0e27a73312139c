"""`georelay status`: what is out of order first; then regions with their distance, brokers, leaders, lag of mirrors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from georelay.cli.asking import Where, ask
from georelay.cli.location import EndpointsOption, GatewayOption, JsonOption, UserOption
from georelay.cli.mesh_status_core import LAG_MS_MAX, StreamLine, brokers_of, stream_lines, totals, troubles
from georelay.cli.printing import print_json, print_line, print_table
from georelay.client.gateway_http import JsonObject

BROKER_COLUMNS = ("region", "broker", "state", "rtt ms", "kafka", "controller", "note")
STREAM_COLUMNS = (
    *("topic", "partition", "home", "region", "leader", "role", "epoch", "high watermark", "lag records"),
    "note",
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="status")(_status)


def _status(
    internal: Annotated[
        bool, typer.Option("--internal", help="Show the topics that brokers made for themselves as well.")
    ] = False,
    lag_ms: Annotated[
        float, typer.Option("--lag-ms", metavar="MS", min=0, help="A mirror that is further behind is a trouble.")
    ] = LAG_MS_MAX,
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show what is out of order, then regions, brokers, leaders and lag."""
    document = ask(Where(gateway, endpoints, user), "GET", "/v1/status")
    found = troubles(document, lag_ms_max=lag_ms)
    if as_json:
        print_json(document | {"troubles": found})
        return
    lines = stream_lines(document, lag_ms_max=lag_ms)
    print_line(f"mesh {document.get('mesh', '')}: {_verdict(found)}")
    for trouble in found:
        print_line(f"- {trouble}")
    print_line(totals(document, lines))
    print_line("")
    print_table(BROKER_COLUMNS, list(_broker_rows(document)))
    shown = [line for line in lines if internal or not line.is_internal]
    if shown:
        print_line("")
        print_table(STREAM_COLUMNS, [_stream_row(line) for line in shown])


def _verdict(found: list[str]) -> str:
    if not found:
        return "nothing is out of order"
    return "1 trouble" if len(found) == 1 else f"{len(found)} troubles"


def _broker_rows(document: JsonObject) -> Iterator[dict[str, str]]:
    rows = sorted(brokers_of(document), key=lambda row: bool(row[1].get("ready")))  # stable: troubles first
    for region, broker in rows:
        rtt_ms = broker.get("rtt_ms")
        leads = (broker.get("status") or {}).get("controller") == broker.get("id")
        yield {
            "region": region,
            "broker": str(broker.get("id", "")),
            "state": "ready" if broker.get("ready") else "not ready",
            "rtt ms": "" if rtt_ms is None else f"{rtt_ms:.1f}",
            "kafka": str(broker.get("kafka", "")),
            "controller": "leader" if leads else "",
            "note": str(broker.get("error", "")).splitlines()[0] if broker.get("error") else "",
        }


def _stream_row(line: StreamLine) -> dict[str, str]:
    return {
        "topic": line.topic,
        "partition": str(line.partition),
        "home": line.home,
        "region": line.region,
        "leader": line.leader,
        "role": line.role,
        "epoch": line.epoch,
        "high watermark": line.high_watermark,
        "lag records": line.lag,
        "note": line.trouble,
    }
