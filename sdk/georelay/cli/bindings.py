"""`georelay bindings list|add|remove`: which records are copied where before their publish is acknowledged."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer
from rich.markup import escape

from georelay.cli.failure import EXIT_USAGE, CommandFailed
from georelay.cli.location import EndpointsOption, GatewayOption, JsonOption, UserOption, open_gateway
from georelay.cli.printing import print_json, print_line, print_table
from georelay.client.gateway_http import JsonObject

COLUMNS: Final = ("binding", "source", "headers", "topic", "queue")
NameArgument = Annotated[str, typer.Argument(metavar="BINDING")]


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(
        help="Copy records of some topics to others, with the publish.", no_args_is_help=True, rich_markup_mode=None
    )
    group.command(name="list")(_list)
    group.command(name="add")(_add)
    group.command(name="remove")(_remove)
    app.add_typer(group, name="bindings")


def _list(
    gateway: GatewayOption = "", endpoints: EndpointsOption = "", user: UserOption = "", as_json: JsonOption = False
) -> None:
    """List the bindings of the mesh."""
    answer = _ask("GET", "/v1/bindings", None, (gateway, endpoints, user))
    bindings = answer.get("bindings")
    if not isinstance(bindings, list):
        raise CommandFailed("the gateway's answer has no bindings; is it of another version?")
    if as_json:
        print_json(bindings)
    else:
        print_table(COLUMNS, [binding_line(row) for row in bindings])


def _add(
    name: NameArgument,
    source: Annotated[
        str, typer.Option("--from", metavar="PATTERN", help="Topics: orders.*.eu (one word), orders.> (the rest).")
    ],
    topic: Annotated[str, typer.Option("--to-topic", metavar="TOPIC", help="Where the copies go.")] = "",
    queue: Annotated[str, typer.Option("--to-queue", metavar="QUEUE", help="To the topic of this queue.")] = "",
    header: Annotated[
        list[str] | None,
        typer.Option("--header", metavar="NAME[=VALUE]", help="Only records with this header; may be repeated."),
    ] = None,
    match: Annotated[str, typer.Option("--match", metavar="all|any", help="How many of the headers.")] = "all",
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """Add a binding. A way back to its own source is refused."""
    if bool(topic) == bool(queue):
        raise CommandFailed("name either --to-topic or --to-queue", exit_code=EXIT_USAGE)
    body: dict[str, Any] = {"name": name, "source": source, "match": match}
    body |= {"topic": topic} if topic else {"queue": queue}
    body["headers"] = [header_rule(text) for text in header or ()]
    answer = _ask("POST", "/v1/bindings", body, (gateway, endpoints, user))
    if as_json:
        print_json(answer)
        return
    print_line(f"added binding {name}: {answer.get('source')} -> {answer.get('topic')}")
    if not answer.get("active", True):
        waiting = ", ".join(answer.get("waiting") or ())
        print_line(f"not yet in effect for: {waiting}")


def _remove(
    name: NameArgument,
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """Remove a binding; copies that were made stay."""
    answer = _ask("DELETE", f"/v1/bindings/{quote(name, safe='')}", None, (gateway, endpoints, user))
    if as_json:
        print_json(answer)
    else:
        print_line(f"removed binding {name}")


def header_rule(text: str) -> dict[str, str]:
    """Return the rule that NAME or NAME=VALUE means. Pure."""
    name, has_value, value = text.partition("=")
    return {"name": name, "value": value} if has_value else {"name": name}


def binding_line(row: dict[str, Any]) -> dict[str, str]:
    """Return the texts of one binding. Pure."""
    rules = [rule["name"] + ("" if rule.get("value") is None else f"={rule['value']}") for rule in row["headers"]]
    joined = f" {'and' if row.get('match') == 'all' else 'or'} ".join(rules)
    texts = {"binding": row["name"], "source": row["source"], "headers": joined, "topic": row["topic"]}
    return {name: escape(text) for name, text in (texts | {"queue": row.get("queue", "")}).items()}


def _ask(method: str, path: str, body: JsonObject | None, location: tuple[str, str, str]) -> JsonObject:
    async def ask() -> JsonObject:
        async with open_gateway(*location) as client:
            if method == "POST":
                return await client.post(path, body)
            return await (client.get(path) if method == "GET" else client.delete(path))

    return asyncio.run(ask())
