"""Kafka v2 record batches: the one unit on the wire, in Raft, on disk and between regions.

`georelay.wire.header` has what a broker needs for every batch (no record is looked at),
`georelay.wire.records` builds batches from records and reads records back out.
"""

from __future__ import annotations

from georelay.wire.compression import Compression, compress, decompress
from georelay.wire.header import (
    CRC_START,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    BatchHeader,
    Buffer,
    parse_header,
    split_batches,
    stamp,
    stamp_time,
    validate,
)
from georelay.wire.records import Record, RecordDraft, build_batch, iterate_records

__all__ = [
    "CRC_START",
    "HEADER_BYTES",
    "LENGTH_PREFIX_BYTES",
    "BatchHeader",
    "Buffer",
    "Compression",
    "Record",
    "RecordDraft",
    "build_batch",
    "compress",
    "decompress",
    "iterate_records",
    "parse_header",
    "split_batches",
    "stamp",
    "stamp_time",
    "validate",
]
