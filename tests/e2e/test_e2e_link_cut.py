"""Two regions are cut from each other under load and healed: afterwards every copy is the same, byte for byte.

The second opinion is region.log.segment_reader, which shares no index, view or recovery with the brokers.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from georelay.client.broker_connection import BrokerConnection
from georelay.wire.api import ApiKey
from georelay.wire.requests import FetchPartition, FetchRequest, FetchTopic
from loadtest.load.links import LinkedMesh
from loadtest.mesh_process import MeshProcess
from region.log.errors import LogCorrupt
from region.log.segment_reader import batches_sha256
from tests.e2e.foreign_producer import loading
from tests.e2e.real_mesh import create_topic, judged, leader_of, wait_until_whole

pytestmark = pytest.mark.slow

REGIONS = ("us", "eu")
TOPIC = "orders"
PER_SECOND = 300
SECONDS = 4
CUT_AFTER_S = 1.0
CUT_S = 2.0
REPLICAS = 6
FLIPS = 12
FETCH_VERSION = 11
CATCH_UP_SECONDS_MAX = 10


async def test_every_copy_is_equal_byte_for_byte_after_a_cut_link_healed(tmp_path: Path) -> None:
    async with LinkedMesh(tmp_path, regions=REGIONS, brokers_per_region=3) as mesh:
        assert isinstance(mesh, LinkedMesh)
        await wait_until_whole(mesh)
        await create_topic(mesh, TOPIC, home=REGIONS[0])
        await leader_of(mesh, REGIONS[1], TOPIC)  # known there too
        load = loading(mesh, TOPIC, entries=REGIONS, directory=tmp_path, per_second=PER_SECOND, seconds=SECONDS)
        async with load as producers:
            await asyncio.sleep(CUT_AFTER_S)
            await mesh.cut(*REGIONS)
            await asyncio.sleep(CUT_S)
            await mesh.heal(*REGIONS)
            verdict = await judged(mesh, TOPIC, producers, tmp_path)
        assert verdict.is_valid, verdict.describe()
        assert verdict.acknowledged > 0 == verdict.refused == verdict.unknown
        fetched = {region: await _fetched_sha256(mesh, region) for region in REGIONS}
        assert len(set(fetched.values())) == 1, fetched
        expected = fetched[REGIONS[0]]
        replicas = _replicas(tmp_path)
        assert len(replicas) == REPLICAS
        await _wait_until_equal(replicas, expected)
    assert _differing(replicas, expected) == []
    _a_flipped_byte_is_found(replicas[-1], tmp_path / "copy", expected)


def _a_flipped_byte_is_found(replica: Path, copy: Path, expected: str) -> None:
    shutil.copytree(replica, copy)
    assert _differing([copy], expected) == []
    for segment, position in _positions(copy):
        whole = segment.read_bytes()
        segment.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        assert _differing([copy], expected) == [copy], f"byte {position} of {segment.name} was flipped unseen"
        segment.write_bytes(whole)
    assert _differing([copy], expected) == []


def _positions(group: Path) -> Iterator[tuple[Path, int]]:
    """Yield places all over the newest segment, its last byte included."""
    segment = max(group.glob("*.log"))
    size = segment.stat().st_size
    for row in range(FLIPS):
        yield segment, (size - 1) * (row + 1) // FLIPS


def _differing(groups: list[Path], expected: str) -> list[Path]:
    """Return the replicas whose batches are not those with this SHA-256, or cannot be read."""
    differing = []
    for group in groups:
        try:
            same = batches_sha256(group) == expected
        except LogCorrupt:
            same = False
        if not same:
            differing.append(group)
    return differing


async def _wait_until_equal(groups: list[Path], expected: str) -> None:
    """Followers are a heartbeat behind their leader."""
    deadline = time.monotonic() + CATCH_UP_SECONDS_MAX
    while differing := _differing(groups, expected):
        if time.monotonic() > deadline:
            pytest.fail(f"not equal after {CATCH_UP_SECONDS_MAX} s: {differing}")
        await asyncio.sleep(0.1)


def _replicas(directory: Path) -> list[Path]:
    """Return the folder of the topic's group on every broker: the largest one; the others are internal."""
    brokers = sorted((directory / "mesh" / "brokers").iterdir())
    return [max(_groups(broker), key=_log_bytes) for broker in brokers]


def _groups(broker: Path) -> list[Path]:
    return [group for group in (broker / "groups").iterdir() if group.name != "0"]


def _log_bytes(group: Path) -> int:
    return sum(segment.stat().st_size for segment in group.glob("*.log"))


async def _fetched_sha256(mesh: MeshProcess, region: str) -> str:
    """Return SHA-256 over the raw batches as Fetch gives them, from offset 0 to the high watermark."""
    leader = await leader_of(mesh, region, TOPIC)
    host, _, port = mesh.endpoints["regions"][region]["kafka"][int(leader.rpartition("-")[2]) - 1].rpartition(":")
    connection = await BrokerConnection.dial(host, int(port))
    digest = hashlib.sha256()
    offset = 0
    try:
        while True:
            partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
            request = FetchRequest(
                max_wait_ms=100,
                min_bytes=1,
                max_bytes=1 << 20,
                topics=(FetchTopic(topic=TOPIC, partitions=(partition,)),),
            )
            answer = await connection.request(ApiKey.FETCH, FETCH_VERSION, request)
            row = answer.responses[0].partitions[0]
            assert row.error_code == 0
            for batch in _whole_batches(b"".join(row.records or ())):
                digest.update(batch)
                offset = int.from_bytes(batch[:8], "big") + int.from_bytes(batch[23:27], "big") + 1
            if offset >= row.high_watermark:
                return digest.hexdigest()
    finally:
        connection.close()


def _whole_batches(raw: bytes) -> Iterator[bytes]:
    position = 0
    while len(raw) - position >= 12:
        end = position + 12 + int.from_bytes(raw[position + 8 : position + 12], "big")
        if end > len(raw):
            return
        yield raw[position:end]
        position = end
