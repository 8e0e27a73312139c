"""What is urgent overtakes records, and never what it depends on."""

from __future__ import annotations

import asyncio
from typing import Any

from georelay.ids import BrokerId, Epoch, Offset, RegionNumber
from mesh.replication.frame_packing import unpack_frame
from mesh.replication.frames import (
    Batch,
    Heartbeat,
    Open,
    Part,
    Raft,
    Request,
    Welcome,
    decode_frame,
    encode_frame,
    encode_part,
)
from mesh.replication.link_endpoint import LinkEndpoint
from mesh.replication.outbox_core import Outbox
from mesh.replication.settings import LinkSettings, MeshIdentity

WELCOME = Welcome(7, Epoch(1), 1, Offset(0), Offset(5), bytes(16), ((Epoch(1), Offset(0)),))
PEER = Open(2, "m", "eu", RegionNumber(2), BrokerId(2001))
SECOND = 1_000_000_000


def outbox() -> Outbox:
    return Outbox(frame_bytes=100)


def test_urgent_parts_leave_before_ordered_ones_and_each_kind_in_order() -> None:
    box = outbox()
    box.queue(b"r1", b"+")
    box.hurry(b"u1")
    box.queue(b"r2")
    box.hurry(b"u2")
    assert box.take(only_urgent=False) == [b"u1", b"u2", b"r1", b"+", b"r2"]
    assert box.size_bytes == 0


def test_the_introduction_leaves_before_everything_that_was_urgent_before_it() -> None:
    box = outbox()
    box.hurry(b"u")
    box.introduce(b"open")
    assert box.take(only_urgent=True) == [b"open", b"u"]


def test_ordered_parts_stay_while_only_the_urgent_may_go() -> None:
    box = outbox()
    box.queue(b"r")
    box.hurry(b"u")
    assert box.take(only_urgent=True) == [b"u"]
    assert (box.size_bytes, box.has_urgent) == (1, False)
    assert box.take(only_urgent=False) == [b"r"]


def test_a_frame_is_closed_at_its_size_and_a_larger_part_travels_alone() -> None:
    box = outbox()
    for size in (60, 30, 30, 500, 1):
        box.queue(bytes(size))
    assert [sum(map(len, box.take(only_urgent=False))) for _ in range(4)] == [90, 30, 500, 1]


def test_a_session_is_held_until_the_part_that_holds_it_has_left() -> None:
    box = outbox()
    box.queue(bytes(90))
    box.queue(bytes(90))
    box.hold(7)
    box.take(only_urgent=False)
    assert box.is_held(7)
    box.hurry(b"u")
    box.take(only_urgent=True)
    assert box.is_held(7)
    box.take(only_urgent=False)
    assert not box.is_held(7)


# --- at one end of a link -----------------------------------------------------------------------------


class SlowLink:
    """A carrier that takes a frame when the test says so."""

    peer = "test"
    peer_names = None
    gather_ms = 2

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.is_writable = True
        self.quiet: int | None = None
        self.closed = ""
        self.receiver: Any = None

    def quiet_ns(self) -> int | None:
        return self.quiet

    def met(self) -> None: ...

    def start(self, receiver: Any) -> None:
        self.receiver = receiver

    def send(self, frame: bytes) -> None:
        self.is_writable = False
        self.frames.append(frame)

    def close(self, reason: str) -> None:
        self.closed = reason

    async def carry(self) -> list[Part]:
        """Let the frame that is on its way arrive; return its parts."""
        while not self.frames:
            await asyncio.sleep(0)
        frame = self.frames.pop(0)
        self.is_writable = True
        self.receiver.link_writable()
        return decode_frame(unpack_frame(frame))


class Eager:
    """A conversation that says something urgent as soon as it may."""

    def __init__(self) -> None:
        self.endpoint: Any = None
        self.eager: tuple[Part, ...] = ()

    def check_peer(self, _broker: BrokerId) -> str:
        return ""

    def too_old(self, _peer: Open) -> str:
        return ""

    def link_opened(self, _peer: Open) -> None:
        for part in self.eager:
            self.endpoint.post(part)

    def part_received(self, _part: Part) -> None: ...

    def link_drained(self) -> None: ...

    def link_lost(self, _reason: str) -> None: ...


class StepClock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now_ns = SECOND

    def monotonic_ns(self) -> int:
        return self.now_ns

    def wall_ns(self) -> int:
        return self.now_ns


def accepted(eager: tuple[Part, ...] = (), *, bytes_per_s: int = 0) -> tuple[LinkEndpoint, SlowLink, StepClock]:
    link, talk, clock = SlowLink(), Eager(), StepClock()
    identity = MeshIdentity(mesh_id="m", region="us", region_number=RegionNumber(1), broker_id=BrokerId(1001))
    settings = LinkSettings(compression=False, bytes_per_s=bytes_per_s)
    endpoint = LinkEndpoint(link, identity=identity, conversation=talk, clock=clock, settings=settings, dials=None)
    talk.endpoint, talk.eager = endpoint, eager
    endpoint.start()
    return endpoint, link, clock


