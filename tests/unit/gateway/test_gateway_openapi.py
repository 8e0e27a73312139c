"""The OpenAPI document: one operation per route that is served, valid, and served to everybody."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import jsonschema
import pytest

from gateway.rest.openapi_core import openapi
from gateway.rest.operations import OPERATIONS, QUERY, SCHEMAS

Start = Callable[..., Awaitable[Any]]
ROUTES = [tuple(key.split(" ", 1)) for key in OPERATIONS]


def refs(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for child in value.values():
            yield from refs(child)
    elif isinstance(value, list | tuple):
        for child in value:
            yield from refs(child)


async def test_it_has_each_route_that_is_served_and_no_other(start_mesh: Start, start_broker: Start) -> None:
    mesh = await start_mesh(users=True, us=[await start_broker()])
    async with mesh.client.get(mesh.url("/v1/openapi.json")) as answer:
        assert (answer.status, answer.content_type) == (200, "application/json")
        document = await answer.json()
    served = {f"{method.upper()} {path}" for path, row in document["paths"].items() for method in row}
    assert served == set(OPERATIONS), "a row of OPERATIONS for each route, and none without one"
    assert document["openapi"] == "3.1.0"


def test_every_schema_is_valid_and_every_reference_leads_somewhere() -> None:
    document: dict[str, Any] = json.loads(json.dumps(openapi((method, path) for method, path in ROUTES)))
    for schema in [*document["components"]["schemas"].values(), *(dict(found) for found in QUERY.values())]:
        jsonschema.Draft202012Validator.check_schema(schema)
    for ref in refs(document):
        found: Any = document
        for part in ref.removeprefix("#/").split("/"):
            found = found[part]
    named = {operation.body for operation in OPERATIONS.values()} | {one.answer for one in OPERATIONS.values()}
    assert named - {""} <= set(SCHEMAS)


def test_names_of_operations_differ_and_every_place_of_a_path_is_a_parameter() -> None:
    document = openapi((method, path) for method, path in ROUTES)
    rows = [(path, row) for path, by_method in document["paths"].items() for row in by_method.values()]
    names = [row["operationId"] for _, row in rows]
    assert len(set(names)) == len(names)
    for path, row in rows:
        places = {found["name"] for found in row["parameters"] if found["in"] == "path"}
        assert places == {part[1:-1] for part in path.split("/") if part.startswith("{")}, path


def test_a_route_that_nobody_described_is_an_error() -> None:
    with pytest.raises(KeyError):
        openapi([("GET", "/v1/unheard-of")])
