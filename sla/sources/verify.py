"""Proves trace files readable before a job counts them, or sets them aside with a reason of one line.

Rule 1: a file is never half counted: it is good as a whole, or none of its rows is read.
Rule 2: the footer is looked at always; all pages, with their checksums, once (Depth.NEW) or every time (Depth.ALL).
        A flipped byte in a page is otherwise a wrong sum without an error, one in the footer hides rows.
Rule 3: a file that is gone between the list and the look is nobody's: retention or compaction took it.

Older files may lack nullable columns and hold narrower integers; newer ones may have more columns.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from georelay.trace.files import TraceFileMetadata
from georelay.trace.histogram import GRID
from georelay.trace.kinds import SCHEMA_VERSION, TraceKind
from georelay.trace.schema import SCHEMAS
from sla.sources.footer import Footer, RowsOfGroup, read_footer
from sla.sources.layout import FilePlace
from sla.sources.location import Entry, Location
from sla.sources.manifest import (
    INPUT_DIGEST_KEY,
    INPUT_FILES_KEY,
    TIME_COLUMNS,
    BadFile,
    GoodFile,
    TraceFiles,
    digest_of,
)
from sla.sources.proven import ProvenFiles

VERIFY_THREADS_LOCAL: Final = 2
VERIFY_THREADS_REMOTE: Final = 16  # a request to an object store is mostly waiting
_ROWS_PER_READ: Final = 65_536


class Depth(enum.Enum):
    """How much of the files is read."""

    FOOTERS = "footers"  # footers only: a flipped byte in a page is not found
    NEW = "new"  # everything of files that were not read whole before
    ALL = "all"  # everything


@dataclass(frozen=True, slots=True)
class _Gone:
    """A file that is no longer there."""


def verify_files(
    location: Location,
    found: Iterable[tuple[FilePlace, Entry]],
    *,
    depth: Depth,
    proven: ProvenFiles,
    on_file: Callable[[], None] = lambda: None,
) -> TraceFiles:
    """Look at files and sort good from bad; what was good is remembered.

    Args:
        proven: what earlier runs know.
        on_file: called after each file, in this thread.

    Raises:
        OSError: the memory cannot be read or written.
    """
    good: list[GoodFile] = []
    bad: list[BadFile] = []
    unknown: list[tuple[FilePlace, Entry]] = []
    present = set()
    for place, entry in found:
        present.add(place.relative)
        known = None if depth is Depth.ALL else proven.recall(place, entry)
        if known is not None and (known.is_whole or depth is Depth.FOOTERS):
            good.append(known)
            on_file()
        else:
            unknown.append((place, entry))

    def look(pair: tuple[FilePlace, Entry]) -> GoodFile | BadFile | _Gone:
        return check(location, *pair, is_whole=depth is not Depth.FOOTERS)

    with ThreadPoolExecutor(VERIFY_THREADS_LOCAL if location.is_local else VERIFY_THREADS_REMOTE) as pool:
        for checked in pool.map(look, unknown):
            match checked:
                case GoodFile():
                    good.append(checked)
                case BadFile():
                    bad.append(_with_rows_expected(checked, proven))
                case _Gone():
                    pass
            on_file()
    proven.remember(good, present=present)
    return TraceFiles.sorted_out(location, good, bad)


def check(location: Location, place: FilePlace, entry: Entry, *, is_whole: bool) -> GoodFile | BadFile | _Gone:
    """Look at one file; with `is_whole` at all of its pages."""
    rows_expected: list[int] = []
    try:
        with location.open_input(place.relative) as source:
            return _read(source, place, entry, rows_expected, is_whole=is_whole)
    except FileNotFoundError:
        return _Gone()
    except (OSError, ValueError, pa.ArrowException) as error:
        return BadFile(
            place=place,
            size_bytes=entry.size_bytes,
            reason=(str(error).strip() or type(error).__name__).splitlines()[0],
            rows_expected=rows_expected[0] if rows_expected else None,
            mtime_ns=entry.mtime_ns,
            is_damaged=getattr(error, "errno", None) is None,
        )


def _read(source: Any, place: FilePlace, entry: Entry, rows_expected: list[int], *, is_whole: bool) -> GoodFile:
    """Read a file. Raises ValueError for one that is not what its name says."""
    footer = read_footer(source)
    with pq.ParquetFile(source, page_checksum_verification=True) as file:
        pairs = file.metadata.metadata or {}
        metadata = TraceFileMetadata.decode(pairs)
        rows_expected.append(metadata.rows)
        _check_identity(metadata, place)
        check_columns(file.schema_arrow, place.kind, metadata.schema_version)
        _check_rows(metadata, file.metadata.num_rows)
        time_min_s, time_max_s = footer.times(place.kind)
        if is_whole:
            time_min_s, time_max_s = _check_pages(file, footer, metadata, place.kind)
    digest, input_files = _content(pairs, metadata, entry.size_bytes, footer.crc)
    return GoodFile(
        place=place,
        metadata=metadata,
        size_bytes=entry.size_bytes,
        digest=digest,
        input_files=input_files,
        mtime_ns=entry.mtime_ns,
        is_whole=is_whole,
        time_min_s=time_min_s,
        time_max_s=time_max_s,
    )


def _check_identity(metadata: TraceFileMetadata, place: FilePlace) -> None:
    name = place.name
    if metadata.kind is not name.kind:
        raise ValueError(f"the file holds rows of kind {metadata.kind.value}")
    said = (metadata.writer, metadata.boot_id, metadata.first_row_seq)
    if said != (place.writer, name.boot_id, name.sequence):
        raise ValueError(f"the file says it is {said[0]} {said[1]} from row {said[2]}, its path says otherwise")
    if name.kind is TraceKind.LATENCY_HIST and metadata.hist_grid != GRID:
        raise ValueError(f"histogram grid {metadata.hist_grid} is not known; this report reads grid {GRID}")


def check_columns(schema: Any, kind: TraceKind, schema_version: int) -> None:
    """Compare the columns of a file with those of its kind.

    Args:
        schema: Arrow schema of the file.
        schema_version: what the file says it was written as. Only an older file may lack a column, and only a newer
            one may have more: otherwise a byte that flipped in a name would turn a column into nulls.

    Raises:
        ValueError: a column is missing, unknown or of a type that cannot be read as ours.
    """
    ours = SCHEMAS[kind]
    for field in ours:
        index = schema.get_field_index(field.name)
        if index < 0:
            if not field.nullable or schema_version >= SCHEMA_VERSION:
                raise ValueError(f"column {field.name} is missing")
            continue
        type_ = schema.field(index).type
        if not _is_readable_as(type_, field.type):
            raise ValueError(f"column {field.name} is {type_}, not {field.type}")
    if schema_version <= SCHEMA_VERSION:
        unknown = sorted(set(schema.names) - set(ours.names))
        if unknown:
            raise ValueError(f"column {unknown[0]} is not known in version {schema_version} of the schema")


def _is_readable_as(held: Any, ours: Any) -> bool:
    """Return whether a type is ours, was before it was widened, or is the same in Parquet."""
    if pa.types.is_dictionary(held):
        held = held.value_type
    if pa.types.is_large_string(held):
        held = pa.string()
    if pa.types.is_signed_integer(held) and pa.types.is_signed_integer(ours):
        return bool(held.bit_width <= ours.bit_width)
    if pa.types.is_list(held) and pa.types.is_list(ours):
        return _is_readable_as(held.value_type, ours.value_type)
    if pa.types.is_struct(held) and pa.types.is_struct(ours):
        return [held.field(i).name for i in range(held.num_fields)] == [
            ours.field(i).name for i in range(ours.num_fields)
        ] and all(_is_readable_as(held.field(i).type, ours.field(i).type) for i in range(ours.num_fields))
    return bool(held.equals(ours))


def _check_rows(metadata: TraceFileMetadata, rows: int) -> None:
    if rows != metadata.rows or metadata.last_row_seq - metadata.first_row_seq + 1 != rows:
        numbered = f"{metadata.first_row_seq} to {metadata.last_row_seq}"
        raise ValueError(f"the file holds {rows} rows, its metadata says {metadata.rows} numbered {numbered}")


def _check_pages(
    file: Any, footer: Footer, metadata: TraceFileMetadata, kind: TraceKind
) -> tuple[int | None, int | None]:
    """Read all pages and compare the footer with their rows; return the rows' earliest and latest second."""
    required = [field.name for field in SCHEMAS[kind] if not field.nullable]
    name, units_per_s = TIME_COLUMNS[kind]
    rows, found = 0, []
    for number, said in enumerate(footer.groups):
        compared = RowsOfGroup(said, file.schema_arrow)
        for batch in file.iter_batches(_ROWS_PER_READ, row_groups=[number]):
            for column in required:
                if batch.column(column).null_count:
                    raise ValueError(f"column {column} holds nulls")
            compared.add(batch)
            rows += batch.num_rows
        compared.finish()
        found += [bound for bound in compared.bounds(name) if isinstance(bound, int)]
    _check_rows(metadata, rows)
    return (min(found) // units_per_s, max(found) // units_per_s) if found else (None, None)


def _content(pairs: dict[bytes, bytes], metadata: TraceFileMetadata, size_bytes: int, crc: int) -> tuple[int, int]:
    """Return the digest of a file's content and how many files of brokers it holds."""
    of_inputs = pairs.get(INPUT_DIGEST_KEY)
    if of_inputs is not None:
        return int(of_inputs, 16), int(pairs.get(INPUT_FILES_KEY, b"1"))
    name = f"{metadata.kind.value} {metadata.writer} {metadata.boot_id} {metadata.first_row_seq}"
    return digest_of(f"{name} {metadata.rows} {size_bytes} {crc:08x}"), 1


def _with_rows_expected(bad: BadFile, proven: ProvenFiles) -> BadFile:
    if bad.rows_expected is not None:
        return bad
    return replace(bad, rows_expected=proven.rows_expected(bad.place))
