"""Recomputes a digest chain from the stored bytes: the only comparison that does not trust what a log says of itself.

Rule 1: what is compared is what a reader would get: entries of the present history, decoded from the stored bytes (the
        checksums of header and payload are checked there), then the batch's own CRC, its stamped offset and epoch,
        and the chain.
Rule 2: in a thread, a few MiB at a time; the loop pauses between them so that a broker reads at most DEEP_BYTES_PER_S
        for all audits together.
Rule 3: one log is read at a time; a few may wait, the rest is told that the broker is busy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

from georelay.clock import Clock
from georelay.errors import Busy, CorruptRecordBatch, OffsetOutOfRange, Unavailable
from georelay.ids import Epoch, Offset
from georelay.limits import MIB
from georelay.wire.header import parse_header, validate
from mesh.replication.stream_header import DIGEST_BYTES, next_digest
from region.audit.questions import UNKNOWN_FROM, WHAT_CHARS_MAX, DeepAsked, DeepFault, DeepPiece
from region.log.entry import Entry
from region.topics.hosted_stream import HostedStream

READ_BYTES: Final = 4 * MIB
PIECE_BYTES: Final = 32 * MIB  # answered with at most so much behind it: about a second
DEEP_BYTES_PER_S: Final = 64 * MIB
WAITING_MAX: Final = 8
_NS_PER_S: Final = 1_000_000_000


class DeepReader:
    """Reads logs of one broker."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._reading = asyncio.Lock()
        self._waiting = 0

    async def piece(self, stream: HostedStream, asked: DeepAsked) -> DeepPiece:
        """Recompute the chain from `asked.offset` on, for a while.

        Raises:
            Busy: too many wait. Unavailable: it cannot be read, or is damaged and being fetched again.
            OffsetOutOfRange: no batch begins at `asked.offset`, or it is deleted by now.
        """
        if self._waiting >= WAITING_MAX:
            raise Busy(f"{self._waiting} deep audits wait for this broker already")
        self._waiting += 1
        try:
            async with self._reading:
                return await self._read(stream, asked)
        finally:
            self._waiting -= 1

    async def _read(self, stream: HostedStream, asked: DeepAsked) -> DeepPiece:
        start = stream.start
        begins = asked.offset == UNKNOWN_FROM
        first = start.boundary if begins else Offset(asked.offset)
        if first < start.boundary:
            raise OffsetOutOfRange(f"offset {first} of {stream.key} was deleted while it was audited")
        offset, digest, size = first, start.digest if begins else asked.digest, 0
        fault: DeepFault | None = None
        while fault is None and offset < stream.high_watermark and size < PIECE_BYTES:
            before_ns = self._clock.monotonic_ns()
            read = partial(stream.disk.read_from_offset, offset, READ_BYTES, up_to_index=stream.commit_index)
            offset, digest, some, fault = await stream.off_loop(partial(_verified_read, read, offset, digest))
            if not some:
                break  # cut off, or deleted, meanwhile: the next piece says so
            size += some
            spent_s = (self._clock.monotonic_ns() - before_ns) / _NS_PER_S
            await asyncio.sleep(max(some / DEEP_BYTES_PER_S - spent_s, 0))
        return DeepPiece(
            first=first, following=offset, end=stream.high_watermark, digest=digest, size_bytes=size, fault=fault
        )


def _verified_read(
    read: partial[list[Entry]], offset: Offset, digest: bytes
) -> tuple[Offset, bytes, int, DeepFault | None]:
    """Return (next offset, chain before it, bytes read, what is wrong) (in a thread)."""
    entries = read()
    if entries and entries[0].base_offset != offset:
        raise OffsetOutOfRange(f"no batch begins at offset {offset}: the log changed while it was audited")
    return verify(entries, digest)


def verify(entries: Sequence[Entry], digest: bytes) -> tuple[Offset, bytes, int, DeepFault | None]:
    """Recompute the chain over contiguous entries that own offsets; `digest`: the chain before the first.

    Returns:
        (first offset not verified, the chain before it, bytes looked at, the first that is wrong).
    """
    offset = entries[0].base_offset if entries else Offset(0)
    size = 0
    for entry in entries:
        size += entry.size
        header = entry.header()
        computed = next_digest(
            digest, epoch=header.epoch, first=entry.base_offset, last=header.last_offset, batch=entry.payload
        )
        wrong = _wrong_in(entry, offset)
        if wrong is None and computed != header.digest:
            wrong = ("digest chain", header.digest.hex(), computed.hex())
        if wrong is not None:
            what, stored, other = (text[:WHAT_CHARS_MAX] for text in wrong)
            fault = DeepFault(
                first=entry.base_offset, following=entry.next_offset, what=what, stored=stored, computed=other
            )
            return offset, digest, size, fault
        offset, digest = entry.next_offset, computed
    assert len(digest) == DIGEST_BYTES
    return offset, digest, size, None


def _wrong_in(entry: Entry, offset: Offset) -> tuple[str, str, str] | None:
    """Return (what, as stored, as computed) of an entry that contradicts itself or its place."""
    if entry.base_offset != offset:
        return "offset", str(entry.base_offset), str(offset)
    try:
        validate(entry.payload, from_client=False)
    except CorruptRecordBatch as error:
        return str(error), "", ""
    batch = parse_header(entry.payload)
    if batch.base_offset != entry.base_offset:
        return "offset inside the batch", str(batch.base_offset), str(entry.base_offset)
    epoch: Epoch = entry.header().epoch
    if batch.epoch != epoch:
        return "epoch inside the batch", str(batch.epoch), str(epoch)
    return None


def check_readable(stream: HostedStream) -> None:
    """Raise Unavailable while this broker's log of the stream is being repaired."""
    if stream.disk.is_damaged:
        raise Unavailable(f"the log of {stream.key} is damaged on this broker and being repaired")
