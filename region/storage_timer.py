"""`python -m region.storage_timer DIR`: prints what one operation of the log and of the codec costs, as JSON.

It uses only what older code has too: run as a file with another checkout in PYTHONPATH, it measures that one
(loadtest.bench.storage). Of each case it gives wall and CPU time of one operation in us, several times over; the most
bytes that one operation held beyond what was there before; the memory blocks that its result keeps; and its syncs.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from georelay.ids import BrokerId, Epoch, GroupId, Offset, RaftIndex, Term
from georelay.wire.batch import build_batch, iterate_records, parse_header
from georelay.wire.crc import crc32c
from mesh.replication.stream_header import DIGEST_BYTES, EntryType, StreamHeader
from region.log.data_directory import DataDirectory
from region.log.entry import FIRST_CHAIN, Entry, EntryDraft, decode_entry, seal_entry
from region.log.group_log import GroupLog

KEPT: Final = 50  # results that are kept to count their blocks
VALUE: Final = b"x" * 100
BULK: Final = 100  # records of a large batch, and entries of a large append
READ_BYTES_MAX: Final = 1 << 20
SHARE_OF_LONG: Final = 20


@dataclass(frozen=True, slots=True)
class Case:
    """One operation: `items` is endless, and making an item is not in the operation's time."""

    name: str
    items: Iterator[object]
    operation: Callable[[object], object]
    share: int = 1  # of the operations asked for, one in so many: this one takes longer


def draft(offset: int, records: int) -> EntryDraft:
    """Return an entry with a batch of so many records of 100 bytes."""
    payload = build_batch([(None, VALUE, ())] * records, timestamps_ms=1)
    header = StreamHeader(
        type=EntryType.DATA,
        entry_region=1,
        record_count=records,
        epoch=Epoch(1),
        base_offset=Offset(offset),
        append_us=1,
        received_ns=1,
        max_timestamp_ms=1,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        payload_crc=crc32c(payload),
        digest=bytes(DIGEST_BYTES),
    )
    return EntryDraft(header=header, payload=payload)


def entries(records: int) -> Iterator[Entry]:
    """Return the entries of a log, one after the other, without an end."""
    chain = FIRST_CHAIN
    for number in itertools.count():
        made = draft(number * records, records)
        entry = seal_entry(made, term=Term(1), index=RaftIndex(number + 1), previous_chain=chain)
        chain = entry.chain
        yield entry


def codec_cases() -> Iterator[Case]:
    """Return the operations without a disk."""
    for records in (1, BULK):
        rows = [(None, VALUE, ())] * records
        batch, made = build_batch(rows, timestamps_ms=1), draft(0, records)
        frame = bytes(next(entries(records)).frame)
        for name, operation in (
            ("codec: build a batch", lambda _, rows=rows: build_batch(rows, timestamps_ms=1)),
            ("codec: check the header of a batch", lambda _, batch=batch: parse_header(batch)),
            ("codec: read the records of a batch", lambda _, batch=batch: list(iterate_records(batch))),
            ("log: seal an entry", lambda _, made=made: _sealed(made)),
            ("log: decode an entry", lambda _, frame=frame: decode_entry(frame)),
        ):
            yield Case(f"{name} of {records}", itertools.repeat(None), operation)


def _sealed(made: EntryDraft) -> Entry:
    return seal_entry(made, term=Term(1), index=RaftIndex(1), previous_chain=FIRST_CHAIN)


def log_cases(directory: DataDirectory) -> Iterator[Case]:
    """Return the operations on logs of their own in a data directory."""
    logs = (directory.open_group(GroupId(number)) for number in itertools.count(1))
    for count, records in ((1, 1), (BULK, 1), (1, BULK)):
        for sync in (False, True):
            name = f"log: append{' and sync' if sync else ''} {count} x {records} records"
            share = SHARE_OF_LONG if sync or count > 1 else 1
            yield Case(name, _several(entries(records), count), _appending(next(logs), sync=sync), share)
    written = next(logs)
    written.append(list(itertools.islice(entries(1), 1_000)))
    written.sync()
    for name, last in (("1 entry", 2), (f"{BULK} entries", BULK + 1)):
        read = partial(written.read_entries, RaftIndex(1), RaftIndex(last), READ_BYTES_MAX)
        yield Case(f"log: read {name}", itertools.repeat(None), _alone(read), SHARE_OF_LONG)
    find = partial(written.read_from_offset, Offset(990), 1)
    yield Case("log: find an offset", itertools.repeat(None), _alone(find), SHARE_OF_LONG)


def _alone(operation: Callable[[], object]) -> Callable[[object], object]:
    return lambda _: operation()


def _several(source: Iterable[Entry], count: int) -> Iterator[list[Entry]]:
    one = iter(source)
    while True:
        yield list(itertools.islice(one, count))


def _appending(log: GroupLog, *, sync: bool) -> Callable[[object], int]:
    def append(several: object) -> int:
        assert isinstance(several, list)
        log.append(several)
        return log.sync() if sync else 0

    return append


def measure(case: Case, operations: int, repeats: int) -> dict[str, Any]:
    """Return the figures of a case; `operations` are timed together, `repeats` times."""
    count = max(1, operations // case.share)
    wall_us, cpu_us = [], []
    operation, syncs = case.operation, 0
    for _ in range(repeats + 1):  # the first one warms up
        items = list(itertools.islice(case.items, count))
        gc.collect()
        gc.disable()
        wall, cpu = time.perf_counter_ns(), time.process_time_ns()
        for item in items:
            result = operation(item)
        wall_us.append((time.perf_counter_ns() - wall) / count / 1e3)
        cpu_us.append((time.process_time_ns() - cpu) / count / 1e3)
        gc.enable()
        syncs = result if isinstance(result, int) else 0
    peak_bytes, blocks = _allocations(case)
    return {"wall_us": wall_us[1:], "cpu_us": cpu_us[1:], "peak_bytes": peak_bytes, "blocks": blocks, "syncs": syncs}


def _allocations(case: Case) -> tuple[int, float]:
    items = list(itertools.islice(case.items, 2 * KEPT))
    kept: list[object] = [None] * KEPT
    gc.collect()
    before = sys.getallocatedblocks()
    for row in range(KEPT):
        kept[row] = case.operation(items[row])
    blocks = (sys.getallocatedblocks() - before) / KEPT
    tracemalloc.start()
    peaks = []
    for item in items[KEPT:]:
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        case.operation(item)
        peaks.append(tracemalloc.get_traced_memory()[1] - held)
    tracemalloc.stop()
    return sorted(peaks)[KEPT // 2], blocks


def main() -> int:
    """Measure all cases and print them."""
    parser = argparse.ArgumentParser(prog="python -m region.storage_timer", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--operations", type=int, default=2_000)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    directory = DataDirectory.open(options.directory, mesh_id="storage-timer", broker_id=BrokerId(1))
    cases = [*codec_cases(), *log_cases(directory)]
    found = {case.name: measure(case, options.operations, options.repeats) for case in cases}
    directory.close()
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
