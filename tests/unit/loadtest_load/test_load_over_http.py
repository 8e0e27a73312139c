"""Publishers and readers over HTTP and over WebSockets, with the listener of a broker whose region is in memory."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from loadtest.load import sources
from loadtest.load.campaign import Campaign, Stage, Topic, Users
from loadtest.load.engine_values import Plan
from loadtest.load.publisher import Outgoing
from loadtest.load.wires import SERIAL, Refused
from tests.unit.api.edge_in_memory import Edge
from tests.unit.kafka import region_in_memory

cluster = region_in_memory.cluster
credentials = region_in_memory.credentials
recorder = region_in_memory.recorder
over_http = pytest.mark.parametrize("kind", ["rest", "websocket"])
WAIT_S = 10.0
Place = tuple[int, int, bytes]  # partition, offset, value


@pytest.fixture
async def plan(cluster: Any, credentials: Any, recorder: Any, tmp_path: Path) -> AsyncIterator[Plan]:
    edge = Edge(cluster, credentials, recorder)
    cluster.add_topic("orders", 2)
    async with TestServer(edge.whole_admin().app()) as server:
        yield Plan(
            campaign=Campaign(
                name="unit",
                about="",
                topics=(Topic(name="orders", partitions=2),),
                stages=(Stage(seconds=1, users=1, rate=1),),
                users=(Users(kind="rest", topics=("orders",)),),
            ),
            endpoints={"regions": {"us": {"admin": [f"127.0.0.1:{server.port}"]}}},
            regions=("us",),
            folder=tmp_path,
            worker="w1",
            settings={},
        )
    await edge.coalescer.close()


def record(partition: int, value: bytes) -> Outgoing:
    return Outgoing(topic="orders", stream="orders", partition=partition, key=b"k", value=value, name="w1:0", due_ns=1)


def read(plan: Plan, kind: str, begins: dict[sources.Spot, int], *counts: int) -> list[list[Place]]:
    """Return what a reader takes before it says that all of it is done, so many records each time."""
    source = sources.SOURCES[kind](plan, "us", "")
    source.open(begins)
    found: list[list[Place]] = []
    deadline = time.monotonic() + WAIT_S
    try:
        for count in counts:
            found.append([])
            while len(found[-1]) < count:
                assert time.monotonic() < deadline, found
                found[-1] += [(row.partition, row.offset, row.value) for row in source.take()]
            source.finish()
    finally:
        source.close()
    return found


@over_http
async def test_what_is_published_has_its_offset_and_is_read_from_where_a_reader_begins(plan: Plan, kind: str) -> None:
    wire = SERIAL[kind](plan, "us", random.Random(1))
    await wire.open()
    sent = [(1, b"a"), (1, b"b"), (0, b"c")]
    assert [await wire.publish([record(*each)]) for each in sent] == [[0], [1], [0]]
    await wire.close()
    (found,) = await asyncio.to_thread(read, plan, kind, {("orders", 0): 0, ("orders", 1): 1}, 2)
    assert sorted(found) == [(0, 0, b"c"), (1, 1, b"b")]


@over_http
async def test_what_is_refused_for_sure_says_so_and_the_wire_is_of_use_again(plan: Plan, kind: str) -> None:
    wire = SERIAL[kind](plan, "us", random.Random(1))
    await wire.open()
    with pytest.raises(Refused, match="partition"):
        await wire.publish([record(7, b"a")])
    assert await wire.publish([record(0, b"a")]) == [0]
    await wire.close()


async def test_a_reader_over_a_websocket_is_sent_more_when_it_has_done_what_it_has(
    plan: Plan, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "CREDIT_BYTES", 1)
    stream = cluster.streams["orders", 0]
    stream.add(b"a")
    reading = asyncio.create_task(asyncio.to_thread(read, plan, "websocket", {("orders", 0): 0}, 1, 1))
    while not stream.waiter_count and not reading.done():  # it waits for more only with credit
        await asyncio.sleep(0)
    stream.add(b"b")
    assert await reading == [[(0, 0, b"a")], [(0, 1, b"b")]]


async def test_without_its_topic_or_its_broker_a_reader_over_a_websocket_begins_again(plan: Plan) -> None:
    with pytest.raises(sources.FAILURES, match="topic 'nowhere' does not exist"):
        await asyncio.to_thread(read, plan, "websocket", {("nowhere", 0): 0}, 1)
    lost = replace(plan, endpoints={"regions": {"us": {"admin": ["127.0.0.1:1"]}}})
    with pytest.raises(sources.FAILURES, match="Cannot connect"):
        await asyncio.to_thread(read, lost, "websocket", {("orders", 0): 0}, 1)


async def test_an_answer_that_none_should_give_is_no_silence(plan: Plan) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"records": []})

    app = web.Application()
    app.add_routes([web.get("/v1/topics/orders/records", answer)])
    async with TestServer(app) as server:
        odd = replace(plan, endpoints={"regions": {"us": {"admin": [f"127.0.0.1:{server.port}"]}}})
        with pytest.raises(KeyError, match="next_offset"):
            await asyncio.to_thread(read, odd, "rest", {("orders", 0): 0}, 1)
