"""The SDK goes on in the next region when the nearest one is gone, without a gap and without a duplicate."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import georelay
from georelay import Start
from loadtest.mesh_process import MeshProcess

pytestmark = [pytest.mark.timeout(180), pytest.mark.slow]


@asynccontextmanager
async def _connected(mesh: MeshProcess) -> AsyncIterator[georelay.Connection]:
    async with georelay.connect(mesh.gateway) as connection:
        yield connection


async def test_a_frozen_region_is_left_by_producer_and_consumer(tmp_path: Path) -> None:
    async with MeshProcess(tmp_path, regions="us,eu", brokers_per_region=1) as mesh, _connected(mesh) as connection:
        first = connection.region
        other = {"us": "eu", "eu": "us"}[first]
        await connection.admin.create_topic("orders", partitions=1, home=other)
        async with (
            connection.producer(request_timeout_s=1) as producer,
            connection.consumer(["orders"], start=Start.EARLIEST) as consumer,
        ):
            for number in range(10):
                await producer.publish("orders", b"%d" % number)
            found = [(await anext(consumer)).value for _ in range(10)]
            frozen = mesh.pid_of(f"{first}-1")
            os.kill(frozen, signal.SIGSTOP)
            try:
                async with asyncio.timeout(30):  # 3 s where nothing else runs
                    began = time.monotonic()
                    for number in range(10, 20):
                        await producer.publish("orders", b"%d" % number)
                    print(f"published in {other} {time.monotonic() - began:.1f} s after {first} froze")
                    found += [(await anext(consumer)).value for _ in range(10)]
            finally:
                os.kill(frozen, signal.SIGCONT)
            assert connection.region == other
        assert found == [b"%d" % number for number in range(20)]
        offsets = await connection.admin.offsets([("orders", 0)])
        assert offsets[georelay.Place("orders", 0)].high_watermark == 20
