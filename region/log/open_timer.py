"""`python -m region.log.open_timer DIR`: prints how many seconds it takes to open a data directory.

`--write GIB --groups N` makes the directory first, as a process leaves it that is killed: nothing is closed. Before
the clock starts, the kernel is asked to forget the pages of its files.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from georelay.ids import BrokerId, Epoch, GroupId, Offset, RaftIndex, Term
from georelay.limits import KIB
from georelay.wire.crc import crc32c
from mesh.replication.stream_header import DIGEST_BYTES, EntryType, StreamHeader
from region.log.data_directory import DataDirectory
from region.log.entry import FIRST_CHAIN, Entry, EntryDraft, seal_entry
from region.log.flusher import Flusher, GroupWrite
from region.log.group_log import GroupLog
from region.log.manifest import Manifest

MESH: Final = "open-timer"
BROKER: Final = BrokerId(1)
PAYLOAD_BYTES: Final = 16 * KIB
ENTRIES_PER_WRITE: Final = 512
ENTRIES_PER_MANIFEST: Final = 2_048
RECORDS_PER_ENTRY: Final = 10
STATE_BYTES: Final = 2 * KIB


def write_directory(path: Path, *, size_bytes: int, groups: int) -> None:
    """Fill a new data directory with `groups` logs of equal size. Raises DataDirectoryError, OSError."""
    directory = DataDirectory.open(path, mesh_id=MESH, broker_id=BROKER)
    flusher = Flusher(directory.open_hard_states(), post=lambda _: None, on_failure=_fail, marks=directory.marks)
    entries_per_group = size_bytes // groups // PAYLOAD_BYTES
    for group in range(1, groups + 1):
        group_id = GroupId(group)
        log = directory.open_group(group_id)
        for write in _writes(group_id, log, entries_per_group):
            flusher.run_cycle([write])
    os.sync()


def _fail(error: Exception) -> None:
    raise error


def _writes(group_id: GroupId, log: GroupLog, count: int) -> Iterator[GroupWrite]:
    payload = os.urandom(PAYLOAD_BYTES)
    header = StreamHeader(
        type=EntryType.DATA,
        entry_region=1,
        record_count=RECORDS_PER_ENTRY,
        epoch=Epoch(1),
        base_offset=Offset(0),
        append_us=1,
        received_ns=1,
        max_timestamp_ms=1,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        payload_crc=crc32c(payload),
        digest=bytes(DIGEST_BYTES),
    )
    chain, index, manifested = FIRST_CHAIN, 0, 0
    while index < count:
        entries: list[Entry] = []
        for _ in range(min(ENTRIES_PER_WRITE, count - index)):
            draft = EntryDraft(header=replace(header, base_offset=Offset(index * RECORDS_PER_ENTRY)), payload=payload)
            index += 1
            entries.append(seal_entry(draft, term=Term(1), index=RaftIndex(index), previous_chain=chain))
            chain = entries[-1].chain
        manifest = None
        if index - manifested >= ENTRIES_PER_MANIFEST:
            manifested, last = index, entries[-1]
            manifest = Manifest(
                index=last.index,
                term=last.term,
                chain=last.chain,
                stream_part=last.stream_part,
                state=bytes(STATE_BYTES),
            )
        yield GroupWrite(group_id=group_id, log=log, token=None, entries=entries, manifest=manifest)


def forget_pages(path: Path) -> None:
    """Ask the kernel to drop what it holds of the files in memory; they are clean."""
    for file in path.rglob("*"):
        if file.is_file():
            handle = os.open(file, os.O_RDONLY)
            try:
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(handle)


def open_seconds(path: Path) -> float:
    """Open directory, hard states, every log and its newest manifest. Raises DataDirectoryError, LogCorrupt."""
    began = time.perf_counter()
    directory = DataDirectory.open(path, mesh_id=MESH, broker_id=BROKER)
    journal = directory.open_hard_states()
    logs = [directory.open_group(group_id) for group_id in directory.group_ids()]
    manifests = [log.manifest for log in logs]
    took = time.perf_counter() - began
    if not logs or None in manifests:
        raise SystemExit(f"{path} holds {len(logs)} logs, not all of them with a manifest: write more")
    journal.close()
    directory.close()
    return took


def main() -> int:
    """Write, or open and print the seconds."""
    parser = argparse.ArgumentParser(prog="python -m region.log.open_timer", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--write", type=float, metavar="GIB", help="make the directory, so large")
    parser.add_argument("--groups", type=int, default=16)
    options = parser.parse_args()
    if options.write is not None:
        write_directory(options.directory, size_bytes=int(options.write * 2**30), groups=options.groups)
        return 0
    forget_pages(options.directory)
    sys.stdout.write(f"{open_seconds(options.directory):.3f}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
