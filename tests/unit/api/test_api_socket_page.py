"""The conversation on docs/protocol/websocket.md is what a broker says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from aiohttp.test_utils import TestClient, TestServer

from tests.unit.api.edge_in_memory import Edge

PAGE = Path(__file__).parents[3] / "docs" / "protocol" / "websocket.md"


async def test_the_page_shows_what_is_said(edge: Edge, cluster: Any, request: Any) -> None:
    cluster.add_topic("orders", 2)
    page = PAGE.read_text()
    found = re.search(r"## A conversation\n.*?```\n(.*?)```", page, re.DOTALL)
    assert found is not None
    shown, said = found[1].splitlines(), []
    async with TestClient(TestServer(edge.whole_admin().app())) as client:
        ws = await client.ws_connect("/v1/socket")
        for line in shown:
            if line.startswith("> "):
                await ws.send_str(line[2:])
                said.append(line)
            else:
                said.append("< " + (await ws.receive(timeout=5)).data)
    if request.config.getoption("--rewrite", default=False):
        PAGE.write_text(page.replace(found[1], "\n".join(said) + "\n"))
    assert said == shown
