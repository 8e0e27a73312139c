"""From spool to Parquet: the file appears whole or not at all, and again under the same name after a crash.

Rule 1: a file is written under a hidden name, synced, renamed, its folder synced; then the spool is removed. A crash
        in between makes the same file again, byte for byte in its rows, in the same place.
Rule 2: a file holds consecutive row numbers; a jump inside a spool begins another file.
Rule 3: what is behind the first damage of a spool is not read: its rows are missing in the numbers.
Rule 4: a spool whose header is whole and of a version that this program does not know stays for one that does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import structlog

from georelay.trace.files import (
    IN_PROGRESS_PREFIX,
    SPOOL_FOLDER,
    TraceFileMetadata,
    TraceFileName,
    broker_of_spool,
    partition_path,
)
from georelay.trace.histogram import GRID
from georelay.trace.kinds import TraceKind
from georelay.trace.schema import SCHEMAS
from georelay.trace.spool import Spool, SpoolError, SpoolHeader, SpoolRows, bodies, read_spool
from mesh.tracing.pace import no_rest

ROWS_PER_FILE_MAX: Final = 131_072  # one row group; a spool is rolled when it has so many
SPOOL_BYTES_MAX: Final = 64 << 20  # ... or is so large

_DELTA_COLUMNS: Final = {
    kind: {field.name: "DELTA_BINARY_PACKED" for field in schema if pa.types.is_int64(field.type)}
    for kind, schema in SCHEMAS.items()
}
_DICTIONARY_COLUMNS: Final = {
    kind: [field.name for field in schema if pa.types.is_string(field.type)] for kind, schema in SCHEMAS.items()
}

_Frame = tuple[SpoolRows, Any]  # and its Arrow record batch

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rolled:
    """What became of one spool: its files, their rows, the bytes behind its first damage; or that it stays."""

    files: tuple[Path, ...] = ()
    rows: int = 0
    lost_bytes: int = 0
    is_left: bool = False


def roll(spool_path: Path, directory: Path, *, rest: Callable[[], None] = no_rest) -> Rolled:
    """Write the rows of a spool into files below `directory` and remove it.

    Args:
        rest: called between two pieces of work.

    Raises:
        OSError: the disk failed; the spool is as it was.
    """
    raw = spool_path.read_bytes()
    try:
        spool = read_spool(raw)
    except SpoolError as error:
        if next(bodies(raw), None) is not None:
            log.warning("trace.spool_unknown", path=str(spool_path), reason=str(error))
            return Rolled(is_left=True)
        size_bytes = len(raw)  # not even its first frame was whole: a process died while it began
        log.warning("trace.spool_empty", path=str(spool_path), reason=str(error), lost_bytes=size_bytes)
        spool_path.unlink()
        return Rolled(lost_bytes=size_bytes)
    batches, lost_bytes = _readable(spool, rest)
    files = tuple(_write(spool.header, run, directory, rest) for run in _runs(batches))
    rows = sum(frame.rows for frame, _ in batches)
    if lost_bytes:
        log.warning("trace.spool_damaged", path=str(spool_path), rows=rows, lost_bytes=lost_bytes)
    spool_path.unlink()
    return Rolled(files=files, rows=rows, lost_bytes=lost_bytes)


def left_over(directory: Path, broker: int, boot_id: str) -> list[Path]:
    """Return the spools of the earlier runs of a broker, oldest first by name."""
    folder = directory / SPOOL_FOLDER
    if not folder.is_dir():
        return []
    paths = (path for path in folder.iterdir() if broker_of_spool(path.name) == broker)
    return sorted(path for path in paths if path.name.split("-")[2] != boot_id)


def remove_unfinished(directory: Path, broker: int) -> None:
    """Remove the hidden files that this broker's earlier runs did not finish; their rows are in the spools."""
    for kind in TraceKind:
        for path in directory.glob(f"{IN_PROGRESS_PREFIX}{kind.value}-{broker}-*"):
            path.unlink(missing_ok=True)


def _readable(spool: Spool, rest: Callable[[], None]) -> tuple[list[_Frame], int]:
    """Return the frames whose rows can be read, up to the first that cannot, and the bytes behind it."""
    frames: list[_Frame] = []
    for index, frame in enumerate(spool.rows):
        try:
            frames.append((frame, frame.batch(spool.header.kind, spool.header.schema_version)))
        except SpoolError as error:  # its checksum is right: it was written so
            log.warning("trace.frame_unreadable", kind=spool.header.kind.value, reason=str(error))
            return frames, spool.lost_bytes + sum(len(lost.message) for lost in spool.rows[index:])
        rest()
    return frames, spool.lost_bytes


def _runs(frames: Iterable[_Frame]) -> Iterator[list[_Frame]]:
    """Yield the frames in pieces of consecutive row numbers, each of one file."""
    run: list[_Frame] = []
    rows, following = 0, 0
    for frame, batch in frames:
        if run and (frame.first_row_seq != following or rows + frame.rows > ROWS_PER_FILE_MAX):
            yield run
            run, rows = [], 0
        run.append((frame, batch))
        rows += frame.rows
        following = frame.first_row_seq + frame.rows
    if run:
        yield run


def _write(header: SpoolHeader, run: list[_Frame], directory: Path, rest: Callable[[], None]) -> Path:
    kind, first = header.kind, run[0][0].first_row_seq
    table = pa.Table.from_batches([batch for _, batch in run])
    metadata = TraceFileMetadata(
        kind=kind,
        writer=f"{header.region}/{header.broker}",
        boot_id=header.boot_id,
        first_row_seq=first,
        last_row_seq=first + table.num_rows - 1,
        rows=table.num_rows,
        dropped=run[-1][0].dropped,
        hist_grid=GRID,
    )
    name = TraceFileName(kind=kind, broker=header.broker, boot_id=header.boot_id, sequence=first)
    folder = directory / partition_path(header.region, header.opened_ns)
    folder.mkdir(parents=True, exist_ok=True)
    in_progress = directory / f"{IN_PROGRESS_PREFIX}{name}"
    pq.write_table(
        table.replace_schema_metadata(metadata.encode()),
        in_progress,
        row_group_size=ROWS_PER_FILE_MAX,
        compression="zstd",
        use_dictionary=_DICTIONARY_COLUMNS[kind],
        column_encoding=_DELTA_COLUMNS[kind],
        write_page_checksum=True,
    )
    rest()
    sync(in_progress)
    in_progress.rename(folder / str(name))
    sync(folder)
    return folder / str(name)


def sync(path: Path) -> None:
    """Make a file, or the names in a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
