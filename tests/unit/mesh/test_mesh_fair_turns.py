"""Catch-up never keeps the newest records of other streams waiting, and nobody starves."""

from __future__ import annotations

import asyncio
from typing import Any

from georelay.clock import SystemClock
from georelay.ids import BrokerId, Epoch, Offset, RegionNumber, StreamKey
from mesh.replication.fair_turns_core import TAIL_TURNS_MAX, FairTurns
from mesh.replication.frame_packing import unpack_frame
from mesh.replication.frames import Ack, Batch, Heartbeat, Hello, Open, Part, decode_frame, encode_frame
from mesh.replication.incoming_link import IncomingLink
from mesh.replication.settings import FLUSH_BYTES, LinkSettings, MeshIdentity
from mesh.replication.stream_header import first_digest

ROOM = {"has_room": True, "has_bulk_room": True}


def test_the_tail_goes_first_and_who_is_behind_goes_round() -> None:
    turns: FairTurns[str] = FairTurns()
    turns.wait("b1", is_behind=True)
    turns.wait("b2", is_behind=True)
    turns.wait("t1", is_behind=False)
    seen: list[str] = []
    for _ in range(6):
        name = turns.next(**ROOM)
        assert name is not None
        seen.append(name)
        turns.wait(name, is_behind=name.startswith("b"))
        if name == "t1":
            turns.discard("t1")
    assert seen == ["t1", "b1", "b2", "b1", "b2", "b1"]


def test_room_that_is_kept_for_the_tail_is_not_given_to_who_is_behind() -> None:
    turns: FairTurns[str] = FairTurns()
    turns.wait("b", is_behind=True)
    assert turns.next(has_room=True, has_bulk_room=False) is None
    turns.wait("t", is_behind=False)
    assert turns.next(has_room=True, has_bulk_room=False) == "t"
    assert turns.next(has_room=False, has_bulk_room=False) is None


def test_who_is_behind_has_a_turn_however_busy_the_tail_is() -> None:
    turns: FairTurns[str] = FairTurns()
    turns.wait("b", is_behind=True)
    seen: list[str | None] = []
    while "b" not in seen:
        turns.wait("t", is_behind=False)
        seen.append(turns.next(**ROOM))
    assert seen == ["t"] * TAIL_TURNS_MAX + ["b"]


def test_a_session_waits_once() -> None:
    turns: FairTurns[str] = FairTurns()
    turns.wait("a", is_behind=True)
    turns.wait("a", is_behind=False)
    assert len(turns) == 1
    assert turns.next(**ROOM) == "a"
    assert turns.next(**ROOM) is None


# --- on a link ----------------------------------------------------------------------------------------

KEYS = [StreamKey(bytes([row]) * 16, RegionNumber(0), 0) for row in range(4)]


class SlowLink:
    """A carrier that takes one frame whenever the test says so."""

    peer = "test"
    peer_names = None
    gather_ms = 2

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.is_writable = True
        self.receiver: Any = None

    def quiet_ns(self) -> None: ...

    def met(self) -> None: ...

    def start(self, receiver: Any) -> None:
        self.receiver = receiver

    def send(self, frame: bytes) -> None:
        assert self.is_writable
        self.is_writable = False
        self.frames.append(frame)

    def close(self, reason: str) -> None:
        raise AssertionError(reason)

    def hand(self, *parts: Part) -> None:
        self.receiver.frame_received(encode_frame(*parts))

    async def carry(self) -> list[Part]:
        """Let one frame through; return its parts."""
        for _ in range(200):
            if self.frames:
                break
            await asyncio.sleep(0.001)
        frame = self.frames.pop(0)
        self.is_writable = True
        self.receiver.link_writable()
        await asyncio.sleep(0)
        return decode_frame(unpack_frame(frame))


class Home:
    """Directory of some logs, and owner of the link."""

    def __init__(self, logs: dict[StreamKey, Any]) -> None:
        self.logs = logs

    def committed_log(self, key: StreamKey) -> Any:
        return self.logs[key]

    def leader_of(self, key: StreamKey) -> int:
        return 1001

    def too_old(self, _peer: Any) -> str:
        return ""

    def session_opened(self, session: Any) -> None: ...

    def session_ended(self, session: Any) -> None: ...

    def link_ended(self, link: Any) -> None: ...


def log_of(memory_log: Any, key: StreamKey, batches: int) -> Any:
    log = memory_log(key=key)
    for number in range(batches):
        log.sequence(bytes([number % 251]) * 1024)
    return log


