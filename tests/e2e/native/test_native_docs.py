"""The code in docs/sdk.md runs, in its order, against a real region."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import georelay
import georelay.sync
from georelay.wire.compression import Compression
from loadtest.mesh_process import MeshProcess

pytestmark = [pytest.mark.timeout(180), pytest.mark.slow]

PAGE = Path(__file__).resolve().parents[3] / "docs" / "sdk.md"


async def make_queue(mesh: MeshProcess) -> None:
    """What an operator does before the page's queue is used."""
    import aiohttp

    async with georelay.connect(mesh.gateway) as connection:
        await connection.admin.create_topic("work")
        async with connection.producer() as producer:
            await producer.publish("work", b"job")
    definition = {"name": "jobs", "topic": "work", "start": "earliest"}
    async with aiohttp.ClientSession() as session, session.post(f"{mesh.gateway}/v1/queues", json=definition) as answer:
        assert answer.status < 300, await answer.text()


async def test_the_code_of_the_page_runs(mesh: MeshProcess) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.M | re.S)
    assert len(blocks) == 8
    await make_queue(mesh)
    names: dict[str, Any] = {
        "georelay": georelay, "asyncio": asyncio, "Compression": Compression, "url": mesh.gateway
    }  # fmt: skip
    async with georelay.connect(mesh.gateway) as connection, asyncio.timeout(120):
        for block in blocks:
            names["mesh"] = connection
            code = compile(block, str(PAGE), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            outcome = eval(code, names)
            if inspect.iscoroutine(outcome):
                await outcome
