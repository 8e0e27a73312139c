"""Mutate valid frames of links against the decoder, and against living links with sessions at both ends.

    python -m tests.fuzz.fuzz_links --inputs 200000 --seed 1

Only FrameError may come out of the decoder, in bounded time and memory. A living link either goes on or is closed with
a reason; the broker around it stays itself: no failure of ours is logged, no task fails, and a new link works.
Exit code 0: no violation. 1: a violation, printed with its bytes.
"""

from __future__ import annotations

import asyncio
import logging
import random
import struct
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import structlog
import zstandard

from georelay.clock import SystemClock
from georelay.durability import Durability
from georelay.errors import BadRequest, NotLeader
from georelay.ids import BrokerId, Epoch, Offset, RegionNumber, StreamKey
from georelay.limits import LINK_FRAME_BYTES_MAX, MIB
from mesh.listening.addresses_core import Source
from mesh.replication import frames as f
from mesh.replication.frame_packing import PACKED, pack_frame, unpack_frame
from mesh.replication.incoming_link import IncomingLink
from mesh.replication.level import AskedLevel
from mesh.replication.link_state import PeerProtocolError
from mesh.replication.outgoing_link import OutgoingLink
from mesh.replication.settings import BrokerAddress, LinkSettings, MeshIdentity
from tests.fuzz.judging import Report, ResidentMemory, Target, flags, verdict

INPUT_MS_MAX = 100.0  # processor time of one frame
MEMORY_MAX_BYTES = LINK_FRAME_BYTES_MAX * 2 + 4 * MIB
RSS_GROWTH_MAX_BYTES = 160 * MIB
TRACE_EVERY = 50
KEY = StreamKey(bytes(range(16)), RegionNumber(0), 3)
DIGEST = bytes(range(16))
INTERESTING = (0, 1, 2, 7, 16, 17, 18, 23, 24, 33, 34, 0x7F, 0x80, 0xFE, 0xFF)
COMPRESSOR = zstandard.ZstdCompressor(level=1)


def valid_parts(rng: random.Random) -> list[f.Part]:
    """Return one part of every kind, with numbers that make some sense."""
    session, offset, request = rng.randrange(4), Offset(rng.randrange(-1, 9)), rng.randrange(4)
    fault = f.Fault("BUSY", "later", 1001, 1, 1)
    level = AskedLevel(durability=Durability.geo(2), deadline_ms=rng.randrange(1, 30_000), needs_live=True)
    table = ((Epoch(1), Offset(0)), (Epoch(2), offset))
    batch = rng.randbytes(rng.randrange(100))
    return [
        f.Open(rng.randrange(4), "mesh", "us", RegionNumber(1), BrokerId(1001)),
        f.LinkRefused("MESH_ID", "another one"),
        f.Hello(session, KEY, Epoch(1), offset, DIGEST),
        f.Welcome(session, Epoch(1), 5, Offset(0), offset, DIGEST, table),
        f.Redirect(session, rng.choice((-1, 1001, 2001))),
        f.Refused(session, rng.choice(("FENCED", "DIVERGED", "made up")), "because"),
        f.Batch(session, Epoch(1), rng.randbytes(80), batch),
        f.Ack(((session, offset), (9, Offset(2**62)))),
        f.Heartbeat(rng.randrange(2**62), ((session, offset, 5),)),
        f.Gap(session, offset),
        f.FencedBy(session, Epoch(7)),
        f.DivergedAt(session, offset),
        f.Reset(session, "over"),
        f.Skip(session, Epoch(1), offset, DIGEST, table, batch),
        f.LogStarts(((session, offset),)),
        f.GeoWatermark(((session, rng.randrange(70), offset),)),
        f.ClockAsk(rng.randrange(-(2**63), 2**63)),
        f.ClockAnswer(1, 2, rng.randrange(2**62), -1, rng.randrange(100)),
        f.Forward(request, 1, rng.randrange(3), KEY, 1, RegionNumber(1), batch),
        f.ForwardGeo(request, 1, rng.randrange(3), KEY, 1, RegionNumber(1), level, batch),
        f.Forwarded(request, Epoch(1), offset, 1, Offset(0)),
        f.ForwardedGeo(request, Epoch(1), offset, 1, Offset(0), 2, True, (RegionNumber(1), RegionNumber(2))),
        f.ForwardedGeo(request, Epoch(1), offset, 1, Offset(0), 1, False, (), is_isolated=True),
        f.ForwardFailed(request, fault),
        f.Request(request, rng.choice(("audit.digests", "home.ends", "x" * 300)), {"rows": [], "local": False}),
        f.Reply(request, {"rows": []}, batch),
        f.RequestFailed(request, fault),
        f.Raft(rng.randbytes(rng.randrange(60))),
    ]


