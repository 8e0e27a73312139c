"""`georelay status`: regions with their distance, brokers, leaders of every partition, lag of every mirror."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from georelay.cli.asking import Where, ask
from georelay.cli.location import EndpointsOption, GatewayOption, JsonOption, UserOption
from georelay.cli.printing import print_json
from georelay.cli.tables import table_console
from georelay.client.gateway_http import JsonObject

if TYPE_CHECKING:
    from rich.table import Table

NO_LEADER = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLine:
    """One stream in one region, as its in-region leader reports it; `home` names the sequencing region."""

    topic: str
    partition: int
    home: str
    region: str
    leader: str
    role: str
    epoch: str
    high_watermark: str
    lag: str


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="status")(_status)


def _status(
    gateway: GatewayOption = "", endpoints: EndpointsOption = "", user: UserOption = "", as_json: JsonOption = False
) -> None:
    """Show regions, brokers, leaders and lag."""
    document = ask(Where(gateway, endpoints, user), "GET", "/v1/status")
    if as_json:
        print_json(document)
        return
    console = table_console()
    console.print(f"mesh {document.get('mesh', '')}", markup=False)
    console.print(_broker_table(document))
    lines = stream_lines(document)
    if lines:
        console.print()
        console.print(_stream_table(lines))


def stream_lines(document: JsonObject) -> list[StreamLine]:
    """Return one line per stream and region, sorted; a stream that nobody leads shows no leader. Pure."""
    led: dict[tuple[str, int, str, str], StreamLine] = {}
    for region, broker in _brokers(document):
        status = broker.get("status") or {}
        for stream in status.get("streams") or ():
            line = _line(region, broker, stream)
            key = (line.topic, line.partition, line.home, line.region)
            if line.leader != NO_LEADER or key not in led:
                led[key] = line
    return [led[key] for key in sorted(led)]


def _line(region: str, broker: dict[str, Any], stream: dict[str, Any]) -> StreamLine:
    home_high_watermark = int(stream.get("home_high_watermark", -1))
    high_watermark = int(stream.get("high_watermark", 0))
    lag = ""
    if not stream.get("is_home"):
        known = home_high_watermark >= 0
        lag = (
            f"{max(0, home_high_watermark - high_watermark)} ({float(stream.get('lag_ms', 0)):.0f} ms)"
            if known
            else "?"
        )
    return StreamLine(
        topic=str(stream.get("topic", "")),
        partition=int(stream.get("partition", 0)),
        home=str(stream.get("home", "")),
        region=region,
        leader=str(broker.get("id", "")) if stream.get("is_leader") else NO_LEADER,
        role="home" if stream.get("is_home") else "mirror",
        epoch=str(stream.get("epoch", "")),
        high_watermark=str(high_watermark),
        lag=lag,
    )


def _brokers(document: JsonObject) -> Iterator[tuple[str, dict[str, Any]]]:
    for region in document.get("regions") or ():
        for broker in region.get("brokers") or ():
            yield str(region.get("region", "")), broker


def _broker_table(document: JsonObject) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("region", "broker", "state", "rtt ms", "kafka", "controller", "note"):
        table.add_column(column, no_wrap=True)
    for region, broker in _brokers(document):
        status = broker.get("status") or {}
        rtt_ms = broker.get("rtt_ms")
        leads = status.get("controller") == broker.get("id")
        table.add_row(
            region,
            str(broker.get("id", "")),
            "ready" if broker.get("ready") else "not ready",
            "" if rtt_ms is None else f"{rtt_ms:.1f}",
            str(broker.get("kafka", "")),
            "leader" if leads else "",
            str(broker.get("error", "")).splitlines()[0] if broker.get("error") else "",
        )
    return table


def _stream_table(lines: list[StreamLine]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("topic", "partition", "home", "region", "leader", "role", "epoch", "high watermark", "lag records"):
        table.add_column(column, no_wrap=True)
    for line in lines:
        table.add_row(
            line.topic,
            str(line.partition),
            line.home,
            line.region,
            line.leader,
            line.role,
            line.epoch,
            line.high_watermark,
            line.lag,
        )
    return table
