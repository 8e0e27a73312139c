"""Frames of control's Raft group over links: sessions, pieces, and what is dropped."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import pytest

from georelay.ids import BrokerId
from region.control.raft_links import FRAME_BYTES_MAX, LOSS_TOLD_WITHIN_S, RaftLinks
from region.control.raft_wire import PIECE_BYTES, RaftFrameError, decode, encode
from region.multiraft.transport import FrameKind, Lane

ID = "c" * 32


class Host:
    def __init__(self) -> None:
        self.events: list[Any] = []

    def frame_received(self, peer: BrokerId, kind: FrameKind, body: memoryview, connection: object) -> None:
        self.events.append((peer, kind, bytes(body), connection))

    def peer_connected(self, peer: BrokerId, lane: Lane) -> None:
        self.events.append(("up", peer, lane))

    def peer_lost(self, peer: BrokerId, lane: Lane) -> None:
        self.events.append(("down", peer, lane))

    def connection_closed(self, connection: object) -> None:
        self.events.append(("closed", connection))

    def frames(self) -> list[bytes]:
        return [event[2] for event in self.events if isinstance(event[1], FrameKind)]


class Pair:
    """Replica 1 on broker 1001, replica 2 on broker 2001, and the links between them."""

    def __init__(self) -> None:
        self.open = True
        self.link_life = 1
        self.lives = 0
        self.now_s = 0.0
        self.ways: deque[tuple[int, bytes]] = deque()
        self.hosts: dict[int, Host] = {}
        self.links: dict[int, RaftLinks] = {}
        for me in (1, 2):
            self.begin(me)

    def begin(self, me: int) -> None:
        """Begin a life of one of them."""
        self.lives += 1

        def post(broker: BrokerId, body: bytes) -> bool:
            if self.open:
                self.ways.append((broker // 1000, body))
            return self.open

        self.hosts[me] = Host()
        self.links[me] = RaftLinks(
            me=me,
            control_id=ID,
            generation=1,
            receiver=self.hosts[me],
            post=post,
            link_life=lambda _: self.link_life if self.open else 0,
            rng=random.Random(self.lives),
            now_s=lambda: self.now_s,
        )
        self.links[me].know({1: BrokerId(1001), 2: BrokerId(2001)})

    async def start(self) -> None:
        for links in self.links.values():
            await links.start()
        self.deliver()

    def deliver(self) -> None:
        while self.ways:
            target, body = self.ways.popleft()
            self.links[target].frame_received(decode(body))

    def send(self, me: int, body: bytes) -> bool:
        sent = self.links[me].send(BrokerId(3 - me), Lane.CONTROL, FrameKind.RAFT, [body])
        self.deliver()
        return sent

    def lose_link(self) -> None:
        """Lose the link with all that is under way, and have it open again before anybody looks."""
        self.ways.clear()
        self.link_life += 1


@pytest.fixture
async def pair() -> Pair:
    made = Pair()
    await made.start()
    return made


async def test_both_directions_are_up_after_the_greeting(pair: Pair) -> None:
    for me in (1, 2):
        assert [event for event in pair.hosts[me].events if event[0] == "up"] == [
            ("up", 3 - me, Lane.CONTROL),
            ("up", 3 - me, Lane.APPEND),
        ]


async def test_frames_arrive_in_order_with_the_connection_they_came_on(pair: Pair) -> None:
    assert pair.send(1, b"first") and pair.send(1, b"second")
    frames = [event for event in pair.hosts[2].events if isinstance(event[1], FrameKind)]
    assert [frame[2] for frame in frames] == [b"first", b"second"]
    assert frames[0][3] == frames[1][3]


async def test_a_long_frame_travels_in_pieces(pair: Pair) -> None:
    long = bytes(range(256)) * (PIECE_BYTES // 256 * 2 + 1)
    assert pair.send(1, long)
    assert pair.hosts[2].frames() == [long]


async def test_nothing_is_sent_to_a_stranger_or_over_a_closed_link(pair: Pair) -> None:
    assert not pair.links[1].send(BrokerId(9), Lane.CONTROL, FrameKind.RAFT, [b"x"])
    pair.open = False
    assert not pair.send(1, b"x")
    assert pair.links[1].dropped_frames() == 1


async def test_a_lost_link_is_told_and_begins_with_another_session(pair: Pair) -> None:
    pair.send(1, b"before")
    pair.open = False
    for links in pair.links.values():
        links.look()
    assert ("down", 2, Lane.CONTROL) not in pair.hosts[1].events  # not at once: others hear of it at this moment too
    pair.now_s += LOSS_TOLD_WITHIN_S
    for links in pair.links.values():
        links.look()
    assert ("down", 2, Lane.CONTROL) in pair.hosts[1].events
    pair.open = True
    pair.lose_link()
    for links in pair.links.values():
        links.look()
    pair.deliver()
    pair.send(1, b"after")
    connections = {event[3] for event in pair.hosts[2].events if isinstance(event[1], FrameKind)}
    assert pair.hosts[2].frames() == [b"before", b"after"]
    assert len(connections) == 2


async def test_a_look_says_whether_every_replica_is_there_so_that_the_next_one_may_come_later(pair: Pair) -> None:
    assert pair.links[1].look()
    pair.links[1].know({1: BrokerId(1001), 2: BrokerId(2001), 3: BrokerId(3001)})
    assert not pair.links[1].look()


async def test_a_link_that_is_back_at_once_begins_anew_all_the_same(pair: Pair) -> None:
    pair.open = False
    pair.links[1].look()
    pair.open = True
    pair.lose_link()
    pair.links[1].look()
    pair.deliver()
    assert ("down", 2, Lane.CONTROL) in pair.hosts[1].events
    pair.send(1, b"after")
    assert pair.hosts[2].frames() == [b"after"]


async def test_a_replica_that_began_anew_is_noticed_and_hears_nothing_of_the_life_before(pair: Pair) -> None:
    pair.begin(2)
    await pair.links[2].start()
    assert not pair.hosts[2].frames()
    pair.send(1, b"for the life before")
    assert not pair.hosts[2].frames()
    pair.deliver()
    assert ("down", 2, Lane.CONTROL) in pair.hosts[1].events
    pair.send(1, b"for this life")
    assert pair.hosts[2].frames() == [b"for this life"]


async def test_a_replica_that_is_none_any_more_is_heard_no_more(pair: Pair) -> None:
    pair.links[2].know({2: BrokerId(2001)})
    pair.send(1, b"x")
    assert not pair.hosts[2].frames()


async def test_a_frame_without_end_is_an_error(pair: Pair) -> None:
    pair.send(1, b"x")
    sent: list[bytes] = []
    pair.links[1]._post = lambda _, body: not sent.append(body)  # type: ignore[func-returns-value]
    pair.links[1].send(BrokerId(2), Lane.CONTROL, FrameKind.RAFT, [bytes(PIECE_BYTES + 1)])
    piece = decode(sent[0])
    assert piece.has_more
    for _ in range(FRAME_BYTES_MAX // PIECE_BYTES):
        pair.links[2].frame_received(piece)
    with pytest.raises(RaftFrameError, match="is over"):
        pair.links[2].frame_received(piece)


async def test_a_frame_names_the_broker_that_its_replica_is_on(pair: Pair) -> None:
    sent: list[bytes] = []
    pair.links[1]._post = lambda _, body: not sent.append(body)  # type: ignore[func-returns-value]
    pair.links[1].send(BrokerId(2), Lane.CONTROL, FrameKind.RAFT, [b"x"])
    frame = decode(sent[0])
    assert pair.links[2].is_from(frame, BrokerId(1001))
    assert not pair.links[2].is_from(frame, BrokerId(3001))


@pytest.mark.parametrize("raw", [b"", bytes(45), bytes(45) + b"\xff", bytes(46 + PIECE_BYTES + 1)], ids=len)
def test_bytes_that_are_no_frame_are_refused(raw: bytes) -> None:
    with pytest.raises(RaftFrameError):
        decode(raw)


async def test_a_frame_has_the_same_bytes_after_it_was_read(pair: Pair) -> None:
    sent: list[bytes] = []
    pair.links[1]._post = lambda _, body: not sent.append(body)  # type: ignore[func-returns-value]
    pair.links[1].send(BrokerId(2), Lane.CONTROL, FrameKind.BEAT, [b"body"])
    assert encode(decode(sent[0])) == sent[0]


async def test_a_link_that_is_open_again_before_anybody_looked_was_lost_all_the_same(pair: Pair) -> None:
    pair.links[1].send(BrokerId(2), Lane.CONTROL, FrameKind.BEAT, [b"what this beat says is never said again"])
    pair.lose_link()
    for links in pair.links.values():
        links.look()
    pair.deliver()
    for me in (1, 2):
        told = [event[0] for event in pair.hosts[me].events if event[0] in ("up", "down")]
        assert told[2:4] == ["down", "down"] and told[-2:] == ["up", "up"]
    assert pair.send(1, b"afterwards") and pair.hosts[2].frames() == [b"afterwards"]
