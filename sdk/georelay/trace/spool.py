"""The spool of a trace writer: rows on their way into a Parquet file, readable after a crash.

Rule 1: everything is a frame, checked before it is used; the first that does not fit ends the file.
Rule 2: a frame is written by one call and never changed: what a killed process had written is there.
Rule 3: nothing but SpoolError is raised on garbage, and no length in the file is believed beyond its limits.

    frame = u32 body bytes | u32 CRC-32C of the body | body           (big-endian)
    first body: JSON {"spool": 1, "kind", "region", "broker", "boot_id", "opened_ns", "schema_version"}
    other bodies: u64 number of the first row | u32 rows | u64 rows given up so far | Arrow record batch message

The message is that of the Arrow IPC format (https://arrow.apache.org/docs/format/Columnar.html) without the schema,
which is the kind's; the body of a large one is compressed (zstd). Row numbers run on over the spools of a kind and
boot: a jump is rows missing.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from georelay.fields import Fields, JsonObject, dump_object, parse_object
from georelay.limits import REGION_NAME_CHARS_MAX
from georelay.trace.kinds import SCHEMA_VERSION, TraceKind
from georelay.trace.schema import SCHEMAS, SPOOLED_VERSION_MIN, schema_of
from georelay.wire.crc import crc32c

SPOOL_VERSION: Final = 1
FRAME_BYTES_MAX: Final = 8 << 20
ROWS_PER_FRAME_MAX: Final = 1_000
BROKER_MAX: Final = 999_999_999
OPENED_NS_MAX: Final = 253_402_300_799 * 10**9  # the year 9999
_FRAME: Final = struct.Struct(">II")
_ROWS: Final = struct.Struct(">QIQ")
_REGION: Final = re.compile(r"[a-z0-9-]+")
_BOOT_ID: Final = re.compile(r"[0-9a-z]+")
_END_OF_STREAM_BYTES: Final = 8
# Arrow compresses each buffer by itself, in threads of its own: for the rows of a second that costs more than all else.
PLAIN_BYTES_MAX: Final = 1 << 20
_PACKED: Final = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
_SCHEMA_BYTES: Final = {kind: schema.serialize().size for kind, schema in SCHEMAS.items()}


class SpoolError(ValueError):
    """Bytes that are no frame of this format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolHeader:
    """Whose rows these are.

    Args:
        region: name of the writer's region.
        broker: mesh-wide broker id.
        opened_ns: wall clock of the writer when it began the spool; decides the folder of the Parquet file.
    """

    kind: TraceKind
    region: str
    broker: int
    boot_id: str
    opened_ns: int
    schema_version: int = SCHEMA_VERSION

    def encode(self) -> bytes:
        """Return the first frame."""
        fields: JsonObject = {
            "spool": SPOOL_VERSION,
            "kind": self.kind.value,
            "region": self.region,
            "broker": self.broker,
            "boot_id": self.boot_id,
            "opened_ns": self.opened_ns,
            "schema_version": self.schema_version,
        }
        return encode_frame(dump_object(fields))

    @classmethod
    def decode(cls, body: bytes) -> SpoolHeader:
        """Read the body of the first frame.

        Raises:
            SpoolError: not such a body, or of a version that this program does not know.
        """
        try:
            fields = Fields(parse_object(body), "the spool's header")
            fields.integer("spool", low=SPOOL_VERSION, high=SPOOL_VERSION)
            return cls(
                kind=TraceKind(fields.text("kind", chars_max=20)),
                region=fields.text("region", chars_max=REGION_NAME_CHARS_MAX, pattern=_REGION),
                broker=fields.integer("broker", low=0, high=BROKER_MAX),
                boot_id=fields.text("boot_id", chars_max=32, pattern=_BOOT_ID),
                opened_ns=fields.integer("opened_ns", low=0, high=OPENED_NS_MAX),
                schema_version=fields.integer("schema_version", low=SPOOLED_VERSION_MIN, high=SCHEMA_VERSION),
            )
        except ValueError as error:  # FieldError and an unknown kind
            raise SpoolError(str(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolRows:
    """One frame of rows.

    Args:
        first_row_seq: running number of the first row.
        rows: how many there are, 1 to ROWS_PER_FRAME_MAX.
        dropped: rows of this kind that the writer had given up when it wrote the frame.
    """

    first_row_seq: int
    rows: int
    dropped: int
    message: bytes

    @classmethod
    def of(cls, kind: TraceKind, batch: Any, *, first_row_seq: int, dropped: int) -> SpoolRows:
        """Return the frame of an Arrow record batch of the kind's schema."""
        message = batch.serialize() if batch.nbytes <= PLAIN_BYTES_MAX else _packed(kind, batch)
        return cls(first_row_seq=first_row_seq, rows=batch.num_rows, dropped=dropped, message=message.to_pybytes())

    def encode(self) -> bytes:
        """Return the frame."""
        return encode_frame(_ROWS.pack(self.first_row_seq, self.rows, self.dropped) + self.message)

    @classmethod
    def decode(cls, body: bytes) -> SpoolRows:
        """Read the body of a frame of rows.

        Raises:
            SpoolError: too short, or a count out of range.
        """
        if len(body) <= _ROWS.size:
            raise SpoolError(f"a frame of rows has {len(body)} bytes")
        first, rows, dropped = _ROWS.unpack_from(body)
        if not 0 < rows <= ROWS_PER_FRAME_MAX:
            raise SpoolError(f"a frame of {rows} rows")
        return cls(first_row_seq=first, rows=rows, dropped=dropped, message=body[_ROWS.size :])

    def batch(self, kind: TraceKind, schema_version: int = SCHEMA_VERSION) -> Any:
        """Return the Arrow record batch, null in columns that are newer than the rows.

        Args:
            schema_version: what the spool's header says.

        Raises:
            SpoolError: the message is not one of the kind's schema.
        """
        try:
            batch = pa.ipc.read_record_batch(pa.py_buffer(self.message), schema_of(kind, schema_version))
            batch.validate(full=True)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise SpoolError(f"the rows are no record batch: {error}") from error
        if batch.num_rows != self.rows:
            raise SpoolError(f"the frame says {self.rows} rows, it holds {batch.num_rows}")
        for field in list(SCHEMAS[kind])[batch.num_columns :]:  # columns are only ever added at the end
            batch = batch.append_column(field, pa.nulls(batch.num_rows, field.type))
        return batch


def _packed(kind: TraceKind, batch: Any) -> Any:
    """Return the message of a compressed record batch; without a stream around it Arrow makes plain ones only."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMAS[kind], options=_PACKED) as stream:
        stream.write_batch(batch)
    whole = sink.getvalue()
    return whole.slice(_SCHEMA_BYTES[kind], whole.size - _SCHEMA_BYTES[kind] - _END_OF_STREAM_BYTES)


def encode_frame(body: bytes) -> bytes:
    """Return a body with its length and checksum."""
    return _FRAME.pack(len(body), crc32c(body)) + body


def bodies(raw: bytes | memoryview) -> Iterator[tuple[int, bytes]]:
    """Yield (end of the frame, body) of every frame up to the first that is torn or damaged."""
    view, position = memoryview(raw), 0
    while position + _FRAME.size <= len(view):
        size, checksum = _FRAME.unpack_from(view, position)
        end = position + _FRAME.size + size
        if size > FRAME_BYTES_MAX or end > len(view):
            return
        body = bytes(view[position + _FRAME.size : end])
        if crc32c(body) != checksum:
            return
        yield end, body
        position = end


@dataclass(frozen=True, slots=True, kw_only=True)
class Spool:
    """What could be read of a spool: every row before the first damage. `lost_bytes` are what is behind it."""

    header: SpoolHeader
    rows: tuple[SpoolRows, ...]
    lost_bytes: int


def read_spool(raw: bytes) -> Spool:
    """Read a spool up to the last good frame.

    Raises:
        SpoolError: not even the header is readable.
    """
    frames = bodies(raw)
    first = next(frames, None)
    if first is None:
        raise SpoolError(f"{len(raw)} bytes hold no whole frame")
    good_bytes, body = first
    header = SpoolHeader.decode(body)
    rows: list[SpoolRows] = []
    for end, body in frames:
        try:
            rows.append(SpoolRows.decode(body))
        except SpoolError:
            break
        good_bytes = end
    return Spool(header=header, rows=tuple(rows), lost_bytes=len(raw) - good_bytes)
