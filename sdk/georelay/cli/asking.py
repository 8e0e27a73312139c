"""One question of a command to the gateway, from synchronous code, and what its answer must hold."""

from __future__ import annotations

from typing import Any, NamedTuple

from georelay.cli.failure import CommandFailed
from georelay.cli.location import gateway_place
from georelay.client.gateway_http import NO_QUERY, JsonObject, Query
from georelay.client.gateway_question import ask_once


class Where(NamedTuple):
    """The three flags that every command has."""

    gateway: str
    endpoints: str
    user: str


def ask(
    where: tuple[str, str, str], method: str, path: str, body: object = None, query: Query = NO_QUERY
) -> JsonObject:
    """Return the answer to one request (GatewayError, CommandFailed)."""
    return ask_once(gateway_place(*where), method, path, query=query, body=body)


def region_query(region: str) -> dict[str, str | int]:
    """Return the parameters that name a region; none for "": the nearest answers. Pure."""
    return {"region": region} if region else {}


def listed(answer: JsonObject, name: str) -> list[Any]:
    """Return the list of that name (CommandFailed: an answer without it is of another version). Pure."""
    rows = answer.get(name)
    if not isinstance(rows, list):
        raise CommandFailed(f"the gateway's answer has no {name}; is it of another version?")
    return rows


def rows_of(answer: JsonObject, name: str) -> list[dict[str, Any]]:
    """Return the rows of a list that may be left out. Pure."""
    rows = answer.get(name)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
