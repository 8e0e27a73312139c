"""One question of a command to the gateway, from synchronous code."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from georelay.cli.location import open_gateway
from georelay.client.gateway_http import JsonObject


class Where(NamedTuple):
    """The three flags that every command has."""

    gateway: str
    endpoints: str
    user: str


def ask(where: Where, method: str, path: str, body: object = None) -> JsonObject:
    """Return the answer to one request (GatewayError, CommandFailed)."""

    async def asked() -> JsonObject:
        async with open_gateway(*where) as client:
            if method == "GET":
                return await client.get(path)
            if method == "DELETE":
                return await client.delete(path)
            if method == "PATCH":
                return await client.patch(path, body)
            return await client.post(path, body)

    return asyncio.run(asked())
