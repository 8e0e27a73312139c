"""Frames of the inter-region link, version 1: bounded, and nothing but FrameError on garbage.

A frame is one opaque message of the carrier (all numbers big-endian):

    u8 version (1), then parts until the end:  u8 kind | u32 body bytes | body

so one frame carries many batches, acknowledgements and heartbeats of many streams. `str` is u16 bytes + UTF-8.
A session number is chosen by the dialling (mirror) side and is unique on its link.

    kind  name             body
      1   OPEN             u16 protocol version, str mesh id, str region, u16 region number, u32 broker id
      2   LINK_REFUSED     str code, str reason; the link closes
      3   HELLO            u32 session, key, u32 epoch, i64 next, 16 digest at next - 1
      4   WELCOME          u32 session, u32 epoch, u64 control index, i64 log start, i64 hwm, 16 digest where the
                           following epoch starts (zero without), u16 rows, rows of (u32 epoch, i64 start)
      5   REDIRECT         u32 session, i32 broker (-1 unknown)
      6   REFUSED          u32 session, str code, str reason
      7   BATCH            u32 session, u32 session epoch, 80 stream part, payload
      8   ACK              rows of (u32 session, i64 committed hwm of the mirror)
      9   HEARTBEAT        i64 sender's wall clock us, rows of (u32 session, i64 hwm of the home, i64 lag us)
     10   GAP              u32 session, i64 next
     11   FENCED           u32 session, u32 current epoch of the mirror
     12   DIVERGED         u32 session, i64 offset
     13   RESET            u32 session, str reason; the session ended, the mirror says HELLO again
     14   SKIP             u32 session, u32 session epoch, i64 last, 16 digest after it, u16 rows, rows as in WELCOME,
                           producer states to the end (to peers of version 4 with the checksums of their batches,
                           behind u32 2^32 - 1); instead of WELCOME: the home stores nothing up to `last`
     15   LOG_STARTS       rows of (u32 session, i64 log start of the home)
     16   GEO_WATERMARK    rows of (u32 session, u16 k, i64 first offset that fewer than k regions have); version 2
     17   CLOCK_ASK        i64 our wall clock ns (t1); to peers of version 2 only, as its answer
     18   CLOCK_ANSWER     i64 t1 ns, i64 t2 ns, i64 t3 ns, i64 bound of the host's clock us, i64 spread of the region's
                           clocks us; the bounds are -1 where they are unknown
     20   FORWARD          u64 request, u64 lane, u32 generation, key, i64 received_ns, u16 entry region, batch
     21   FORWARDED        u64 request, u32 epoch, i64 base offset, i64 append_us, i64 log start
     22   FORWARD_FAILED   u64 request, fault
     23   FORWARD_GEO      as FORWARD, before the batch: i16 regions (-1 majority, -2 all), u32 deadline ms,
                           u8 flags (1: refuse it while fewer are reached, 2: at least the topic's
                           min.insync.regions); version 2
     24   FORWARDED_GEO    as FORWARDED, then u16 level reached, u8 flags (1: pending, 2: its home was isolated), rows
                           of u16 region; also answers a FORWARD whose home was isolated; version 2
     30   REQUEST          u64 request, str method, JSON object
     31   REPLY            u64 request, u32 JSON bytes, JSON object, attachment
     32   REQUEST_FAILED   u64 request, fault
     33   RAFT             a frame of mesh control (region.control.raft_wire), opaque here; protocol version 2
     34   CHALLENGE        u32 broker id, 14 nonce; before the acceptor's OPEN (link_proof_core); version 3
     35   PROOF            14 nonce, 32 proof; version 3

    key = 16 topic id, u16 origin, u32 partition; fault = str code, str text, i32 leader, u32 epoch, u16 home
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

from georelay.durability import Durability
from georelay.errors import BadRequest
from georelay.ids import Epoch, Offset, RegionNumber, StreamKey
from georelay.limits import LINK_FRAME_BYTES_MAX, MIB, RECORD_BATCH_BYTES_MAX
from mesh.replication.level import DEADLINE_MS_MAX, AskedLevel
from mesh.replication.link_parts import (
    Ack,
    Batch,
    Challenge,
    ClockAnswer,
    ClockAsk,
    DivergedAt,
    Fault,
    FencedBy,
    Forward,
    Forwarded,
    ForwardedGeo,
    ForwardFailed,
    ForwardGeo,
    Gap,
    GeoWatermark,
    Heartbeat,
    Hello,
    LinkRefused,
    LogStarts,
    Open,
    Part,
    Proof,
    Raft,
    Redirect,
    Refused,
    Reply,
    Request,
    RequestFailed,
    Reset,
    Skip,
    Welcome,
)
from mesh.replication.ports import EpochRow
from mesh.replication.stream_header import DIGEST_BYTES, STREAM_HEADER_BYTES

__all__ = [
    "EPOCH_ROWS_MAX",
    "FRAME_VERSION",
    "NO_DIGEST",
    "PARTS_PER_FRAME_MAX",
    "PART_BYTES_MAX",
    "PROTOCOL_VERSION",
    "PROTOCOL_VERSION_MIN",
    "REQUEST_BODY_BYTES_MAX",
    "Ack",
    "Batch",
    "Challenge",
    "ClockAnswer",
    "ClockAsk",
    "DivergedAt",
    "Fault",
    "FencedBy",
    "Forward",
    "ForwardFailed",
    "ForwardGeo",
    "Forwarded",
    "ForwardedGeo",
    "FrameError",
    "Gap",
    "GeoWatermark",
    "Heartbeat",
    "Hello",
    "LinkRefused",
    "LogStarts",
    "Open",
    "Part",
    "Proof",
    "Raft",
    "Redirect",
    "Refused",
    "Reply",
    "Request",
    "RequestFailed",
    "Reset",
    "Skip",
    "Welcome",
    "batch_part",
    "decode_frame",
    "encode_frame",
    "encode_part",
    "join_frame",
]

FRAME_VERSION: Final = 1
# What this broker speaks: what is marked with 2 to 4 is sent to peers that speak it too. 5 has the frames of 4, and
# says that its broker reads feature level 8 (and 9, of which other regions see nothing).
PROTOCOL_VERSION: Final = 5
PROTOCOL_VERSION_MIN: Final = 1
PARTS_PER_FRAME_MAX: Final = 65_536
EPOCH_ROWS_MAX: Final = 10_000
REQUEST_BODY_BYTES_MAX: Final = 8 * MIB
PART_BYTES_MAX: Final = LINK_FRAME_BYTES_MAX - 16
NO_DIGEST: Final = bytes(DIGEST_BYTES)
assert RECORD_BATCH_BYTES_MAX + 256 < PART_BYTES_MAX
assert REQUEST_BODY_BYTES_MAX + 256 < PART_BYTES_MAX

_VERSION: Final = bytes([FRAME_VERSION])
_PART: Final = struct.Struct(">BI")
_KEY: Final = struct.Struct(">16sHI")
_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
_OPEN: Final = struct.Struct(">H")
_OPEN_TAIL: Final = struct.Struct(">HI")
_HELLO: Final = struct.Struct(">I16sHIIq16s")
_WELCOME: Final = struct.Struct(">IIQqq16sH")
_EPOCH_ROW: Final = struct.Struct(">Iq")
_SESSION_I32: Final = struct.Struct(">Ii")
_BATCH: Final = struct.Struct(">II80s")
_BATCH_PART: Final = struct.Struct(">BIII")
_SKIP: Final = struct.Struct(">IIq16sH")
_ACK_ROW: Final = struct.Struct(">Iq")
_HEARTBEAT: Final = struct.Struct(">q")
_HEARTBEAT_ROW: Final = struct.Struct(">Iqq")
_SESSION_EPOCH: Final = struct.Struct(">II")
_CHALLENGE: Final = struct.Struct(">I14s")
_PROOF: Final = struct.Struct(">14s32s")
_CLOCK_ASK: Final = struct.Struct(">q")
_CLOCK_ANSWER: Final = struct.Struct(">5q")
_FORWARD: Final = struct.Struct(">QQI16sHIqH")
_FORWARDED: Final = struct.Struct(">QIqqq")
_GEO_ROW: Final = struct.Struct(">IHq")
_FORWARD_GEO: Final = struct.Struct(">hIB")
_FORWARDED_GEO: Final = struct.Struct(">HB")
_NEEDS_LIVE: Final = 1
_AS_TOPIC: Final = 2
_IS_PENDING: Final = 1
_IS_ISOLATED: Final = 2
_FAULT_TAIL: Final = struct.Struct(">iIH")


class FrameError(ValueError):
    """Bytes that are not a frame of this protocol: close the link."""


# --- encoding ---------------------------------------------------------------------------------------


def _text(value: str) -> bytes:
    raw = value.encode()[:0xFFFF]
    return _U16.pack(len(raw)) + raw


def _json(value: Mapping[str, Any]) -> bytes:
    raw = json.dumps(value, separators=(",", ":")).encode()
    if len(raw) > REQUEST_BODY_BYTES_MAX:  # refused here: the other end would close the link, whoever else uses it
        raise FrameError(f"a JSON body of {len(raw)} bytes is over {REQUEST_BODY_BYTES_MAX}")
    return raw


def _fault(fault: Fault) -> bytes:
    tail = _FAULT_TAIL.pack(fault.leader, fault.epoch, fault.home)
    return _text(fault.code) + _text(fault.text[:4096]) + tail


def _welcome(part: Welcome) -> bytes:
    head = _WELCOME.pack(
        part.session,
        part.epoch,
        part.control_index,
        part.log_start,
        part.high_watermark,
        part.following_digest,
        len(part.table),
    )
    return head + b"".join(_EPOCH_ROW.pack(*row) for row in part.table)


def _skip(part: Skip) -> bytes:
    head = _SKIP.pack(part.session, part.epoch, part.last, part.digest, len(part.table))
    return b"".join((head, *(_EPOCH_ROW.pack(*row) for row in part.table), part.producers))


def _open(part: Open) -> bytes:
    tail = _OPEN_TAIL.pack(part.region_number, part.broker_id)
    return _OPEN.pack(part.protocol_version) + _text(part.mesh_id) + _text(part.region) + tail


def _hello(part: Hello) -> bytes:
    key = part.key
    return _HELLO.pack(part.session, key.topic_id, key.origin, key.partition, part.epoch, part.next_offset, part.digest)


def _heartbeat(part: Heartbeat) -> bytes:
    return _HEARTBEAT.pack(part.clock_us) + b"".join(_HEARTBEAT_ROW.pack(*row) for row in part.rows)


def _forward_geo(part: ForwardGeo) -> bytes:
    asked = part.level
    flags = _NEEDS_LIVE * asked.needs_live | _AS_TOPIC * asked.as_topic
    level = _FORWARD_GEO.pack(asked.durability.regions, asked.deadline_ms, flags)
    return _forward_head(part) + level + bytes(part.batch)


def _forwarded_geo(part: ForwardedGeo) -> bytes:
    flags = _IS_PENDING * part.is_pending | _IS_ISOLATED * part.is_isolated
    stored = _FORWARDED.pack(*part[:5]) + _FORWARDED_GEO.pack(part.level, flags)
    return stored + b"".join(_U16.pack(region) for region in part.regions)


def _forward_head(part: Forward | ForwardGeo) -> bytes:
    key = part.key
    return _FORWARD.pack(
        part.request,
        part.lane,
        part.generation,
        key.topic_id,
        key.origin,
        key.partition,
        part.received_ns,
        part.entry_region,
    )


def _reply(part: Reply) -> bytes:
    body = _json(part.body)
    return _U64.pack(part.request) + _U32.pack(len(body)) + body + part.attachment


_KINDS: Final[dict[type[Any], tuple[int, Callable[[Any], bytes]]]] = {
    Open: (1, _open),
    LinkRefused: (2, lambda part: _text(part.code) + _text(part.reason)),
    Hello: (3, _hello),
    Welcome: (4, _welcome),
    Redirect: (5, lambda part: _SESSION_I32.pack(*part)),
    Refused: (6, lambda part: _U32.pack(part.session) + _text(part.code) + _text(part.reason)),
    Batch: (7, lambda part: _BATCH.pack(part.session, part.epoch, part.stream_part) + bytes(part.payload)),
    Ack: (8, lambda part: b"".join(_ACK_ROW.pack(*row) for row in part.rows)),
    Heartbeat: (9, _heartbeat),
    Gap: (10, lambda part: _ACK_ROW.pack(*part)),
    FencedBy: (11, lambda part: _SESSION_EPOCH.pack(*part)),
    DivergedAt: (12, lambda part: _ACK_ROW.pack(*part)),
    Reset: (13, lambda part: _U32.pack(part.session) + _text(part.reason)),
    Skip: (14, _skip),
    LogStarts: (15, lambda part: b"".join(_ACK_ROW.pack(*row) for row in part.rows)),
    ClockAsk: (17, lambda part: _CLOCK_ASK.pack(*part)),
    ClockAnswer: (18, lambda part: _CLOCK_ANSWER.pack(*part)),
    Forward: (20, lambda part: _forward_head(part) + bytes(part.batch)),
    GeoWatermark: (16, lambda part: b"".join(_GEO_ROW.pack(*row) for row in part.rows)),
    ForwardGeo: (23, _forward_geo),
    ForwardedGeo: (24, _forwarded_geo),
    Forwarded: (21, lambda part: _FORWARDED.pack(*part)),
    ForwardFailed: (22, lambda part: _U64.pack(part.request) + _fault(part.fault)),
    Request: (30, lambda part: _U64.pack(part.request) + _text(part.method) + _json(part.body)),
    Reply: (31, _reply),
    RequestFailed: (32, lambda part: _U64.pack(part.request) + _fault(part.fault)),
    Raft: (33, lambda part: part.body),
    Challenge: (34, lambda part: _CHALLENGE.pack(*part)),
    Proof: (35, lambda part: _PROOF.pack(*part)),
}


def encode_part(part: Part) -> bytes:
    """Return one part with its kind and length.

    Raises:
        FrameError: larger than a frame may be (our own bug or an oversized JSON body).
    """
    kind, encode = _KINDS[type(part)]
    body = encode(part)
    if len(body) > PART_BYTES_MAX:
        raise FrameError(f"a {type(part).__name__} part of {len(body)} bytes is over {PART_BYTES_MAX}")
    return _PART.pack(kind, len(body)) + body


def batch_part(*, session: int, epoch: Epoch, stream_part: bytes, payload: bytes | memoryview) -> tuple[bytes, bytes]:
    """Return a BATCH part as (head, payload): the payload is copied only into the frame."""
    head = _BATCH_PART.pack(7, _BATCH.size + len(payload), session, epoch) + stream_part
    return head, payload  # type: ignore[return-value]  # bytes.join takes any buffer


def join_frame(parts: list[bytes]) -> bytes:
    """Return the frame made of encoded parts."""
    return b"".join([_VERSION, *parts])


def encode_frame(*parts: Part) -> bytes:
    """Return one frame with these parts."""
    return join_frame([encode_part(part) for part in parts])


# --- decoding ---------------------------------------------------------------------------------------


class _Body:
    """Bounded reading of one part's body: every length is checked against the bytes left."""

    __slots__ = ("end", "position", "raw")

    def __init__(self, raw: bytes, position: int, end: int) -> None:
        self.raw = raw
        self.position = position
        self.end = end

    def take(self, layout: struct.Struct) -> tuple[Any, ...]:
        position = self.position
        if position + layout.size > self.end:
            raise FrameError(f"a part needs {layout.size} bytes, {self.end - position} are left")
        self.position = position + layout.size
        return layout.unpack_from(self.raw, position)

    def some(self, count: int) -> bytes:
        start = self.position
        if start + count > self.end:
            raise FrameError(f"a part needs {count} bytes, {self.end - start} are left")
        self.position = start + count
        return self.raw[start : self.position]

    def rest(self) -> bytes:
        return self.some(self.end - self.position)

    def text(self) -> str:
        (count,) = self.take(_U16)
        try:
            return self.some(count).decode()
        except UnicodeDecodeError as error:
            raise FrameError(f"a string is not UTF-8: {error.reason}") from error

    def json(self, raw: bytes) -> Mapping[str, Any]:
        if len(raw) > REQUEST_BODY_BYTES_MAX:
            raise FrameError(f"a JSON body of {len(raw)} bytes is over {REQUEST_BODY_BYTES_MAX}")
        try:
            value = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise FrameError(f"a body is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise FrameError("a body is not a JSON object")
        return value

    def rows(self, layout: struct.Struct) -> tuple[tuple[Any, ...], ...]:
        raw = self.rest()
        if len(raw) % layout.size:
            raise FrameError(f"{len(raw)} bytes are not rows of {layout.size}")
        return tuple(layout.iter_unpack(raw))

    def fault(self) -> Fault:
        code, text = self.text(), self.text()
        return Fault(code, text, *self.take(_FAULT_TAIL))


def _decode_open(body: _Body) -> Part:
    (version,) = body.take(_OPEN)
    mesh_id, region = body.text(), body.text()
    return Open(version, mesh_id, region, *body.take(_OPEN_TAIL))


def _decode_hello(body: _Body) -> Part:
    session, topic, origin, partition, epoch, following, digest = body.take(_HELLO)
    return Hello(session, StreamKey(topic, origin, partition), epoch, following, digest)


def _decode_welcome(body: _Body) -> Part:
    session, epoch, control_index, log_start, hwm, digest, count = body.take(_WELCOME)
    return Welcome(session, epoch, control_index, log_start, hwm, digest, _epoch_rows(body, count))


def _decode_skip(body: _Body) -> Part:
    session, epoch, last, digest, count = body.take(_SKIP)
    return Skip(session, epoch, last, digest, _epoch_rows(body, count), body.rest())


def _epoch_rows(body: _Body, count: int) -> tuple[EpochRow, ...]:
    if count > EPOCH_ROWS_MAX:
        raise FrameError(f"{count} epochs are over {EPOCH_ROWS_MAX}")
    return tuple((Epoch(e), Offset(o)) for e, o in (body.take(_EPOCH_ROW) for _ in range(count)))


def _decode_batch(body: _Body) -> Part:
    session, epoch, stream_part = body.take(_BATCH)
    return Batch(session, epoch, stream_part, body.rest())


def _decode_forward(body: _Body) -> Part:
    request, lane, generation, topic, origin, partition, received_ns, region = body.take(_FORWARD)
    key = StreamKey(topic, origin, partition)
    return Forward(request, lane, generation, key, received_ns, region, body.rest())


def _decode_forward_geo(body: _Body) -> Part:
    request, lane, generation, topic, origin, partition, received_ns, region = body.take(_FORWARD)
    regions, deadline_ms, flags = body.take(_FORWARD_GEO)
    try:
        durability = Durability.of_wire(regions)
    except BadRequest as error:
        raise FrameError(str(error)) from error
    if not 1 <= deadline_ms <= DEADLINE_MS_MAX:
        raise FrameError(f"a deadline of {deadline_ms} ms is outside 1..{DEADLINE_MS_MAX}")
    level = AskedLevel(
        durability=durability,
        deadline_ms=deadline_ms,
        needs_live=bool(flags & _NEEDS_LIVE),
        as_topic=bool(flags & _AS_TOPIC),
    )
    key = StreamKey(topic, origin, partition)
    return ForwardGeo(request, lane, generation, key, received_ns, region, level, body.rest())


def _decode_forwarded_geo(body: _Body) -> Part:
    request, epoch, base_offset, append_us, log_start = body.take(_FORWARDED)
    level, flags = body.take(_FORWARDED_GEO)
    regions = tuple(RegionNumber(region) for (region,) in body.rows(_U16))
    is_pending, is_isolated = bool(flags & _IS_PENDING), bool(flags & _IS_ISOLATED)
    return ForwardedGeo(request, epoch, base_offset, append_us, log_start, level, is_pending, regions, is_isolated)


def _decode_request(body: _Body) -> Part:
    (request,) = body.take(_U64)
    method = body.text()
    return Request(request, method, body.json(body.rest()))


def _decode_reply(body: _Body) -> Part:
    (request,) = body.take(_U64)
    (count,) = body.take(_U32)
    return Reply(request, body.json(body.some(count)), body.rest())


_DECODERS: Final[Mapping[int, Callable[[_Body], Part]]] = {
    1: _decode_open,
    2: lambda body: LinkRefused(body.text(), body.text()),
    3: _decode_hello,
    4: _decode_welcome,
    5: lambda body: Redirect(*body.take(_SESSION_I32)),
    6: lambda body: Refused(body.take(_U32)[0], body.text(), body.text()),
    7: _decode_batch,
    8: lambda body: Ack(body.rows(_ACK_ROW)),
    9: lambda body: Heartbeat(body.take(_HEARTBEAT)[0], body.rows(_HEARTBEAT_ROW)),
    10: lambda body: Gap(*body.take(_ACK_ROW)),
    11: lambda body: FencedBy(*body.take(_SESSION_EPOCH)),
    12: lambda body: DivergedAt(*body.take(_ACK_ROW)),
    13: lambda body: Reset(body.take(_U32)[0], body.text()),
    14: _decode_skip,
    15: lambda body: LogStarts(body.rows(_ACK_ROW)),
    17: lambda body: ClockAsk(*body.take(_CLOCK_ASK)),
    18: lambda body: ClockAnswer(*body.take(_CLOCK_ANSWER)),
    20: _decode_forward,
    16: lambda body: GeoWatermark(body.rows(_GEO_ROW)),
    23: _decode_forward_geo,
    24: _decode_forwarded_geo,
    21: lambda body: Forwarded(*body.take(_FORWARDED)),
    22: lambda body: ForwardFailed(body.take(_U64)[0], body.fault()),
    30: _decode_request,
    31: _decode_reply,
    32: lambda body: RequestFailed(body.take(_U64)[0], body.fault()),
    33: lambda body: Raft(body.rest()),
    34: lambda body: Challenge(*body.take(_CHALLENGE)),
    35: lambda body: Proof(*body.take(_PROOF)),
}
assert {kind for kind, _ in _KINDS.values()} == set(_DECODERS)
assert _BATCH.size == 8 + STREAM_HEADER_BYTES


def decode_frame(raw: bytes) -> list[Part]:
    """Return the parts of one frame.

    Raises:
        FrameError: too large, another version, an unknown kind, or lengths and counts that do not fit.
    """
    if len(raw) > LINK_FRAME_BYTES_MAX:
        raise FrameError(f"a frame of {len(raw)} bytes is over {LINK_FRAME_BYTES_MAX}")
    if not raw or raw[0] != FRAME_VERSION:
        raise FrameError(f"frame version {raw[0] if raw else 'missing'}, this broker speaks {FRAME_VERSION}")
    parts: list[Part] = []
    position, end = 1, len(raw)
    while position < end:
        if end - position < _PART.size:
            raise FrameError(f"a part's head needs {_PART.size} bytes, {end - position} are left")
        kind, size = _PART.unpack_from(raw, position)
        position += _PART.size
        if size > end - position:
            raise FrameError(f"a part of {size} bytes, {end - position} are left")
        decode = _DECODERS.get(kind)
        if decode is None:
            raise FrameError(f"part kind {kind} is unknown")
        if len(parts) == PARTS_PER_FRAME_MAX:
            raise FrameError(f"a frame has more than {PARTS_PER_FRAME_MAX} parts")
        body = _Body(raw, position, position + size)
        parts.append(decode(body))
        position += size
        if body.position != position:
            raise FrameError(f"part kind {kind} has {position - body.position} bytes too many")
    return parts
