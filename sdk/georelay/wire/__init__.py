"""Kafka's record batches and protocol, as georelay speaks them on both ends of a connection.

- `batch`: record batches: check, stamp, split, build, iterate
- `api`: frames, requests and responses; `requests` and `responses` hold their classes
- `murmur2`: the partition of a key

Nothing here does I/O, reads a clock or logs.
"""

from __future__ import annotations

from georelay.wire.api import (
    SUPPORTED,
    ApiKey,
    ErrorCode,
    FrameReader,
    Request,
    RequestHeader,
    Response,
    WireError,
    api_versions_response,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    parse_request_header,
    refuse_api_versions,
)
from georelay.wire.batch import (
    BatchHeader,
    Compression,
    Record,
    RecordDraft,
    build_batch,
    iterate_records,
    parse_header,
    split_batches,
    stamp,
    validate,
)
from georelay.wire.murmur2 import partition_for_key

__all__ = [
    "SUPPORTED",
    "ApiKey",
    "BatchHeader",
    "Compression",
    "ErrorCode",
    "FrameReader",
    "Record",
    "RecordDraft",
    "Request",
    "RequestHeader",
    "Response",
    "WireError",
    "api_versions_response",
    "build_batch",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
    "iterate_records",
    "parse_header",
    "parse_request_header",
    "partition_for_key",
    "refuse_api_versions",
    "split_batches",
    "stamp",
    "validate",
]
