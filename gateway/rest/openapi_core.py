"""GET /v1/openapi.json: OpenAPI 3.1, made of the routes that are served and of what gateway.rest.operations says. Pure.

Source: https://spec.openapis.org/oas/v3.1.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from gateway.rest.operations import OPERATIONS, QUERY, SCHEMAS, Operation

API_VERSION: Final = "1"
PROBLEM_MEDIA: Final = "application/problem+json"
_PLACE: Final = re.compile(r"{([a-z]+)}")
_NUMBERS: Final = frozenset({"partition", "epoch", "broker"})
_SET: Final = {("regions", "verb"): ["drain", "keep"], ("routes", "kind"): ["pin", "drain", "freeze"]}


def openapi(routes: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return the document of these routes, (method, path) each; one that OPERATIONS does not know is an error."""
    paths: dict[str, dict[str, Any]] = {}
    for method, path in routes:
        paths.setdefault(path, {})[method.lower()] = _operation(method, path, OPERATIONS[f"{method} {path}"])
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "georelay",
            "version": API_VERSION,
            "description": "The HTTP API of a gateway. Errors are problem documents; docs/protocol/http-and-grpc.md",
        },
        "servers": [{"url": "/"}],
        "security": [{}, {"basic": []}, {"bearer": []}],
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            "responses": {
                "Problem": {
                    "description": "refused, or failed",
                    "content": {PROBLEM_MEDIA: {"schema": {"$ref": "#/components/schemas/Problem"}}},
                }
            },
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "bearer": {"type": "http", "scheme": "bearer", "description": "a token: georelay users token"},
            },
        },
    }


def _operation(method: str, path: str, operation: Operation) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": operation.summary}
    if operation.answer:
        schema = (
            {"$ref": f"#/components/schemas/{operation.answer}"} if "json" in operation.media else {"type": "string"}
        )
        answer["content"] = {operation.media: {"schema": schema}}
    parameters = [
        *(_in_path(path, name) for name in _PLACE.findall(path)),
        *(_in_query(name) for name in operation.query),
    ]
    responses: dict[str, Any] = {str(operation.status): answer, "default": {"$ref": "#/components/responses/Problem"}}
    if path.endswith("/records") and operation.answer == "Published":
        responses["202"] = {"description": "stored, and not yet at the level that was asked for"} | {
            "content": answer["content"]
        }
    found: dict[str, Any] = {
        "operationId": _name_of(method, path),
        "tags": [path.removeprefix("/v1").strip("/").partition("/")[0] or "gateway"],
        "summary": operation.summary,
        "parameters": parameters,
        "responses": responses,
    }
    if operation.body:
        found["requestBody"] = {
            "required": not operation.body_optional,
            "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{operation.body}"}}},
        }
    return found


def _in_path(path: str, name: str) -> dict[str, Any]:
    schema: dict[str, Any] = (
        {"type": "integer", "minimum": 0} if name in _NUMBERS else {"type": "string", "minLength": 1}
    )
    values = _SET.get((path.split("/")[2], name))
    if values is not None:
        schema["enum"] = values
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _in_query(name: str) -> dict[str, Any]:
    about = dict(QUERY[name])
    description = about.pop("description")
    return {"name": name, "in": "query", "description": description, "schema": about}


def _name_of(method: str, path: str) -> str:
    words = re.sub(r"[^a-z]+", " ", path.removeprefix("/v1")).split()
    return "".join([method.lower(), *(word.capitalize() for word in words)]) + ("Page" if path == "/console/" else "")
