"""Writes trace files as brokers do, and breaks some of them.

Rule 1: what is written is what brokers write: names, folders, metadata, row numbers, encodings, page checksums.
Rule 2: every row that cannot reach a reader is known: `write` returns which ones do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from georelay.trace.files import GATEWAY_WRITER_FIRST, TraceFileMetadata, TraceFileName, partition_path
from georelay.trace.histogram import GRID
from georelay.trace.kinds import TraceKind
from georelay.trace.schema import SCHEMAS
from sla.generate.request import FILE_FAULTS, Fault, FaultKind
from sla.generate.world import NS_PER_S, World

ROWS_PER_FILE_MAX: Final = 131_072
HOUR_S: Final = 3_600
TORN_SHARE: Final = 0.6  # of a file that is left
_UNREADABLE: Final = frozenset(
    {FaultKind.CORRUPT_FILE, FaultKind.TORN_FILE, FaultKind.EMPTY_FILE, FaultKind.WRONG_SCHEMA}
)
_DICTIONARY: Final = {
    kind: [field.name for field in schema if pa.types.is_string(field.type)] for kind, schema in SCHEMAS.items()
}
_DELTA: Final = {
    kind: {field.name: "DELTA_BINARY_PACKED" for field in schema if pa.types.is_int64(field.type)}
    for kind, schema in SCHEMAS.items()
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """One file of the trace directory, or one that never came (`path` "").

    Args:
        path: relative to the trace directory. hour_s: the hour of its folder. broken: what was done to it.
        rows, first_row_seq, dropped: as in its metadata.
    """

    path: str
    kind: TraceKind
    region: str
    writer: str
    boot_id: str
    hour_s: int
    rows: int
    first_row_seq: int
    dropped: int
    size_bytes: int
    broken: FaultKind | None

    @property
    def is_readable(self) -> bool:
        """Return whether a reader gets its rows."""
        return bool(self.path) and self.broken not in _UNREADABLE


@dataclass(slots=True)
class _Writer:
    region: str
    broker: int
    boot_id: str
    next_row: int = 0
    dropped: int = 0

    @property
    def name(self) -> str:
        return f"{self.region}/{self.broker}"


class TraceFilesWriter:
    """All writers of a world. `files` lists what was written and what was not."""

    def __init__(self, world: World, directory: Path) -> None:
        self._world = world
        self._directory = directory
        self._writers: dict[tuple[TraceKind, int], _Writer] = {}
        self._faults = world.of_kind(*FILE_FAULTS)
        self.files: list[WrittenFile] = []

    def write(
        self, kind: TraceKind, *, region: int, broker: int, table: pa.Table, span_ns: tuple[int, int], opened_ns: int
    ) -> npt.NDArray[np.bool_]:
        """Write the rows that one writer has of a chunk; return for each whether it reaches a reader.

        Args:
            broker: its id, of a gateway see `gateway_number`.
            span_ns: true [start, end) of the chunk. opened_ns: the writer's clock when the first row came.
        """
        writer = self._writer(kind, region, broker)
        reaches = np.full(table.num_rows, True)
        fault = self._fault_of(kind, region, span_ns)
        start = 0
        if fault is not None and fault.kind is FaultKind.DROPPED_ROWS:
            start = min(fault.count, table.num_rows)
            reaches[:start] = False
            writer.next_row += start
            writer.dropped += start
            fault = None
        for first, part in _parts(table, start):
            file = self._write_part(kind, writer, part, span_ns, opened_ns, fault)
            reaches[first : first + part.num_rows] = file.is_readable
            fault = None  # one file is broken, not all of a chunk
        return reaches

    def gateway_number(self, region: int) -> int:
        """Return the number under which a region's gateway writes."""
        return GATEWAY_WRITER_FIRST + 1 + region

    def _writer(self, kind: TraceKind, region: int, broker: int) -> _Writer:
        found = self._writers.get((kind, broker))
        if found is None:
            boot_id = hashlib.blake2b(f"{self._world.request.seed}/{broker}".encode(), digest_size=6).hexdigest()
            found = self._writers[kind, broker] = _Writer(self._world.regions[region], broker, boot_id)
        return found

    def _fault_of(self, kind: TraceKind, region: int, span_ns: tuple[int, int]) -> Fault | None:
        for fault in self._faults:
            at_ns, _ = self._world.span_ns(fault)
            if fault.rows is kind and self._world.number(fault.region) == region and at_ns < span_ns[1]:
                self._faults.remove(fault)
                return fault
        return None

    def _write_part(
        self,
        kind: TraceKind,
        writer: _Writer,
        part: pa.Table,
        span_ns: tuple[int, int],
        opened_ns: int,
        fault: Fault | None,
    ) -> WrittenFile:
        first = writer.next_row
        writer.next_row += part.num_rows
        opened_ns += HOUR_S * NS_PER_S if self._meets(FaultKind.LATE_TRACES, writer.region, span_ns) else 0
        folder = partition_path(writer.region, opened_ns)
        name = TraceFileName(kind=kind, broker=writer.broker, boot_id=writer.boot_id, sequence=first)
        broken = None if fault is None else fault.kind
        if self._meets(FaultKind.SILENT_REGION, writer.region, span_ns):
            broken = FaultKind.SILENT_REGION
        is_there = broken not in (FaultKind.SILENT_REGION, FaultKind.MISSING_FILE)
        size_bytes = 0
        if is_there:
            metadata = TraceFileMetadata(
                kind=kind,
                writer=writer.name,
                boot_id=writer.boot_id,
                first_row_seq=first,
                last_row_seq=first + part.num_rows - 1,
                rows=part.num_rows,
                dropped=writer.dropped,
                hist_grid=GRID,
            )
            path = self._directory / folder / str(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            _write_parquet(path, kind, _stamped(kind, part, writer.boot_id, first), metadata, broken)
            size_bytes = path.stat().st_size
        file = WrittenFile(
            path=str(folder / str(name)) if is_there else "",
            kind=kind,
            region=writer.region,
            writer=writer.name,
            boot_id=writer.boot_id,
            hour_s=opened_ns // NS_PER_S // HOUR_S * HOUR_S,
            rows=part.num_rows,
            first_row_seq=first,
            dropped=writer.dropped,
            size_bytes=size_bytes,
            broken=broken,
        )
        self.files.append(file)
        return file

    def _meets(self, kind: FaultKind, region: str, span_ns: tuple[int, int]) -> bool:
        for fault in self._world.of_kind(kind):
            start, end = self._world.span_ns(fault)
            if fault.region == region and start < span_ns[1] and end > span_ns[0]:
                return True
        return False


def _parts(table: pa.Table, start: int) -> Iterator[tuple[int, pa.Table]]:
    for first in range(start, table.num_rows, ROWS_PER_FILE_MAX):
        yield first, table.slice(first, ROWS_PER_FILE_MAX)


def _stamped(kind: TraceKind, table: pa.Table, boot_id: str, first: int) -> pa.Table:
    """Fill in what only the writer knows: row numbers and its run."""
    if kind is TraceKind.DELIVERY:
        table = _with(table, "row_seq", pa.array(np.arange(first, first + table.num_rows, dtype=np.int64)))
    if kind in (TraceKind.DELIVERY, TraceKind.CLOCK):
        table = _with(table, "boot_id", pa.repeat(pa.scalar(boot_id), table.num_rows))
    return table


def _with(table: pa.Table, name: str, values: Any) -> pa.Table:
    index = table.schema.get_field_index(name)
    return table.set_column(index, table.schema.field(index), values)


def _write_parquet(
    path: Path, kind: TraceKind, table: pa.Table, metadata: TraceFileMetadata, broken: FaultKind | None
) -> None:
    delta = dict(_DELTA[kind])
    if broken is FaultKind.WRONG_SCHEMA:
        name = next(field.name for field in table.schema if pa.types.is_int64(field.type))
        index = table.schema.get_field_index(name)
        table = table.set_column(index, name, table.column(index).cast(pa.string()))
        del delta[name]
    if broken is FaultKind.OLD_SCHEMA:
        table = table.drop_columns([SCHEMAS[kind].names[-1]])
        metadata = replace(metadata, schema_version=1)
    pq.write_table(
        table.replace_schema_metadata(metadata.encode()),
        path,
        row_group_size=ROWS_PER_FILE_MAX,
        compression="zstd",
        use_dictionary=_DICTIONARY[kind],
        column_encoding=delta,
        write_page_checksum=True,
    )
    if broken is FaultKind.EMPTY_FILE:
        path.write_bytes(b"")
    elif broken is FaultKind.TORN_FILE:
        raw = path.read_bytes()
        path.write_bytes(raw[: int(len(raw) * TORN_SHARE)])
    elif broken is FaultKind.CORRUPT_FILE:
        _flip_bit(path)


def _flip_bit(path: Path) -> None:
    """Flip one bit in the last page of the first column: the footer stays whole, the sums would be wrong."""
    with pq.ParquetFile(path) as file:
        column = file.metadata.row_group(0).column(0)
        start = column.dictionary_page_offset or column.data_page_offset
        position = start + column.total_compressed_size - 1
    raw = bytearray(path.read_bytes())
    raw[position] ^= 0x10
    path.write_bytes(bytes(raw))
