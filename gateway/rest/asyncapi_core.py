"""GET /v1/asyncapi.json: AsyncAPI 3.0, what clients and brokers say over a socket. Pure.

Rule: the schemas of records and problems are those of the OpenAPI document; messages are those of
docs/protocol/websocket.md, and a test sends and reads them by these schemas.
Source: https://www.asyncapi.com/docs/reference/specification/v3.0.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.rest.operations import QUERY, SCHEMAS

Schema = Mapping[str, Any]
API_VERSION: Final = "1"
TO_BROKER: Final = ("subscribe", "credit", "unsubscribe", "publish", "publishBatch")
TO_CLIENT: Final = ("hello", "subscribed", "records", "skipped", "ended", "published", "refused", "deliverBatch")
_ID: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": 2**32 - 1, "description": "of the client's choosing"}
_OFFSET: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}
_POSITIONS: Final[Schema] = {
    "type": "object",
    "description": "next offset by partition",
    "propertyNames": {"pattern": "^[0-9]{1,4}$"},
    "additionalProperties": _OFFSET,
}
_EPOCHS: Final[Schema] = {
    "type": "object",
    "description": "by partition the home epoch of what lies before its next offset",
    "propertyNames": {"pattern": "^[0-9]{1,4}$"},
    "additionalProperties": {"type": "integer", "minimum": 1, "maximum": 2**31 - 1},
}
_TOPIC: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": 249}
_PARTITION: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": 999}
_PROBLEM: Final[Schema] = {"$ref": "#/components/schemas/Problem"}
_CREDIT: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": 64 * 1024 * 1024}
_ROWS: Final[Schema] = {"type": "array", "items": {"type": "object"}}

# Fields by message: (required, others); each has `type` and, but for `hello`, `id`.
_TEXTS: Final[Mapping[str, tuple[Mapping[str, Schema], Mapping[str, Schema], str]]] = {
    "subscribe": (
        {"id": _ID, "topic": _TOPIC, "credit_bytes": _CREDIT},
        {
            "partitions": {"type": "array", "items": _PARTITION, "maxItems": 64},
            "from": {"oneOf": [{"enum": ["earliest", "latest"]}, _POSITIONS]},
            "epochs": _EPOCHS,
            "batches": {"type": "boolean"},
        },
        "deliver a topic; answered by subscribed or refused",
    ),
    "credit": (
        {"id": _ID, "bytes": _CREDIT},
        {},
        "so many more bytes of a subscription are taken; has no answer but a refusal",
    ),
    "unsubscribe": ({"id": _ID}, {}, "end a subscription; answered by ended"),
    "publish": (
        {"id": _ID, "topic": _TOPIC, "records": {"$ref": "#/components/schemas/Publish"}},
        {"durability": QUERY["durability"], "deadline_ms": QUERY["deadline_ms"]},
        "publish records; answered by published or refused",
    ),
    "hello": (
        {"region": {"type": "string"}, "broker": {"type": "integer"}, "limits": {"type": "object"}},
        {},
        "the first message: where the socket ends, and what it may hold",
    ),
    "subscribed": (
        {"id": _ID, "topic": _TOPIC, "positions": _POSITIONS},
        {},
        "a subscription has begun there; partitions that are not named begin at their log start",
    ),
    "records": (
        {
            "id": _ID,
            "size_bytes": {"type": "integer", "minimum": 0},
            "positions": _POSITIONS,
            "epochs": _EPOCHS,
            "records": {"type": "array", "items": {"$ref": "#/components/schemas/StoredRecord"}},
        },
        {"skipped": _ROWS, "passed_over": _ROWS},
        "records of a subscription; they cost size_bytes of its credit, and it goes on at positions",
    ),
    "skipped": (
        {"id": _ID, "partition": _PARTITION, "from": _OFFSET, "to": _OFFSET},
        {},
        "retention had removed these before they were delivered, of a subscription to batches",
    ),
    "ended": ({"id": _ID}, {"problem": _PROBLEM}, "a subscription has ended: as asked for, or why"),
    "published": (
        {"id": _ID, "records": {"type": "array", "items": {"type": "object", "required": ["partition", "offset"]}}},
        {},
        "where the records are, in their order, as POST /v1/topics/{topic}/records answers",
    ),
    "refused": ({"problem": _PROBLEM}, {"id": _ID}, "what was asked with this id was not done, or its end is unknown"),
}
_BINARY: Final[Mapping[str, str]] = {
    "publishBatch": "kind 1 (u8), id (u32), regions (i8), deadline_ms (u32), partition (u32), topic (u8, UTF-8), batch",
    "deliverBatch": "kind 2 (u8), id (u32), partition (u32), next_offset (i64), batch",
}


def text_schemas() -> dict[str, dict[str, Any]]:
    """Return the JSON schema of each message of text, by its type."""
    return {name: _schema(name, required, others) for name, (required, others, _) in _TEXTS.items()}


def _schema(name: str, required: Mapping[str, Schema], others: Mapping[str, Schema]) -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["type", *required],
        "properties": {"type": {"const": name}, **required, **others},
        "additionalProperties": False,
    }


def asyncapi() -> dict[str, Any]:
    """Return the document."""
    messages: dict[str, Any] = {
        name: {"summary": about, "contentType": "application/json", "payload": _schema(name, required, others)}
        for name, (required, others, about) in _TEXTS.items()
    }
    messages |= {
        name: {"summary": f"big-endian: {layout}", "contentType": "application/octet-stream", "payload": {}}
        for name, layout in _BINARY.items()
    }
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "georelay",
            "version": API_VERSION,
            "description": "Sockets of a gateway: publishing and reading over WebSocket; docs/protocol/websocket.md",
        },
        "defaultContentType": "application/json",
        "channels": {
            "socket": {
                "address": "/v1/socket",
                "description": "one WebSocket; it ends at a broker of one region",
                "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in (*TO_BROKER, *TO_CLIENT)},
                "bindings": {
                    "ws": {
                        "method": "GET",
                        "query": {
                            "type": "object",
                            "properties": {name: QUERY[name] for name in ("region", "read_only")},
                        },
                    }
                },
            }
        },
        "operations": {
            "toBroker": _operation("receive", TO_BROKER),
            "toClient": _operation("send", TO_CLIENT),
        },
        "components": {
            "messages": messages,
            "schemas": {name: SCHEMAS[name] for name in ("Problem", "Record", "Publish", "StoredRecord")},
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "bearer": {"type": "http", "scheme": "bearer", "description": "a token: georelay users token"},
            },
        },
    }


def _operation(action: str, names: tuple[str, ...]) -> dict[str, Any]:
    return {
        "action": action,
        "channel": {"$ref": "#/channels/socket"},
        "security": [{"$ref": f"#/components/securitySchemes/{scheme}"} for scheme in ("basic", "bearer")],
        "messages": [{"$ref": f"#/channels/socket/messages/{name}"} for name in names],
    }
