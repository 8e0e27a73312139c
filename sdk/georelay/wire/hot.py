"""Produce and Fetch by hand: the requests and responses that pass for every batch.

They do what the tables say (tests compare the two on every version) for a fraction of the cost, and never
copy a record: decoded records are views of the frame, encoded ones are buffers handed on as they are.
Reads past the end raise IndexError or struct.error, as everywhere below `georelay.wire.api`.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from typing import Final

from georelay.wire.codec import codec_of
from georelay.wire.header import Buffer
from georelay.wire.primitives import (
    INT32,
    Reader,
    check_count,
    read_compact_length,
    read_length16,
    read_length32,
    skip_tags,
    take,
    take_text,
    write_compact_length,
    write_length16,
    write_length32,
)
from georelay.wire.requests import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from georelay.wire.responses import (
    AbortedTransaction,
    FetchPartitionData,
    FetchResponse,
    PartitionProduceResponse,
    ProduceResponse,
)

Buffers = list[Buffer]

_ACKS_TIMEOUT: Final = struct.Struct(">hi")
_PRODUCED: Final = struct.Struct(">ihqq")  # index, error, base offset, log append time
_PRODUCED_5: Final = struct.Struct(">ihqqq")  # ... log start
_FETCHED_4: Final = struct.Struct(">ihqq")  # index, error, high watermark, last stable offset
_FETCHED_5: Final = struct.Struct(">ihqqq")  # ... log start
_FETCHED_12: Final = struct.Struct(">ihqqqBi")  # ... count of aborted transactions, preferred replica
_SESSION: Final = struct.Struct(">ihi")  # throttle, error, session
_FETCH_START: Final = struct.Struct(">iiiib")  # replica, max wait, min bytes, max bytes, isolation
_FETCH_START_7: Final = struct.Struct(">iiiibii")  # ... session, session epoch
_WANTED_4: Final = struct.Struct(">iqi")  # partition, offset, max bytes
_WANTED_5: Final = struct.Struct(">iqqi")  # ... log start before max bytes
_WANTED_9: Final = struct.Struct(">iiqqi")  # ... current leader epoch after the partition
_WANTED_12: Final = struct.Struct(">iiqiqi")  # ... last fetched epoch after the offset
_FLEXIBLE_PRODUCE: Final = 9
_FLEXIBLE_FETCH: Final = 12
_ONE_BATCH: Final = struct.Struct(">BhiBB")  # transactional id, acks, timeout, count of topics, length of the name
_ONE_BATCH_BYTES_MIN: Final = _ONE_BATCH.size + 1 + 1 + 4 + 1 + 3  # a letter, a count, an index, a length, three tags
_SHORT_NAME_BYTES_MAX: Final = 126  # longer ones have lengths of two bytes
_COPY_BYTES_MAX: Final = 1024  # below it a copy is cheaper than one more buffer for the kernel to gather


def decode_produce_request(reader: Reader, version: int) -> ProduceRequest:
    """Decode versions 3-9; records stay views of the frame."""
    flexible = version >= _FLEXIBLE_PRODUCE
    if flexible:
        one = _decode_one_batch(reader)
        if one is not None:
            return one
    read_count = read_compact_length if flexible else read_length32
    read_name = read_compact_length if flexible else read_length16
    length = read_name(reader)
    transactional_id = None if length == -1 else take_text(reader, length)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(reader.raw, reader.position)
    reader.position += _ACKS_TIMEOUT.size
    count = read_count(reader)
    check_count(reader, count, 3 if flexible else 6)
    topics: list[TopicProduceData] = []
    for _ in range(count):
        name = take_text(reader, read_name(reader))
        partition_count = read_count(reader)
        check_count(reader, partition_count, 6 if flexible else 8)
        partitions: list[PartitionProduceData] = []
        for _ in range(partition_count):
            index: int = INT32.unpack_from(reader.raw, reader.position)[0]
            reader.position += 4
            size = read_count(reader)
            records = None if size == -1 else memoryview(take(reader, size))
            if flexible:
                skip_tags(reader)
            partitions.append(PartitionProduceData(index, records))
        if flexible:
            skip_tags(reader)
        topics.append(TopicProduceData(name, tuple(partitions)))
    if flexible:
        skip_tags(reader)
    return ProduceRequest(transactional_id, acks, timeout_ms, tuple(topics))


def _decode_one_batch(reader: Reader) -> ProduceRequest | None:
    """Decode what nearly every Produce is: one batch of one topic and no tags; None, and nothing read, for others.

    Everything is read at fixed distances; what does not look exactly like that is left to the general path, errors
    included.
    """
    raw, start, end = reader.raw, reader.position, reader.end
    if end - start < _ONE_BATCH_BYTES_MIN:
        return None
    no_id, acks, timeout_ms, topics, name_length = _ONE_BATCH.unpack_from(raw, start)
    name_at = start + _ONE_BATCH.size
    place = name_at + name_length - 1
    if no_id or topics != 2 or not 1 < name_length < 0x80 or place + 6 > end or raw[place] != 2:  # lengths: plus one
        return None
    size_at = place + 5
    size, shift = raw[size_at] & 0x7F, 7
    while raw[size_at] >= 0x80:
        size_at += 1
        if shift > 28 or size_at >= end:
            return None
        size |= (raw[size_at] & 0x7F) << shift
        shift += 7
    first = size_at + 1
    last = first + size - 1
    if size < 1 or last + 3 != end or raw[last:end] != b"\0\0\0":
        return None
    name = take_text(Reader(raw, name_at, 0), name_length - 1)
    data = PartitionProduceData(INT32.unpack_from(raw, place + 1)[0], memoryview(raw)[first:last])
    reader.position = end
    return ProduceRequest(None, acks, timeout_ms, (TopicProduceData(name, (data,)),))


def encode_one_produced(
    name: bytes, row: PartitionProduceResponse, *, version: int, correlation_id: int
) -> bytes | None:
    """Return the whole framed answer to a Produce of one batch; None for what needs the general path."""
    if row.error_message is not None or row.record_errors or len(name) > _SHORT_NAME_BYTES_MAX:
        return None
    layout, before, between, after = _one_produced(version, len(name))
    numbers: tuple[int, ...] = (row.index, row.error_code, row.base_offset, row.log_append_time_ms)
    if version >= 5:
        numbers = (*numbers, row.log_start_offset)
    return layout.pack(layout.size - 4, correlation_id, before, name, between, *numbers, after)


@functools.cache
def _one_produced(version: int, name_bytes: int) -> tuple[struct.Struct, bytes, bytes, bytes]:
    """Return the layout of the answer and the bytes that are the same in all of them: around the name, at the end."""
    if version >= _FLEXIBLE_PRODUCE:  # header tags, count of topics, length of the name; count of partitions; end
        before, between = bytes((0, 2, name_bytes + 1)), b"\x02"
        after = _produced_tail(version) + bytes(1) + bytes(4) + bytes(1)
    else:
        before = b"\x00\x00\x00\x01" + name_bytes.to_bytes(2, "big")
        between, after = b"\x00\x00\x00\x01", _produced_tail(version) + bytes(4)
    numbers = "ihqqq" if version >= 5 else "ihqq"
    layout = struct.Struct(f">ii{len(before)}s{name_bytes}s{len(between)}s{numbers}{len(after)}s")
    return layout, before, between, after


def encode_produce_response(out: bytearray, response: ProduceResponse, version: int) -> Buffers:
    """Append versions 3-9; refusals of single records and texts take the general path."""
    flexible = version >= _FLEXIBLE_PRODUCE
    write_count = write_compact_length if flexible else write_length32
    write_name = write_compact_length if flexible else write_length16
    tail = _produced_tail(version)
    write_count(out, len(response.responses))
    for topic in response.responses:
        name = topic.name.encode()
        write_name(out, len(name))
        out += name
        write_count(out, len(topic.partition_responses))
        for p in topic.partition_responses:
            if version >= 8 and (p.record_errors or p.error_message is not None):
                codec_of(type(p), version, flexible).encode(out, p)
            elif version >= 5:
                out += _PRODUCED_5.pack(p.index, p.error_code, p.base_offset, p.log_append_time_ms, p.log_start_offset)
                out += tail
            else:
                out += _PRODUCED.pack(p.index, p.error_code, p.base_offset, p.log_append_time_ms)
        if flexible:
            out.append(0)
    out += INT32.pack(response.throttle_time_ms)
    if flexible:
        out.append(0)
    return [out]


def _produced_tail(version: int) -> bytes:
    """Return no record errors, a null text and no tags, as `version` writes them."""
    if version >= _FLEXIBLE_PRODUCE:
        return b"\x01\x00\x00"
    return b"\x00\x00\x00\x00\xff\xff" if version == 8 else b""


def decode_fetch_request(reader: Reader, version: int) -> FetchRequest:
    """Decode versions 4-12; one that carries tagged fields takes the general path."""
    flexible = version >= _FLEXIBLE_FETCH
    start, items_left = reader.position, reader.items_left
    layout = _FETCH_START if version < 7 else _FETCH_START_7
    replica, max_wait_ms, min_bytes, max_bytes, isolation, *session = layout.unpack_from(reader.raw, reader.position)
    reader.position += layout.size
    session_id, session_epoch = session or (0, -1)
    topics = _fetch_topics(reader, version)
    forgotten = _forgotten_topics(reader, version) if version >= 7 else ()
    rack_id = ""
    if version >= 11:
        rack_id = take_text(reader, read_compact_length(reader) if flexible else read_length16(reader))
    if flexible:
        if reader.raw[reader.position]:
            reader.position, reader.items_left = start, items_left
            general: FetchRequest = codec_of(FetchRequest, version, True).decode(reader)
            return general
        reader.position += 1
    return FetchRequest(
        replica, max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch, topics, forgotten, rack_id
    )


def _fetch_topics(reader: Reader, version: int) -> tuple[FetchTopic, ...]:
    flexible = version >= _FLEXIBLE_FETCH
    read_count = read_compact_length if flexible else read_length32
    read_name = read_compact_length if flexible else read_length16
    layout = _wanted_layout(version)
    unpack, size, raw = layout.unpack_from, layout.size, reader.raw
    count = read_count(reader)
    check_count(reader, count, 3 if flexible else 6)
    topics: list[FetchTopic] = []
    for _ in range(count):
        name = take_text(reader, read_name(reader))
        partition_count = read_count(reader)
        check_count(reader, partition_count, size + flexible)
        partitions: list[FetchPartition] = []
        for _ in range(partition_count):
            row = unpack(raw, reader.position)
            reader.position += size
            if flexible:
                if raw[reader.position]:
                    skip_tags(reader)
                else:
                    reader.position += 1
                partitions.append(FetchPartition(*row))
            elif version >= 9:
                partitions.append(FetchPartition(row[0], row[1], row[2], -1, row[3], row[4]))
            elif version >= 5:
                partitions.append(FetchPartition(row[0], -1, row[1], -1, row[2], row[3]))
            else:
                partitions.append(FetchPartition(row[0], -1, row[1], -1, -1, row[2]))
        if flexible:
            skip_tags(reader)
        topics.append(FetchTopic(name, tuple(partitions)))
    return tuple(topics)


def _wanted_layout(version: int) -> struct.Struct:
    if version >= _FLEXIBLE_FETCH:
        return _WANTED_12
    if version >= 9:
        return _WANTED_9
    return _WANTED_5 if version >= 5 else _WANTED_4


def _forgotten_topics(reader: Reader, version: int) -> tuple[ForgottenTopic, ...]:
    flexible = version >= _FLEXIBLE_FETCH
    codec = codec_of(ForgottenTopic, version, flexible)
    count = read_compact_length(reader) if flexible else read_length32(reader)
    check_count(reader, count, codec.bytes_min)
    return tuple([codec.decode(reader) for _ in range(count)])


def encode_fetch_response(out: bytearray, response: FetchResponse, version: int) -> Buffers:
    """Append versions 4-12 and return the buffers to send, in order; `out` is the first, records are not copied."""
    flexible = version >= _FLEXIBLE_FETCH
    write_count = write_compact_length if flexible else write_length32
    write_name = write_compact_length if flexible else write_length16
    buffers: Buffers = [out]
    if version >= 7:
        out += _SESSION.pack(response.throttle_time_ms, response.error_code, response.session_id)
    else:
        out += INT32.pack(response.throttle_time_ms)
    write_count(out, len(response.responses))
    for topic in response.responses:
        name = topic.topic.encode()
        write_name(out, len(name))
        out += name
        write_count(out, len(topic.partitions))
        for partition in topic.partitions:
            if partition.diverging_epoch or partition.current_leader or partition.snapshot_id:
                codec_of(FetchPartitionData, version, flexible).encode(out, partition)
                continue
            if flexible and not partition.aborted_transactions:
                out += _FETCHED_12.pack(
                    partition.partition_index,
                    partition.error_code,
                    partition.high_watermark,
                    partition.last_stable_offset,
                    partition.log_start_offset,
                    0 if partition.aborted_transactions is None else 1,
                    partition.preferred_read_replica,
                )
            else:
                _fetched_numbers(out, partition, version)
            out = _fetched_records(buffers, partition.records, flexible)
            if flexible:
                out.append(0)
        if flexible:
            out.append(0)
    if flexible:
        out.append(0)
    return buffers


def _fetched_numbers(out: bytearray, p: FetchPartitionData, version: int) -> None:
    """Append what stands before the records."""
    if version >= 5:
        out += _FETCHED_5.pack(
            p.partition_index, p.error_code, p.high_watermark, p.last_stable_offset, p.log_start_offset
        )
    else:
        out += _FETCHED_4.pack(p.partition_index, p.error_code, p.high_watermark, p.last_stable_offset)
    flexible = version >= _FLEXIBLE_FETCH
    if p.aborted_transactions:
        codec = codec_of(AbortedTransaction, version, flexible)
        (write_compact_length if flexible else write_length32)(out, len(p.aborted_transactions))
        for aborted in p.aborted_transactions:
            codec.encode(out, aborted)
    else:
        length = -1 if p.aborted_transactions is None else 0
        (write_compact_length if flexible else write_length32)(out, length)
    if version >= 11:
        out += INT32.pack(p.preferred_read_replica)


def _fetched_records(buffers: Buffers, records: Sequence[bytes | memoryview] | None, flexible: bool) -> bytearray:
    """Add the records and return the buffer to go on in: the same one when they were small enough to copy."""
    out = buffers[-1]
    assert isinstance(out, bytearray)
    size = -1 if records is None else sum(map(len, records))
    (write_compact_length if flexible else write_length32)(out, size)
    if size > _COPY_BYTES_MAX:
        assert records is not None
        buffers.extend(records)
        out = bytearray()
        buffers.append(out)
    else:
        for buffer in records or ():
            out += buffer
    return out
