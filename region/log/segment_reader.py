"""Reads the segments of a group without a broker: offline, on a copy, or on a live directory.

It shares the entry format with the broker and nothing else: no index, no view, no recovery; files are read as bytes
from the first to the last. So it can serve as a second opinion on what a broker says it holds.

    python -m region.log.segment_reader DIR [--json] [--sha256 [--below OFFSET]]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from georelay.errors import DataDirectoryError
from mesh.replication.stream_header import OWNS_OFFSETS, EntryType
from region.log.entry import ENTRY_HEADER_BYTES, FIRST_CHAIN, Entry, EntryError, decode_entry, frame_bytes
from region.log.errors import LogCorrupt
from region.log.filesystem import FileSystem, OsFileSystem, read_file, tear_explains


def read_group(path: Path, fs: FileSystem | None = None) -> Iterator[Entry]:
    """Yield every entry of a group's folder: checksums, indexes and chain checked.

    The end of the last segment may be half written (a live broker, a crash): reading stops there without an error.
    Whether an entry is committed is not written in a log.

    Raises:
        LogCorrupt: damage or a gap before that.
        DataDirectoryError: not a group's folder.
    """
    fs = fs or OsFileSystem()
    if not fs.is_directory(path):
        raise DataDirectoryError(f"{path} is not a directory")
    segments = sorted(name for name in fs.list_directory(path) if name.endswith(".log"))
    index: int | None = None
    chain: int | None = FIRST_CHAIN
    for name in segments:
        raw, position = memoryview(read_file(fs, path / name)), 0
        if index is None:
            index = int(name.removesuffix(".log"))
            chain = FIRST_CHAIN if index == 1 else None
        if name != f"{index:020d}.log":
            raise LogCorrupt(path / name, 0, f"the segment before it ends at index {index - 1}")
        while position < len(raw):
            try:
                entry = decode_entry(raw, position, previous_chain=chain)
            except EntryError as error:
                if name == segments[-1] and _is_torn(raw, position, error):
                    return
                raise LogCorrupt(path / name, position, str(error)) from error
            if entry.index != index:
                raise LogCorrupt(path / name, position, f"index {entry.index} where {index} must be")
            yield entry
            position += len(entry.frame)
            index, chain = index + 1, entry.chain


def _is_torn(raw: memoryview, position: int, error: EntryError) -> bool:
    try:
        size = frame_bytes(raw, position)
    except EntryError:
        size = ENTRY_HEADER_BYTES
    return error.torn or tear_explains(raw[position : position + size], position)


def valid_branch(entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries that own offsets, without the orphan branches: offsets are dense in the result."""
    branch: list[Entry] = []
    for entry in entries:
        if entry.type is EntryType.EPOCH:
            while branch and branch[-1].next_offset > entry.base_offset:
                branch.pop()
        elif entry.type in OWNS_OFFSETS:
            branch.append(entry)
    return branch


def batches_sha256(path: Path, *, below: int | None = None, fs: FileSystem | None = None) -> str:
    """Return SHA-256 (hex) over the raw record batches of the valid branch, in offset order.

    Args:
        below: only batches that end at or below this offset; None: all.

    Raises:
        LogCorrupt, DataDirectoryError: as `read_group`.
    """
    digest = hashlib.sha256()
    for entry in valid_branch(read_group(path, fs)):
        if below is not None and entry.next_offset > below:
            break
        digest.update(entry.payload)
    return digest.hexdigest()


def _group_folders(path: Path) -> list[Path]:
    """Return the group folders meant by `path`: itself, or all groups of a data directory."""
    groups = path / "groups"
    if not groups.is_dir():
        return [path]
    return sorted((child for child in groups.iterdir() if child.name.isdigit()), key=lambda child: int(child.name))


def _as_row(group: str, entry: Entry) -> dict[str, object]:
    header = entry.header()
    return {
        "group": group,
        "index": entry.index,
        "term": entry.term,
        "type": entry.type.name,
        "epoch": header.epoch,
        "base_offset": header.base_offset,
        "record_count": header.record_count,
        "payload_bytes": len(entry.payload),
        "append_us": header.append_us,
        "received_ns": header.received_ns,
        "entry_region": header.entry_region,
        "max_timestamp_ms": header.max_timestamp_ms,
        "producer": [header.producer_id, header.producer_epoch, header.base_sequence],
        "chain": f"{entry.chain:08x}",
        "digest": header.digest.hex(),
    }


def _as_line(row: dict[str, object]) -> str:
    return (
        f"{row['group']:>8} {row['index']:>10} {row['term']:>6} {row['type']:<10} {row['epoch']:>5} "
        f"{row['base_offset']:>12} {row['record_count']:>8} {row['payload_bytes']:>9} {row['chain']}"
    )


_TITLE = (
    f"{'group':>8} {'index':>10} {'term':>6} {'type':<10} {'epoch':>5} "
    f"{'base offset':>12} {'records':>8} {'bytes':>9} chain"
)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return the exit status: 0 whole, 1 damaged or unreadable."""
    parser = argparse.ArgumentParser(
        prog="python -m region.log.segment_reader", description="List and verify the log entries of a broker's groups."
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="a group's folder, or a data directory")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    parser.add_argument("--sha256", action="store_true", help="print only a hash per group over its record batches")
    parser.add_argument("--below", type=int, metavar="OFFSET", help="with --sha256: batches that end at or below it")
    options = parser.parse_args(arguments)
    try:
        if not options.json and not options.sha256:
            sys.stdout.write(_TITLE + "\n")
        for folder in _group_folders(options.directory):
            if options.sha256:
                digest = batches_sha256(folder, below=options.below)
                about = {"group": folder.name, "sha256": digest}
                sys.stdout.write(f"{json.dumps(about) if options.json else f'{folder.name:>8} {digest}'}\n")
                continue
            for entry in read_group(folder):
                row = _as_row(folder.name, entry)
                sys.stdout.write(f"{json.dumps(row) if options.json else _as_line(row)}\n")
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the flush at exit fails again
        return 0
    except (DataDirectoryError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