async def opened(memory_log: Any, sizes: dict[int, int], settings: LinkSettings | None = None) -> tuple[SlowLink, Home]:
    """Return a link over which every log of `sizes` (stream -> batches) is mirrored from its start."""
    home = Home({KEYS[row]: log_of(memory_log, KEYS[row], batches) for row, batches in sizes.items()})
    link = SlowLink()
    identity = MeshIdentity(mesh_id="m", region="us", region_number=RegionNumber(1), broker_id=BrokerId(1001))
    incoming = IncomingLink(
        link,
        identity=identity,
        directory=home,
        publisher=None,  # type: ignore[arg-type]
        requests=None,  # type: ignore[arg-type]
        owner=home,  # type: ignore[arg-type]
        clock=SystemClock(),
        settings=settings or LinkSettings(compression=False),
    )
    incoming.start()
    link.hand(Open(2, "m", "eu", RegionNumber(2), BrokerId(2001)))
    await link.carry()
    hellos = [Hello(row, KEYS[row], Epoch(1), Offset(0), first_digest(KEYS[row])) for row in sizes]
    link.hand(*hellos)
    await asyncio.sleep(0.01)
    return link, home


def sessions_in(parts: list[Part]) -> set[int]:
    return {part.session for part in parts if isinstance(part, Batch)}


async def test_a_new_record_is_sent_within_three_frames_beside_a_stream_that_catches_up(memory_log: Any) -> None:
    link, home = await opened(memory_log, {0: 8_000, 1: 0})
    for _ in range(4):
        await link.carry()
    home.logs[KEYS[1]].sequence(b"news")
    waited = 0
    while 1 not in sessions_in(await link.carry()):
        waited += 1
        assert waited <= 3, "the record at the tail waits for the stream that catches up"


async def test_streams_that_catch_up_share_the_link(memory_log: Any) -> None:
    link, _ = await opened(memory_log, {0: 6_000, 1: 6_000, 2: 6_000})
    sent = {0: 0, 1: 0, 2: 0}
    for _ in range(24):
        for part in await link.carry():
            if isinstance(part, Batch):
                sent[part.session] += len(part.payload)
    assert max(sent.values()) - min(sent.values()) <= 2 * FLUSH_BYTES
    assert sum(sent.values()) >= 20 * FLUSH_BYTES // 2


async def test_everything_arrives_in_order_whoever_waits(memory_log: Any) -> None:
    link, home = await opened(memory_log, {0: 700, 1: 3, 2: 900})
    got: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    wanted = {row: home.logs[KEYS[row]].payloads() for row in got}
    while got != wanted:
        for part in await link.carry():
            if isinstance(part, Batch):
                got[part.session].append(part.payload)
        rows = tuple((row, Offset(len(payloads))) for row, payloads in got.items() if payloads)
        link.hand(Ack(rows))
    assert got == wanted


async def test_a_capped_link_sends_no_faster_than_its_cap(memory_log: Any) -> None:
    cap = 4_000_000
    link, _ = await opened(memory_log, {0: 8_000}, LinkSettings(bytes_per_s=cap, compression=False))
    loop = asyncio.get_running_loop()
    began, sent = loop.time(), 0
    while loop.time() - began < 0.4:
        if link.frames:
            sent += len(link.frames[0])
            await link.carry()
        else:
            await asyncio.sleep(0.002)
    assert cap * 0.15 < sent < cap * 0.4 + 2 * FLUSH_BYTES + cap * 0.06


async def test_a_sign_of_life_does_not_wait_for_the_cap(memory_log: Any) -> None:
    link, home = await opened(memory_log, {0: 4_000}, LinkSettings(bytes_per_s=100_000, compression=False))
    assert sessions_in(await link.carry()) == {0}  # seconds of the cap
    link.receiver.tick(Heartbeat(5, ((0, Offset(4_000), 1),)))
    assert await link.carry() == [Heartbeat(5, ((0, Offset(4_000), 1),))]
    assert home.logs


async def test_frames_are_packed_once_the_link_is_what_others_wait_for(memory_log: Any) -> None:
    link, _ = await opened(memory_log, {0: 4_000}, LinkSettings())
    first_bytes = set()
    for _ in range(8):
        await asyncio.sleep(0.05)  # 5 MB/s: slower than compressing
        while not link.frames:
            await asyncio.sleep(0.001)
        first_bytes.add(link.frames[0][0])
        await link.carry()
    assert first_bytes == {0x01, 0x80}
