"""All brokers' addresses change at once, twice, while a client publishes: nothing acknowledged is lost or there twice.

The client is a foreign idempotent producer that goes on through it all. It knows the new addresses beforehand, as a
name would tell it: who knows only addresses that are gone cannot find a mesh, and has to be started anew.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Final

import pytest

from loadtest.history.checker_core import check
from loadtest.history.history_file import HistoryWriter, read_history
from loadtest.mesh_process import MeshProcess
from region.devmesh.ports import search_block
from tests.e2e.foreign_producer import ForeignProducer, read_region
from tests.e2e.real_mesh import create_topic, wait_until_whole

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

TOPIC: Final = "orders"
BLOCK_PORTS: Final = 100
SHIFTED_PORTS: Final = 5  # the third block overlaps the second: brokers meet addresses that are another's now
SECONDS_MAX: Final = 600
ANSWERED_S_MAX: Final = 60


def moved(addresses: list[str], by: int) -> list[str]:
    return [f"{host}:{int(port) + by}" for host, _, port in (address.rpartition(":") for address in addresses)]


async def wait_for_more(producer: ForeignProducer) -> None:
    """Wait until something is acknowledged that was sent from now on."""
    now_ns = time.monotonic_ns()
    async with asyncio.timeout(ANSWERED_S_MAX):
        while not any(send.is_ok and send.invoked_ns > now_ns for send in read_history([producer.history])):
            await asyncio.sleep(0.2)


@pytest.mark.parametrize("regions", ["us", "us,eu,ap"])
async def test_what_is_published_while_all_addresses_change_is_there_once(regions: str, tmp_path: Path) -> None:
    first = search_block(3 * BLOCK_PORTS)
    shifts = (0, BLOCK_PORTS, BLOCK_PORTS + SHIFTED_PORTS)
    producer = ForeignProducer("load", tmp_path)
    silent: list[tuple[int, int]] = []  # when no broker ran
    stopped_ns = 0
    try:
        for shift in shifts:
            ports = ("--base-port", str(first + shift))
            mesh = MeshProcess(tmp_path / "up", regions=regions, brokers_per_region=3, arguments=ports)
            async with mesh:
                await wait_until_whole(mesh)
                kafka = {region: rows["kafka"] for region, rows in mesh.endpoints["regions"].items()}
                if not shift:
                    await create_topic(mesh, TOPIC, home="us")
                    everywhere = [address for by in shifts for address in moved(kafka["us"], by)]
                    await producer.start(
                        everywhere, TOPIC, per_second=100, seconds=SECONDS_MAX, request_timeout_ms=2_000
                    )
                    await producer.wait_for_acknowledgement()
                else:
                    silent.append((stopped_ns, time.monotonic_ns()))
                await wait_for_more(producer)
                if shift == shifts[-1]:
                    producer.end_sending()
                    counts = await producer.finish()
                    complete = tmp_path / "complete.history"
                    writer = HistoryWriter(complete, "complete")
                    end = 0
                    for region, brokers in kafka.items():
                        end = await read_region(writer, brokers, TOPIC, 0, site=region, at_least=end)
                    writer.close()
                stopped_ns = time.monotonic_ns()
    finally:
        await producer.stop()
    sends = read_history([producer.history])
    verdict = check([*sends, *read_history([complete])])
    assert verdict.is_valid, verdict
    assert counts["failed"] == 0
    for from_ns, to_ns in silent:
        assert sum(send.is_ok and from_ns < send.invoked_ns < to_ns for send in sends) > 100
