"""Three brokers of one region in one process: who may say that it is ready, and whose voice counts."""

from __future__ import annotations

import asyncio
import shutil
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from structlog.testing import capture_logs

from georelay.ids import BrokerId, GroupId, Offset
from georelay.wire.batch import RecordDraft, build_batch
from mesh.replication.publish import Publish
from region.api.reading import LATEST, StreamReader
from region.app import Broker
from region.config import BrokerConfig
from region.controller.topic import Homes, TopicSpec
from region.multiraft.peers import PeerTransport
from tests.free_ports import free_addresses

NAMES = ("kafka", "grpc", "peers", "link", "admin")
READY_ENDS_S = 3.0


class Region:
    """The brokers 1..3; a stopped one may be started again."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.running: dict[int, Broker] = {}
        self._listen = {number: free_addresses(NAMES) for number in (1, 2, 3)}

    def config(self, number: int) -> BrokerConfig:
        rows = [{"number": n, "peers": at["peers"], "link": at["link"]} for n, at in self._listen.items()]
        return BrokerConfig.model_validate(
            {
                "mesh_id": "test",
                "region": "us",
                "broker": number,
                "data_dir": str(self.directory / str(number)),
                "definitions_home": "us",
                "tick_ms": 20,
                "listen": self._listen[number],
                "regions": [{"name": "us", "number": 1, "brokers": rows}],
            }
        )

    async def start(self, *numbers: int) -> None:
        for number in numbers:
            self.running[number] = Broker(self.config(number))
            await self.running[number].start()

    async def stop(self, *numbers: int) -> None:
        for number in numbers:
            await self.running.pop(number).stop()

    def leader(self) -> int:
        return next((n for n, broker in self.running.items() if broker.core.machine.is_leader), 0)

    def all_ready(self) -> bool:
        return all(broker.cluster.ready() for broker in self.running.values())


@pytest.fixture
async def region(tmp_path: Path, until: Any) -> AsyncIterator[Region]:
    made = Region(tmp_path)
    await made.start(1, 2, 3)
    await until(made.all_ready)
    yield made
    await made.stop(*list(made.running))


async def test_latest_is_what_the_leader_says_on_every_broker(region: Region, until: Any) -> None:
    await region.running[1].cluster.create_topic(TopicSpec(name="orders", homes=Homes.ONE, home="us"))
    await until(lambda: all(broker.cluster.stream("orders", 0) for broker in region.running.values()))
    streams = {n: broker.cluster.stream("orders", 0) for n, broker in region.running.items()}
    leader = await until(lambda: next((n for n, stream in streams.items() if stream and stream.is_leader), 0))
    batch = bytearray(build_batch([RecordDraft(b"v")], timestamps_ms=1))
    led = streams[leader]
    assert led is not None
    await led.publish(Publish.built(batch, received_ns=1, entry_region=1))
    for broker in region.running.values():
        stream = broker.cluster.stream("orders", 0)
        assert stream is not None
        if not stream.is_leader:
            stream.high_watermark = Offset(0)  # as after a start, before the leader was heard
        await until(lambda: broker.cluster.leader_of("orders", 0) > 0)  # noqa: B023
        answer = await StreamReader(broker.cluster).read("orders", 0, LATEST, max_bytes=1, wait_ms=0)
        assert answer.high_watermark == 1


async def asked(region: Region, number: int, method: str, path: str, body: object = None) -> tuple[int, Any]:
    """Return status and JSON of one request to a broker's HTTP; what passes by itself is asked again."""
    url = f"http://{region.config(number).listen.admin}/v1/topics/orders{path}"
    async with asyncio.timeout(20), aiohttp.ClientSession() as http:
        while True:
            async with http.request(method, url, json=body) as answer:
                if answer.status != 503:
                    return answer.status, await answer.json() if answer.status != 204 else None
            await asyncio.sleep(0.05)


async def test_a_named_consumer_goes_on_at_another_broker_when_its_coordinator_is_lost(region: Region) -> None:
    await region.running[1].cluster.create_topic(TopicSpec(name="orders", homes=Homes.ONE, home="us"))
    await asked(region, 1, "POST", "/records", [{"value": "a"}, {"value": "b"}])
    status, found = await asked(region, 1, "GET", "/consumers/bills/records?wait_ms=5000")
    assert (status, [row["value"] for row in found["records"]]) == (200, ["a", "b"])
    assert (await asked(region, 1, "POST", "/consumers/bills/acknowledge", {"positions": {"0": 1}}))[0] == 200
    coordinators = region.running[1].core.coordinators
    lost = coordinators.leader_of("bills") % 1_000
    await region.stop(lost)
    left = next(iter(region.running))
    status, found = await asked(region, left, "GET", "/consumers/bills/records")
    assert (status, [row["value"] for row in found["records"]]) == (200, ["b"])
    assert (await asked(region, left, "POST", "/consumers/bills/acknowledge", {"positions": {"0": 2}}))[0] == 200
    assert await asked(region, left, "GET", "/consumers/bills/records") == (204, None)