def mutated(rng: random.Random, raw: bytes) -> bytes:
    """Return the frame with something wrong; sometimes packed, before or after."""
    data = bytearray(raw)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 4, 8))):
        if not data:
            break
        at = rng.randrange(len(data))
        match rng.randrange(7):
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                data[at] = rng.choice(INTERESTING)
            case 2:
                del data[at:]
            case 3:
                data[at:at] = rng.randbytes(rng.randrange(20))
            case 4:
                data[at : at + 4] = struct.pack(">I", rng.choice((0, 1, 2**31 - 1, 2**31, 2**32 - 1, len(data))))
            case 5:
                data += raw[1:]
            case 6:
                del data[at : at + rng.randrange(1, 9)]
    plain = bytes(data)
    match rng.randrange(10):
        case 0:
            return pack_frame(plain or b"\x01", COMPRESSOR)
        case 1:
            packed = bytearray(pack_frame(plain or b"\x01", COMPRESSOR))
            packed[rng.randrange(len(packed))] = rng.randrange(256)
            return bytes(packed)
        case 2:
            return struct.pack(">BI", PACKED, rng.randrange(2**32)) + COMPRESSOR.compress(bytes(rng.randrange(2**20)))
    return plain


class Violation(Exception):
    """What must never happen; carries the frame."""


DECODER = Target("decoder", b"", lambda raw: f.decode_frame(unpack_frame(raw)), (f.FrameError,))


# --- living links -------------------------------------------------------------------------------------


class Carrier:
    """The link below an endpoint: swallows what is sent."""

    peer = "fuzz"
    peer_names = None
    gather_ms = 2
    is_writable = True

    def __init__(self) -> None:
        self.receiver: Any = None
        self.reason = ""

    def quiet_ns(self) -> None: ...

    def met(self) -> None: ...

    def start(self, receiver: Any) -> None:
        self.receiver = receiver

    def send(self, frame: bytes) -> None:
        if len(frame) > LINK_FRAME_BYTES_MAX:
            raise Violation(f"a frame of {len(frame)} bytes was sent")

    def close(self, reason: str) -> None:
        if not self.reason:
            self.reason = reason or "closed"
            self.receiver.link_closed(self.reason)


class Broker:
    """What links ask of the broker around them: nothing is led here, everything is refused."""

    def __init__(self) -> None:
        self.raft_bytes = 0

    def committed_log(self, key: StreamKey) -> None:
        return None

    def leader_of(self, key: StreamKey) -> int:
        return -1

    def publish_forwarded(self, key: StreamKey, batch: bytes, **_: Any) -> asyncio.Future[Any]:
        raise NotLeader(leader=-1)

    async def handle(self, method: str, body: Any, *, from_broker: BrokerId) -> Any:
        raise BadRequest("unknown")

    def session_opened(self, session: Any) -> None: ...

    def session_ended(self, session: Any) -> None: ...

    def link_ended(self, link: Any) -> None: ...

    def raft_received(self, peer: BrokerId, body: bytes) -> None:
        self.raft_bytes += len(body)
        if len(body) > 50:
            raise PeerProtocolError("not a frame of control")

    def clock_asked(self, ask: f.ClockAsk) -> f.ClockAnswer:
        return f.ClockAnswer(ask.t1_ns, 1, 1, -1, -1)

    def too_old(self, _peer: f.Open) -> str:
        return ""


