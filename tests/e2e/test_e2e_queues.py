"""A real region of three brokers: queues whose consumers and coordinator die, and copies whose leaders do."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from loadtest.mesh_process import MeshProcess
from tests.e2e.real_mesh import create_topic, leader_of, wait_until_whole
from tests.e2e.test_e2e_load import georelay

READY_S = 90.0  # for a broker that was killed, on a busy machine


@pytest.fixture(scope="module")
def shared_mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeshProcess]:
    """One region whose brokers are started again when they die."""
    directory = tmp_path_factory.mktemp("queues")
    process = MeshProcess(directory, regions="us", brokers_per_region=3, arguments=("--restart",))
    asyncio.run(process.__aenter__())
    try:
        yield process
    finally:
        process.stop()


@pytest.fixture
async def mesh(shared_mesh: MeshProcess) -> MeshProcess:
    """The region with all its brokers; each test has topics of its own."""
    await wait_until_whole(shared_mesh, within_s=READY_S)
    return shared_mesh


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    """A client that waits for elections."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=40)) as session:
        yield session


@pytest.mark.slow
def test_each_record_is_done_once_while_consumers_and_coordinators_are_killed(tmp_path: Path) -> None:
    done = georelay("run", "queue", "--seconds", "15", "--out", str(tmp_path))
    (folder,) = tmp_path.iterdir()
    (line,) = [json.loads(row) for row in (folder / "programs.jsonl").read_text().splitlines()]
    assert line["kept"], done.stdout
    assert " 0 delivered again" not in line["found"] and "killed 20 times" in line["found"]
    events = [json.loads(row) for row in (folder / "events.jsonl").read_text().splitlines()]
    assert [event["what"] for event in events].count("kill") == 6


@pytest.mark.slow
async def test_every_stored_record_is_copied_once_while_leaders_are_killed(
    mesh: MeshProcess, http: aiohttp.ClientSession
) -> None:
    for topic in ("orders.eu", "audit", "paid"):
        await create_topic(mesh, topic, home="us")
    await _ask(http, mesh, "POST", "/v1/bindings", {"name": "all", "source": "orders.>", "topic": "audit"})
    rule = {"name": "kind", "value": "paid"}
    body = {"name": "some", "source": "orders.*", "topic": "paid", "headers": [rule]}
    assert (await _ask(http, mesh, "POST", "/v1/bindings", body))["active"]
    acknowledged: list[str] = []
    killing = asyncio.create_task(_kill_leaders(mesh, ("orders.eu", "audit")))
    number = 0
    while not killing.done() or number < 300:
        rows = [
            {"value": f"r{number + step}", "headers": {"kind": "paid" if (number + step) % 3 == 0 else "new"}}
            for step in range(5)
        ]
        number += 5
        if await _publish(http, mesh, rows):
            acknowledged += [str(row["value"]) for row in rows]
            copied = await _values(http, mesh, "audit", last=400)
            assert set(acknowledged[-5:]) <= set(copied), "it was acknowledged before its copies were there"
    await killing
    stored = await _values(http, mesh, "orders.eu")
    assert set(acknowledged) <= set(stored)
    wanted = {"audit": stored, "paid": [value for value in stored if int(value[1:]) % 3 == 0]}
    for topic, values in wanted.items():
        copied = await _values(http, mesh, topic, at_least=len(values))
        assert copied == values, (topic, Counter(copied) - Counter(values), Counter(values) - Counter(copied))


async def _kill_leaders(mesh: MeshProcess, topics: tuple[str, ...]) -> None:
    for topic in topics:
        await asyncio.sleep(1)
        mesh.kill(await leader_of(mesh, "us", topic))
        await wait_until_whole(mesh, within_s=READY_S)


async def _publish(http: aiohttp.ClientSession, mesh: MeshProcess, rows: list[dict[str, Any]]) -> bool:
    """Return whether the records were acknowledged."""
    try:
        async with http.post(f"{mesh.gateway}/v1/topics/orders.eu/records", json=rows) as answer:
            await answer.read()
            return answer.status < 300
    except (aiohttp.ClientError, TimeoutError):
        return False


async def _ask(
    http: aiohttp.ClientSession, mesh: MeshProcess, method: str, path: str, body: Any = None
) -> dict[str, Any]:
    deadline = time.monotonic() + 30
    while True:
        async with http.request(method, f"{mesh.gateway}{path}", json=body) as answer:
            if answer.status < 300:
                return dict(await answer.json())
            said = f"{method} {path}: {answer.status} {await answer.text()}"
        assert time.monotonic() < deadline, said
        await asyncio.sleep(0.2)


async def _values(
    http: aiohttp.ClientSession, mesh: MeshProcess, topic: str, *, at_least: int = 0, last: int = 0
) -> list[str]:
    """Return the values of a topic; of the newest records only with `last`."""
    values: list[str] = []
    offset = 0
    bounds = await _ask(http, mesh, "GET", f"/v1/topics/{topic}/records?offset=latest&max=1")
    end = bounds["next_offset"]  # as its leader has it now; the replica that answers below may be behind
    if last:
        offset = max(0, end - last)
    deadline = time.monotonic() + 20
    while True:
        answer = await _ask(http, mesh, "GET", f"/v1/topics/{topic}/records?offset={offset}&max=1000")
        values += [row["value"] for row in answer["records"]]
        offset = answer["next_offset"]
        if offset >= end and (len(values) >= at_least or time.monotonic() > deadline):
            return values
        await asyncio.sleep(0 if answer["records"] else 0.1)
