"""A chain recomputed from stored entries: whatever contradicts itself is named."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest

from georelay.ids import Epoch, Offset, RaftIndex, RegionNumber, StreamKey, Term
from georelay.wire.batch import RecordDraft, build_batch
from georelay.wire.crc import crc32c
from georelay.wire.header import stamp
from mesh.replication.stream_header import EntryType, StreamHeader, first_digest, next_digest
from region.audit.deep import verify
from region.log.entry import Entry, EntryDraft, seal_entry

FIRST = first_digest(StreamKey(bytes(16), RegionNumber(0), 0))


def entry(values: list[bytes], *, at: int, before: bytes, epoch: int = 1, **changes: Any) -> Entry:
    batch = bytearray(build_batch([RecordDraft(value) for value in values], timestamps_ms=5))
    stamp(batch, base_offset=changes.pop("stamped", at), epoch=changes.pop("stamped_epoch", epoch))
    payload = bytes(changes.pop("payload", batch))
    last = Offset(at + len(values) - 1)
    header = StreamHeader(
        type=EntryType.DATA,
        entry_region=1,
        record_count=len(values),
        epoch=Epoch(epoch),
        base_offset=Offset(at),
        append_us=1,
        received_ns=1,
        max_timestamp_ms=5,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        payload_crc=crc32c(payload),
        digest=next_digest(before, epoch=Epoch(epoch), first=Offset(at), last=last, batch=payload),
    )
    draft = EntryDraft(header=replace(header, **changes), payload=payload)
    return seal_entry(draft, term=Term(1), index=RaftIndex(at + 1), previous_chain=0)


def log(count: int) -> list[Entry]:
    found, before = [], FIRST
    for row in range(count):
        found.append(entry([b"%d" % row, b"x"], at=2 * row, before=before))
        before = found[-1].header().digest
    return found


def test_an_intact_log_gives_its_own_end() -> None:
    entries = log(5)
    following, digest, size, fault = verify(entries, FIRST)
    assert (following, digest, fault) == (10, entries[-1].header().digest, None)
    assert size == sum(row.size for row in entries)


def test_nothing_read_leaves_the_chain_where_it_is() -> None:
    assert verify([], FIRST) == (0, FIRST, 0, None)


def test_a_chain_that_was_rewritten_is_named_at_its_first_batch() -> None:
    entries = log(5)
    other = entry([b"other", b"x"], at=4, before=entries[1].header().digest, digest=entries[2].header().digest)
    following, digest, _, fault = verify([*entries[:2], other, *entries[3:]], FIRST)
    assert fault is not None
    assert (fault.first, fault.following, fault.what) == (4, 6, "digest chain")
    assert (following, digest) == (4, entries[1].header().digest)


def test_a_wrong_digest_handed_in_is_found_at_once() -> None:
    *_, fault = verify(log(2), bytes(16))
    assert fault is not None and fault.first == 0


@pytest.mark.parametrize(
    ("changes", "what"),
    [({"stamped": 3}, "offset inside the batch"), ({"stamped_epoch": 9}, "epoch inside the batch")],
)
def test_what_is_stamped_into_a_batch_is_checked(changes: dict[str, Any], what: str) -> None:
    *_, fault = verify([entry([b"a"], at=0, before=FIRST, **changes)], FIRST)
    assert fault is not None and fault.what == what


def test_a_batch_with_a_wrong_checksum_of_its_own_is_named() -> None:
    batch = bytearray(build_batch([RecordDraft(b"a")], timestamps_ms=5))
    stamp(batch, base_offset=0, epoch=1)
    struct.pack_into(">I", batch, 17, 12345)
    *_, fault = verify([entry([b"a"], at=0, before=FIRST, payload=batch)], FIRST)
    assert fault is not None and "checksum" in fault.what


def test_a_hole_between_batches_is_named() -> None:
    entries = log(4)
    *_, fault = verify([*entries[:1], *entries[2:]], FIRST)
    assert fault is not None
    assert (fault.what, fault.stored, fault.computed) == ("offset", "4", "2")