def accepted_link(broker: Broker) -> Carrier:
    """Return a link that a broker of region 2 dialled."""
    carrier = Carrier()
    identity = MeshIdentity(mesh_id="mesh", region="us", region_number=RegionNumber(1), broker_id=BrokerId(1001))
    link = IncomingLink(
        carrier,
        identity=identity,
        directory=broker,
        publisher=broker,
        requests=broker,
        owner=broker,
        clock=SystemClock(),
        settings=LinkSettings(),
    )
    link.start()
    carrier.receiver.frame_received(f.encode_frame(f.Open(2, "mesh", "eu", RegionNumber(2), BrokerId(2001))))
    return carrier


def dialled_link(broker: Broker) -> Carrier:
    """Return a link that we dialled to region 1, with questions under way."""
    carrier = Carrier()
    identity = MeshIdentity(mesh_id="mesh", region="eu", region_number=RegionNumber(2), broker_id=BrokerId(2001))
    link = OutgoingLink(
        BrokerAddress(broker_id=BrokerId(1001), address="fuzz"),
        Source.CONFIGURATION,
        identity=identity,
        clock=SystemClock(),
        settings=LinkSettings(),
        dial=lambda _target: carrier,
        opened=lambda _link: None,
    )
    link.want()
    carrier.receiver.frame_received(f.encode_frame(f.Open(2, "mesh", "us", RegionNumber(1), BrokerId(1001))))
    if not carrier.reason:
        for request in range(4):
            link.ask(request, f.Request(request, "x", {}), lambda _part: None)
    return carrier


def open_link(make: Callable[[Broker], Carrier], broker: Broker) -> Carrier:
    """Return an open link."""
    carrier = make(broker)
    if carrier.reason:
        raise Violation(f"a new link does not open: {carrier.reason}")
    return carrier


async def feed_links(rng: random.Random, count: int, failures: list[str]) -> Counter[str]:
    """Feed living links; return how they ended."""
    broker, ended = Broker(), Counter[str]()
    carriers = [open_link(accepted_link, broker), open_link(dialled_link, broker)]
    makers = [accepted_link, dialled_link]
    for number in range(count):
        side = rng.randrange(2)
        carrier = carriers[side]
        parts = rng.sample(valid_parts(rng), k=rng.randrange(1, 4))
        raw = mutated(rng, f.encode_frame(*parts))
        try:
            carrier.receiver.frame_received(raw)
        except Exception as error:
            raise Violation(f"{type(error).__name__} out of a link: {error}\n{raw[:400].hex()}") from error
        if number % 20 == 0:
            await asyncio.sleep(0)
        if carrier.reason:
            ended[carrier.reason.split(":")[0][:24]] += 1
            carriers[side] = open_link(makers[side], broker)
        if failures:
            raise Violation(f"a failure of ours was logged: {failures[0]}\n{raw[:400].hex()}")
    await asyncio.sleep(0.01)
    return ended


def run(inputs: int, seed: int) -> list[str]:
    """Run everything; return the violations."""
    rng = random.Random(seed)
    failures: list[str] = []

    def note(_logger: object, name: str, event: Any) -> Any:
        if name in ("error", "critical") or "exc_info" in event:
            failures.append(str(event)[:500])
        raise structlog.DropEvent

    structlog.configure(processors=[note], wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    report = Report(input_ms_max=INPUT_MS_MAX, memory_max_bytes=lambda _target, _raw: MEMORY_MAX_BYTES)
    memory = ResidentMemory()
    for number in range(inputs):
        parts = rng.sample(valid_parts(rng), k=rng.randrange(1, 5))
        raw = mutated(rng, f.encode_frame(*parts))
        report.feed(DECODER, raw, trace=number % TRACE_EVERY == 0)
    try:
        ended = asyncio.run(feed_links(rng, inputs // 2, failures))
        print(f"{ended.total()} links closed: {dict(ended.most_common(6))}")
    except Violation as violation:
        report.violations.append(str(violation))
    report.show(f"links: inputs {inputs}, seed {seed}", memory)
    return [*report.violations, *memory.violations(RSS_GROWTH_MAX_BYTES)]


def main() -> int:
    """Run and judge; see the module text for the exit codes."""
    options = flags(__doc__, each="mutated frames, and half as many to living links").parse_args()
    return verdict(run(options.inputs, options.seed))


if __name__ == "__main__":
    sys.exit(main())