def kinds(parts: list[Part]) -> list[type[Any]]:
    return [type(part) for part in parts]


async def test_nothing_urgent_leaves_before_the_open_of_this_end() -> None:
    _, link, _ = accepted((Raft(b"vote"), Heartbeat(1)))
    link.receiver.frame_received(encode_frame(PEER))
    assert kinds(await link.carry()) == [Open, Raft, Heartbeat]


async def test_a_row_about_a_session_does_not_overtake_its_welcome() -> None:
    endpoint, link, _ = accepted()
    link.receiver.frame_received(encode_frame(PEER))
    await link.carry()
    endpoint.post(Request(1, "records", {}))
    endpoint.post(WELCOME)
    endpoint.tick(Heartbeat(5, ((3, Offset(9), 0), (7, Offset(5), 0))))
    assert await link.carry() == [
        Heartbeat(5, ((3, Offset(9), 0),)),
        Request(1, "records", {}),
        WELCOME,
        Heartbeat(5, ((7, Offset(5), 0),)),
    ]


async def test_a_later_row_about_a_session_does_not_overtake_an_earlier_one_that_waits() -> None:
    endpoint, link, clock = accepted(bytes_per_s=100_000)
    link.receiver.frame_received(encode_frame(PEER))
    await link.carry()
    endpoint.post(Batch(3, Epoch(1), bytes(80), bytes(20_000)))  # a fifth of a second of the cap
    assert kinds(await link.carry()) == [Batch]
    endpoint.post(WELCOME)
    endpoint.tick(Heartbeat(5, ((7, Offset(5), 1),)))
    endpoint.tick(Heartbeat(6, ((7, Offset(6), 2),)))
    assert await link.carry() == [Heartbeat(5), Heartbeat(6)]  # signs of life wait for nothing
    clock.now_ns += 10 * SECOND
    endpoint.post(Request(1, "records", {}))
    assert await link.carry() == [
        WELCOME,
        Heartbeat(5, ((7, Offset(5), 1),)),
        Heartbeat(6, ((7, Offset(6), 2),)),
        Request(1, "records", {}),
    ]
    endpoint.post(Heartbeat(7, ((7, Offset(7), 3),)))
    endpoint.post(Request(2, "records", {}))
    assert kinds(await link.carry()) == [Heartbeat, Request]


async def test_what_waits_for_the_carrier_is_counted_in_bytes() -> None:
    endpoint, link, _ = accepted()
    link.receiver.frame_received(encode_frame(PEER))
    await link.carry()
    request = Request(1, "records", {"text": "x" * 1_100_000})
    assert endpoint.has_room
    endpoint.post(request)
    assert (endpoint.has_room, endpoint.has_bulk_room) == (False, False)
    assert [encode_part(part) for part in await link.carry()] == [encode_part(request)]
    assert (endpoint.has_room, endpoint.has_bulk_room) == (True, True)


async def test_a_heartbeat_about_many_sessions_is_sorted_without_comparing_its_rows() -> None:
    class Row(tuple[int, Offset, int]):
        """A row that counts how often it is compared."""

        compared = 0

        def __eq__(self, other: object) -> bool:
            Row.compared += 1
            return super().__eq__(other)

        __hash__ = tuple.__hash__

    endpoint, link, _ = accepted()
    link.receiver.frame_received(encode_frame(PEER))
    await link.carry()
    for session in range(0, 400, 2):
        endpoint.post(WELCOME._replace(session=session))
    rows = tuple(Row((session, Offset(session), 0)) for session in range(400))
    endpoint.post(Heartbeat(1, rows))
    parts: list[Part] = []
    while len(parts) < 202:
        parts += await link.carry()
    beats = [part for part in parts if isinstance(part, Heartbeat)]
    assert sorted(row[0] for beat in beats for row in beat.rows) == list(range(400))
    assert {row[0] % 2 for row in beats[0].rows} == {1}, "what is free overtakes what is held"
    assert Row.compared == 0


# --- signs of life ------------------------------------------------------------------------------------


async def test_a_link_whose_carrier_hears_the_other_broker_sends_no_signs_of_life_and_lives_by_what_it_hears() -> None:
    endpoint, link, clock = accepted()
    link.receiver.frame_received(encode_frame(PEER))
    await link.carry()
    for _ in range(10):
        clock.now_ns += SECOND
        link.quiet = SECOND // 5
        endpoint.tick()
    await asyncio.sleep(0)
    assert (link.frames, link.closed) == ([], "")
    link.quiet = None  # nothing is heard there any more: the link says itself that this end lives
    link.receiver.frame_received(encode_frame(Heartbeat(1)))
    clock.now_ns += SECOND
    endpoint.tick()
    assert kinds(await link.carry()) == [Heartbeat]
    link.quiet = 2 * SECOND
    clock.now_ns += SECOND
    endpoint.tick()
    assert link.closed == "no sign of life for 2000 ms"
