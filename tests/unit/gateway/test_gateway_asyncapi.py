"""The AsyncAPI document: every message that brokers know, nothing they do not, and served to everybody.

`make openapi` also judges it by the schema of AsyncAPI itself, which npm brings.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import jsonschema
import pytest

from gateway.rest.asyncapi_core import TO_BROKER, TO_CLIENT, asyncapi, text_schemas
from region.api import socket_messages
from region.api.socket_messages import Mistake, parse_message

Start = Callable[..., Awaitable[Any]]


def judge(message: Any) -> None:
    """Hold a message of text to the schema of its type."""
    document = json.loads(json.dumps(asyncapi()))
    schema = document["components"]["messages"][message["type"]]["payload"] | {"components": document["components"]}
    jsonschema.Draft202012Validator(schema).validate(message)


async def test_it_is_served_without_a_sign_in(start_mesh: Start, start_broker: Start) -> None:
    mesh = await start_mesh(users=True, us=[await start_broker()])
    async with mesh.client.get(mesh.url("/v1/asyncapi.json")) as answer:
        assert (answer.status, (await answer.json())["asyncapi"]) == (200, "3.0.0")


def test_it_has_every_message_of_text_that_brokers_read_and_all_their_fields() -> None:
    schemas = text_schemas()
    read = {name: set(fields) for name, fields in socket_messages._FIELDS.items()}
    assert {name: set(schemas[name]["properties"]) for name in TO_BROKER if name in schemas} == read
    assert set(asyncapi()["components"]["messages"]) == {*TO_BROKER, *TO_CLIENT}


@pytest.mark.parametrize(
    "message",
    [
        {"type": "subscribe", "id": 1, "topic": "t", "credit_bytes": 5, "from": {"0": 17}, "batches": True},
        {"type": "subscribe", "id": 1, "topic": "t", "credit_bytes": 5, "from": "earliest", "partitions": [0]},
        {"type": "credit", "id": 1, "bytes": 9},
        {"type": "unsubscribe", "id": 1},
        {"type": "publish", "id": 1, "topic": "t", "records": [{"value": "v"}], "durability": "geo:2"},
    ],
)
def test_what_it_allows_is_what_brokers_read(message: Any) -> None:
    judge(message)
    assert not isinstance(parse_message(json.dumps(message).encode(), is_text=True), Mistake)
    wrong = message | {"more": 1}
    assert isinstance(parse_message(json.dumps(wrong).encode(), is_text=True), Mistake)
    with pytest.raises(jsonschema.ValidationError):
        judge(wrong)
