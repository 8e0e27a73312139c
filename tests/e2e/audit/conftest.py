"""Real regions whose logs can be changed while they are stopped, and the audit of them."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import struct
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import georelay
from georelay.wire.crc import crc32c
from georelay.wire.header import CRC_START
from loadtest.mesh_process import MeshProcess
from mesh.replication.stream_header import OWNS_OFFSETS, next_digest
from region.log.entry import Entry, EntryDraft, decode_entry, seal_entry

REGIONS = ("us", "eu", "ap")
CATCH_UP_S = 60.0
RECORDS = 150


@dataclass(frozen=True, slots=True)
class Audit:
    """How one run of the command ended."""

    code: int
    output: str
    error: str

    @property
    def document(self) -> dict[str, Any]:
        return dict(json.loads(self.output))


async def audit(mesh: MeshProcess, *arguments: str) -> Audit:
    """Run `georelay audit` as a user does."""
    command = (sys.executable, "-m", "georelay.cli", "audit", *arguments, "--gateway", mesh.gateway)
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, error = await process.communicate()
    assert process.returncode is not None
    return Audit(process.returncode, output.decode(), error.decode())


@dataclass(frozen=True, slots=True)
class Changed:
    """A mesh whose files were changed: the offsets of the record of another home, and of the damaged one."""

    mesh: MeshProcess
    written: int
    damaged: int


class AuditedMesh:
    """A mesh that can be stopped, changed on disk, and started again."""

    def __init__(self, directory: Path, *, regions: Sequence[str] = REGIONS, brokers_per_region: int = 1) -> None:
        self.directory = directory
        self._regions = ",".join(regions)
        self._brokers = brokers_per_region

    def process(self) -> MeshProcess:
        """Return the mesh, not yet started."""
        return MeshProcess(self.directory, regions=self._regions, brokers_per_region=self._brokers)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[MeshProcess]:
        async with self.process() as process:
            yield process
        (self.directory / "endpoints.json").unlink(missing_ok=True)

    async def fill(self, mesh: MeshProcess, topic: str, records: int) -> None:
        """Publish one record per batch, homed in us, and wait until every region has all of them."""
        async with georelay.connect(mesh.gateway, region="us") as client:
            await client.admin.create_topic(topic, home="us")
            async with client.producer() as producer:
                for number in range(records):
                    await producer.publish(topic, b"%s %04d" % (topic.encode(), number))
        await self.until(mesh, topic, records)

    async def until(self, mesh: MeshProcess, topic: str, records: int, *arguments: str) -> dict[str, Any]:
        """Wait until everybody who is asked says that all records are there; return that audit."""
        deadline = time.monotonic() + CATCH_UP_S
        while True:
            found = await audit(mesh, topic, "--json", *arguments)
            rows = found.document["streams"][0]["regions"] if found.output else []
            if rows and all(row["end"] == records for row in rows):
                return found.document
            assert time.monotonic() < deadline, (found.output, found.error)
            await asyncio.sleep(0.3)

    def change(
        self, region: str, old: bytes, new: bytes, *, with_chain: bool, unseen: bool = False, broker: int = 1
    ) -> int:
        """Change a record in the log of a broker that is stopped; return its offset.

        Every checksum fits afterwards. `with_chain`: the digests from there on too, as if another home had written it.
        `unseen`: the 32 bits of the log's own chain are what they were, so that the region sees nothing: by themselves
        its replicas notice one whose log does not continue the leader's, and copy it anew.
        """
        offset = -1
        groups = self.directory / "mesh" / "brokers" / f"{region}-{broker}" / "groups"
        for path in sorted(groups.glob("[0-9]*/*.log")):
            if old in path.read_bytes():
                offset = _rewrite(path, old, new, with_chain=with_chain, unseen=unseen)
                for state in (*path.parent.glob("*.index"), *path.parent.glob("*.manifest")):
                    state.unlink()  # made again from the log
        assert offset >= 0, f"{old!r} is not in {region}"
        return offset


def _rewrite(path: Path, old: bytes, new: bytes, *, with_chain: bool, unseen: bool) -> int:
    raw, frames, position, offset = path.read_bytes(), [], 0, -1
    chain, digest = 0, b""
    while position + 128 <= len(raw) and raw[position : position + 2] == b"GR":
        entry = decode_entry(raw, position)
        position += entry.size
        payload = bytes(entry.payload)
        if old in payload:
            payload, offset = payload.replace(old, new), entry.base_offset
            payload = payload[:17] + struct.pack(">I", crc32c(payload[CRC_START:])) + payload[CRC_START:]
        header = entry.header()
        if with_chain and offset >= 0:
            digest = _digest_of(entry, payload, digest)
        else:
            digest = header.digest
        sealed = _sealed(entry, _with(header, payload, digest), payload, chain)
        if unseen and offset >= 0:
            sealed = _sealed(entry, _unseen(entry, _with(header, payload, digest), payload, chain), payload, chain)
            assert sealed.chain == entry.chain
        chain = sealed.chain
        frames.append(bytes(sealed.frame))
    path.write_bytes(b"".join(frames) + raw[position:])
    return offset


def _sealed(entry: Entry, header: Any, payload: bytes, previous_chain: int) -> Entry:
    draft = EntryDraft(header=header, payload=payload)
    return seal_entry(draft, term=entry.term, index=entry.index, previous_chain=previous_chain)


def _unseen(entry: Entry, header: Any, payload: bytes, previous_chain: int) -> Any:
    """Return a header whose lower 32 bits of received_ns give the chain that the entry had: a CRC is linear."""
    high = header.received_ns >> 32 << 32

    def chain(low: int) -> int:
        changed = dataclasses.replace(header, received_ns=high | low)
        return _sealed(entry, changed, payload, previous_chain).chain

    zero = chain(0)
    solved: dict[int, tuple[int, int]] = {}  # by the highest bit: (what it changes, which bits do that)
    for bit in range(32):
        vector, made_of = chain(1 << bit) ^ zero, 1 << bit
        while vector and vector.bit_length() in solved:
            other, others = solved[vector.bit_length()]
            vector, made_of = vector ^ other, made_of ^ others
        solved[vector.bit_length()] = (vector, made_of)
    wanted, low = entry.chain ^ zero, 0
    while wanted:
        vector, made_of = solved[wanted.bit_length()]
        wanted, low = wanted ^ vector, low ^ made_of
    return dataclasses.replace(header, received_ns=high | low)


def _digest_of(entry: Entry, payload: bytes, before: bytes) -> bytes:
    if entry.type not in OWNS_OFFSETS:
        return before
    header = entry.header()
    return next_digest(before, epoch=header.epoch, first=header.base_offset, last=header.last_offset, batch=payload)


def _with(header: Any, payload: bytes, digest: bytes) -> Any:
    return dataclasses.replace(header, payload_crc=crc32c(payload), digest=digest)


class ThreeRegions:
    """A mesh that all tests of a file share: whole at first, then changed on disk and started again."""

    def __init__(self, directory: Path) -> None:
        self._audited = AuditedMesh(directory)
        self.mesh = self._audited.process()

    def start(self) -> None:
        asyncio.run(self.mesh.__aenter__())

    def fill(self, *topics: str) -> None:
        for topic in topics:
            asyncio.run(self._audited.fill(self.mesh, topic, RECORDS))

    def restart_with(self, change: Callable[[AuditedMesh], None], *topics: str) -> None:
        """Stop everything, change the files, start, and wait until every region has all records of the topics."""
        self.mesh.stop()
        (self._audited.directory / "endpoints.json").unlink(missing_ok=True)
        change(self._audited)
        self.start()
        for topic in topics:
            asyncio.run(self._audited.until(self.mesh, topic, RECORDS))


@pytest.fixture(scope="module")
def three_regions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeRegions]:
    """Three regions of one broker, started, with nothing in them."""
    regions = ThreeRegions(tmp_path_factory.mktemp("audited"))
    regions.start()
    try:
        yield regions
    finally:
        regions.mesh.stop()


@pytest.fixture(scope="module")
def whole(three_regions: ThreeRegions) -> MeshProcess:
    """The three regions with RECORDS records of orders and of shipments each."""
    three_regions.fill("orders", "shipments")
    return three_regions.mesh


@pytest.fixture(scope="module")
def changed(three_regions: ThreeRegions, whole: MeshProcess) -> Changed:
    """The same with a record changed in ap as another home would have written it, and one that fits nothing in eu."""
    places: list[int] = []

    def change(audited: AuditedMesh) -> None:
        places.append(audited.change("ap", b"orders 0123", b"orders ABCD", with_chain=True))
        places.append(audited.change("eu", b"shipments 0100", b"shipments ABCD", with_chain=False))

    three_regions.restart_with(change, "orders", "shipments")
    return Changed(mesh=whole, written=places[0], damaged=places[1])


@pytest.fixture(scope="session")
def records() -> int:
    """How many records a topic is filled with."""
    return RECORDS


@pytest.fixture
def replicated(tmp_path: Path) -> AuditedMesh:
    """Two regions of three brokers each."""
    return AuditedMesh(tmp_path, regions=("us", "eu"), brokers_per_region=3)


@pytest.fixture(scope="session")
def run_audit() -> Any:
    return audit
