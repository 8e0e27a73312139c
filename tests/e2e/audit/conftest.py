"""Three real regions of one broker each whose logs can be changed while they are stopped, and the audit of them."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import struct
import sys
import time
from collections.abc import AsyncIterator
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


class AuditedMesh:
    """A mesh that can be stopped, changed on disk, and started again."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @asynccontextmanager
    async def running(self) -> AsyncIterator[MeshProcess]:
        async with MeshProcess(self.directory, regions=",".join(REGIONS), brokers_per_region=1) as process:
            yield process
        (self.directory / "endpoints.json").unlink(missing_ok=True)

    async def fill(self, mesh: MeshProcess, topic: str, records: int) -> None:
        """Publish one record per batch, homed in us, and wait until every region has all of them."""
        async with georelay.connect(mesh.gateway, region="us") as client:
            await client.admin.create_topic(topic, home="us")
            async with client.producer() as producer:
                for number in range(records):
                    await producer.publish(topic, b"record %04d" % number)
        await self.until(mesh, topic, records)

    async def until(self, mesh: MeshProcess, topic: str, records: int) -> dict[str, Any]:
        """Wait until all regions say that they have so many records; return that audit."""
        deadline = time.monotonic() + CATCH_UP_S
        while True:
            found = await audit(mesh, topic, "--json")
            rows = found.document["streams"][0]["regions"] if found.output else []
            if rows and all(row["end"] == records for row in rows):
                return found.document
            assert time.monotonic() < deadline, (found.output, found.error)
            await asyncio.sleep(0.3)

    def change(self, region: str, old: bytes, new: bytes, *, with_chain: bool) -> int:
        """Change a record in the log of a region that is stopped; return its offset.

        Every checksum fits afterwards. `with_chain`: the digests from there on too, as if another home had written it.
        """
        offset = -1
        for path in sorted((self.directory / "mesh" / "brokers" / f"{region}-1" / "groups").glob("[0-9]*/*.log")):
            if old in path.read_bytes():
                offset = _rewrite(path, old, new, with_chain=with_chain)
                for state in (*path.parent.glob("*.index"), *path.parent.glob("*.manifest")):
                    state.unlink()  # made again from the log
        assert offset >= 0, f"{old!r} is not in {region}"
        return offset


def _rewrite(path: Path, old: bytes, new: bytes, *, with_chain: bool) -> int:
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
        sealed = seal_entry(
            EntryDraft(header=_with(header, payload, digest), payload=payload),
            term=entry.term,
            index=entry.index,
            previous_chain=chain,
        )
        chain = sealed.chain
        frames.append(bytes(sealed.frame))
    path.write_bytes(b"".join(frames) + raw[position:])
    return offset


def _digest_of(entry: Entry, payload: bytes, before: bytes) -> bytes:
    if entry.type not in OWNS_OFFSETS:
        return before
    header = entry.header()
    return next_digest(before, epoch=header.epoch, first=header.base_offset, last=header.last_offset, batch=payload)


def _with(header: Any, payload: bytes, digest: bytes) -> Any:
    return dataclasses.replace(header, payload_crc=crc32c(payload), digest=digest)


@pytest.fixture
def audited(tmp_path: Path) -> AuditedMesh:
    return AuditedMesh(tmp_path)


@pytest.fixture
def run_audit() -> Any:
    return audit
