"""`georelay bindings list|add|remove`: which records are copied where before their publish is acknowledged."""

from __future__ import annotations

from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from georelay.cli.asking import Where, ask, listed
from georelay.cli.failure import EXIT_USAGE, CommandFailed
from georelay.cli.location import EndpointsOption, GatewayOption, JsonOption, UserOption
from georelay.cli.printing import cell, print_json, print_line, print_listing, print_outcome

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
    answer = ask(Where(gateway, endpoints, user), "GET", "/v1/bindings")
    print_listing(listed(answer, "bindings"), COLUMNS, binding_line, as_json=as_json)


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
    answer = ask(Where(gateway, endpoints, user), "POST", "/v1/bindings", body)
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
    answer = ask(Where(gateway, endpoints, user), "DELETE", f"/v1/bindings/{quote(name, safe='')}")
    print_outcome(answer, f"removed binding {name}", as_json=as_json)


def header_rule(text: str) -> dict[str, str]:
    """Return the rule that NAME or NAME=VALUE means. Pure."""
    name, has_value, value = text.partition("=")
    return {"name": name, "value": value} if has_value else {"name": name}


def binding_line(row: dict[str, Any]) -> dict[str, str]:
    """Return the texts of one binding. Pure."""
    rules = [rule["name"] + ("" if rule.get("value") is None else f"={rule['value']}") for rule in row["headers"]]
    joined = f" {'and' if row.get('match') == 'all' else 'or'} ".join(rules)
    texts = {"binding": row["name"], "source": row["source"], "headers": joined, "topic": row["topic"]}
    return {name: cell(text) for name, text in (texts | {"queue": row.get("queue", "")}).items()}
