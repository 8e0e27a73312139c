"""What one end of a link says to the other: one value per kind of part; mesh.replication.frames has their bytes.

A session number is chosen by the dialling (mirror) side and is unique on its link.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from georelay.ids import BrokerId, Epoch, Offset, RegionNumber, StreamKey
from mesh.replication.level import AskedLevel
from mesh.replication.ports import EpochRow


class Fault(NamedTuple):
    """An error on the wire; `code` is a GeorelayError's."""

    code: str
    text: str
    leader: int = -1
    epoch: int = 0
    home: int = 0


class Open(NamedTuple):
    """First part in each direction: who speaks."""

    protocol_version: int
    mesh_id: str
    region: str
    region_number: RegionNumber
    broker_id: BrokerId


class LinkRefused(NamedTuple):
    """The acceptor's reason for closing instead of OPEN."""

    code: str
    reason: str


class Challenge(NamedTuple):
    """The acceptor asks the dialler to prove the secret of the mesh, before its OPEN; it says which broker asks."""

    broker_id: BrokerId
    nonce: bytes


class Proof(NamedTuple):
    """The dialler's answer to a CHALLENGE, and the acceptor's to that (its own nonce is known by then)."""

    nonce: bytes
    proof: bytes


class Hello(NamedTuple):
    """A mirror asks for a session from its log end on."""

    session: int
    key: StreamKey
    epoch: Epoch
    next_offset: Offset
    digest: bytes


class Welcome(NamedTuple):
    """The home opens the session."""

    session: int
    epoch: Epoch
    control_index: int
    log_start: Offset
    high_watermark: Offset
    following_digest: bytes
    table: tuple[EpochRow, ...]


class Redirect(NamedTuple):
    """Another broker of the home leads the stream."""

    session: int
    broker: int


class Refused(NamedTuple):
    """No session; `code` is a sender_core.Refusal."""

    session: int
    code: str
    reason: str


class Batch(NamedTuple):
    """One committed entry of the home, verbatim."""

    session: int
    epoch: Epoch
    stream_part: bytes
    payload: bytes


class Ack(NamedTuple):
    """Committed high watermarks of the mirror: (session, hwm)."""

    rows: tuple[tuple[int, Offset], ...]


class Heartbeat(NamedTuple):
    """Sign of life; the home adds (session, hwm, lag us)."""

    clock_us: int
    rows: tuple[tuple[int, Offset, int], ...] = ()


class Gap(NamedTuple):
    """The mirror's log ends at `next_offset`: send from there."""

    session: int
    next_offset: Offset


class FencedBy(NamedTuple):
    """The mirror's current epoch is newer than the session's."""

    session: int
    epoch: Epoch


class DivergedAt(NamedTuple):
    """The mirror holds other records; the session is over."""

    session: int
    offset: Offset


class Reset(NamedTuple):
    """The session ended; the mirror may say HELLO again."""

    session: int
    reason: str


class Skip(NamedTuple):
    """The home stores nothing up to `last`: the mirror gives that up and says HELLO again from last + 1."""

    session: int
    epoch: Epoch
    last: Offset
    digest: bytes
    table: tuple[EpochRow, ...]
    producers: bytes


class LogStarts(NamedTuple):
    """Log starts of the home: (session, log start)."""

    rows: tuple[tuple[int, Offset], ...]


class ClockAsk(NamedTuple):
    """What does your clock say? Sent to peers of version 2 only."""

    t1_ns: int


class ClockAnswer(NamedTuple):
    """The stamps of both sides; bounds in microseconds, -1 unknown (see mesh.clock.estimate.Exchange)."""

    t1_ns: int
    t2_ns: int
    t3_ns: int
    host_error_us: int
    spread_us: int


class GeoWatermark(NamedTuple):
    """What k regions have: (session, k, watermark). Of protocol version 2."""

    rows: tuple[tuple[int, int, Offset], ...]


class Forward(NamedTuple):
    """One batch for the home of its stream."""

    request: int
    lane: int
    generation: int
    key: StreamKey
    received_ns: int
    entry_region: RegionNumber
    batch: bytes


class ForwardGeo(NamedTuple):
    """One batch for the home of its stream, to be answered when more than the home has it. Of protocol version 2."""

    request: int
    lane: int
    generation: int
    key: StreamKey
    received_ns: int
    entry_region: RegionNumber
    level: AskedLevel
    batch: bytes


class ForwardedGeo(NamedTuple):
    """What became of a FORWARD_GEO that is stored, or of a FORWARD whose home was isolated. Of protocol version 2."""

    request: int
    epoch: Epoch
    base_offset: Offset
    append_us: int
    log_start: Offset
    level: int
    is_pending: bool
    regions: tuple[RegionNumber, ...]
    is_isolated: bool = False


class Forwarded(NamedTuple):
    """The batch is committed."""

    request: int
    epoch: Epoch
    base_offset: Offset
    append_us: int
    log_start: Offset


class ForwardFailed(NamedTuple):
    """The batch failed."""

    request: int
    fault: Fault


class Request(NamedTuple):
    """A named question with a JSON object."""

    request: int
    method: str
    body: Mapping[str, Any]


class Reply(NamedTuple):
    """Its answer."""

    request: int
    body: Mapping[str, Any]
    attachment: bytes = b""


class Raft(NamedTuple):
    """One frame of mesh control's Raft group; what is in it is the replicas' business. Dialling side only."""

    body: bytes


class RequestFailed(NamedTuple):
    """Its failure."""

    request: int
    fault: Fault


Part = (
    Open | LinkRefused | Challenge | Proof | Hello | Welcome | Redirect | Refused | Batch | Ack | Heartbeat | Gap
    | FencedBy | DivergedAt | Reset | Skip | LogStarts | GeoWatermark | ClockAsk | ClockAnswer | Forward | ForwardGeo
    | Forwarded | ForwardedGeo | ForwardFailed | Request | Reply | RequestFailed | Raft
)  # fmt: skip