@pytest.mark.parametrize("survivor", ["leader", "follower"])
async def test_a_broker_without_its_quorum_is_not_ready_and_is_again_when_one_comes_back(
    region: Region, until: Any, survivor: str
) -> None:
    leader = await until(region.leader)
    others = [number for number in (1, 2, 3) if number != leader]
    left = leader if survivor == "leader" else others[0]
    gone = [number for number in (1, 2, 3) if number != left]
    began = time.monotonic()
    await region.stop(*gone)
    await until(lambda: not region.running[left].cluster.ready(), READY_ENDS_S)
    assert time.monotonic() - began < READY_ENDS_S
    await asyncio.sleep(0.3)
    assert not region.running[left].cluster.ready()
    await region.start(gone[0])
    await until(region.all_ready)


async def test_a_broker_with_an_emptied_disk_is_not_heard_until_the_region_took_it_in_as_a_new_replica(
    region: Region, until: Any
) -> None:
    await region.stop(1, 2, 3)
    shutil.rmtree(region.directory / "3")
    with capture_logs() as logs:
        # Only what broker 1 has on its disk can keep the vote of broker 3 out: nobody else is there to say so.
        await region.start(1, 3)
        await asyncio.sleep(1.0)
        assert not region.leader()
        assert not region.running[1].core.host.is_alive(BrokerId(1003))
    refused = [row for row in logs if row["event"] == "peer.disk_refused"]
    assert [row["peer"] for row in refused] == [1003]
    assert region.running[3].core.entrance.founders == ()
    await region.start(2)
    await until(region.all_ready)
    state = region.running[1].core.controller.state
    assert state.disk_of(BrokerId(1003)) == region.running[3].core.directory.disk_id
    await until(lambda: state.control is not None and BrokerId(1003) in state.control.voters)


async def test_a_disk_that_turns_out_to_be_wrong_ends_the_connections_it_came_with(region: Region, until: Any) -> None:
    first = region.running[1]
    transport = first.core.host.transport
    assert isinstance(transport, PeerTransport)
    await until(lambda: len(transport.incoming) == 4)
    registered = first.core.controller.state.brokers
    transport._registered_disk = lambda broker: str(uuid.uuid4()) if broker == 1002 else registered[broker].disk_uuid
    first.core._commands_applied()
    await until(lambda: len(transport.incoming) == 2)


async def test_after_a_power_cut_a_replaced_disk_is_heard_by_whoever_has_read_of_it(region: Region, until: Any) -> None:
    await region.stop(3)
    shutil.rmtree(region.directory / "3")
    await region.start(3)
    control = region.running[1].core.controller.state.control
    assert control is not None
    await until(region.all_ready)
    await until(lambda: all(1003 in at.core.controller.state.control.voters for at in region.running.values()))  # type: ignore[union-attr]
    await until(lambda: region.running[3].core.entrance.joins_after < 1 << 62)
    for number in (1, 2, 3):
        region.running[number].core.host.halt()  # nothing is checkpointed: all there is at the next start is the log
    await region.stop(1, 2, 3)
    await region.start(1, 3)
    await until(region.leader, 8)


async def test_a_broker_that_stops_leaves_nothing_without_a_leader(region: Region, until: Any) -> None:
    await region.running[1].cluster.create_topic(TopicSpec(name="orders", homes=Homes.ONE, home="us", partitions=4))
    leader = await until(region.leader)
    hosts = {number: broker.core.host for number, broker in region.running.items()}

    def led(*numbers: int) -> set[GroupId]:
        return {id for n in numbers for id, group in hosts[n].groups.items() if group.node.is_leader}

    everything = await until(lambda: (all_led := led(1, 2, 3)) and len(all_led) >= 5 and all_led)
    assert led(leader)
    others = [number for number in (1, 2, 3) if number != leader]
    await region.stop(leader)
    assert led(*others) == everything  # already when its last word is said: no election had to time out
