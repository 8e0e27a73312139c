"""`georelay topics list|create|delete|describe`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.console import Console
from rich.table import Table

from georelay.cli.failure import EXIT_USAGE, CommandFailed
from georelay.cli.location import EndpointsOption, GatewayOption, JsonOption, UserOption, open_gateway
from georelay.cli.tables import table_console
from georelay.client.gateway_http import JsonObject
from georelay.limits import PARTITIONS_PER_TOPIC_MAX

TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC")]
COLUMNS = ("name", "partitions", "replication_factor", "homes", "home")


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(help="List, create, delete and describe topics.", no_args_is_help=True, rich_markup_mode=None)
    group.command(name="list")(_list)
    group.command(name="create")(_create)
    group.command(name="delete")(_delete)
    group.command(name="describe")(_describe)
    app.add_typer(group, name="topics")


def _list(
    gateway: GatewayOption = "", endpoints: EndpointsOption = "", user: UserOption = "", as_json: JsonOption = False
) -> None:
    """List every topic."""
    answer = _ask("GET", "/v1/topics", None, (gateway, endpoints, user))
    topics = answer.get("topics")
    if not isinstance(topics, list):
        raise CommandFailed("the gateway's answer has no topics; is it of another version?")
    if as_json:
        _print_json(topics)
    else:
        _print_table(COLUMNS, topics)


def _create(
    topic: TopicArgument,
    partitions: Annotated[
        int, typer.Option("--partitions", min=0, max=PARTITIONS_PER_TOPIC_MAX, help="0: the mesh's default.")
    ] = 0,
    replication_factor: Annotated[
        int, typer.Option("--replication-factor", min=0, max=5, help="Brokers per region; 0: the mesh's default.")
    ] = 0,
    homes: Annotated[
        str, typer.Option("--homes", metavar="one|every", help="Who sequences: one region or each.")
    ] = "one",
    home: Annotated[str, typer.Option("--home", metavar="REGION", help="With homes=one; default: the nearest.")] = "",
    retention_ms: Annotated[int, typer.Option("--retention-ms", min=0, help="0: the mesh's default.")] = 0,
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """Create a topic."""
    if homes not in ("one", "every"):
        raise CommandFailed(f"--homes {homes!r} is neither one nor every", exit_code=EXIT_USAGE)
    wanted = {
        "name": topic,
        "partitions": partitions,
        "replication_factor": replication_factor,
        "homes": homes,
        "home": home,
        "retention_ms": retention_ms,
    }
    answer = _ask(
        "POST", "/v1/topics", {name: value for name, value in wanted.items() if value}, (gateway, endpoints, user)
    )
    if as_json:
        _print_json(answer)
    else:
        _print(f"created topic {topic}")


def _delete(
    topic: TopicArgument,
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """Delete a topic with all its records, in every region."""
    answer = _ask("DELETE", f"/v1/topics/{quote(topic, safe='')}", None, (gateway, endpoints, user))
    if as_json:
        _print_json(answer)
    else:
        _print(f"deleted topic {topic}")


def _describe(
    topic: TopicArgument,
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show a topic and its partitions."""
    answer = _ask("GET", f"/v1/topics/{quote(topic, safe='')}", None, (gateway, endpoints, user))
    if as_json:
        _print_json(answer)
        return
    tables = {name: value for name, value in answer.items() if isinstance(value, list) and value}
    for name in (name for name in answer if name not in tables):
        _print(f"{name}: {answer[name]}")
    for rows in tables.values():
        _print_table(tuple(rows[0]), rows)


def _ask(method: str, path: str, body: JsonObject | None, location: tuple[str, str, str]) -> JsonObject:
    async def ask() -> JsonObject:
        async with open_gateway(*location) as client:
            if method == "POST":
                return await client.post(path, body)
            return await (client.get(path) if method == "GET" else client.delete(path))

    return asyncio.run(ask())


def _print(line: str) -> None:
    Console(highlight=False).print(line, markup=False, soft_wrap=True)


def _print_json(document: object) -> None:
    print(json.dumps(document, ensure_ascii=False))  # noqa: T201


def _print_table(columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=True)
    for row in rows:
        table.add_row(*(str(row.get(column, "")) for column in columns))
    table_console().print(table)
