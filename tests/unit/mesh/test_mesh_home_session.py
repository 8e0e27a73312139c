"""A home session that the log start overtakes ends, whatever its state; nothing is sent in place of what is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from georelay.clock import SystemClock
from georelay.errors import OffsetOutOfRange
from georelay.ids import Epoch, Offset, RegionNumber
from mesh.replication.frames import Hello, LogStarts, Part, Refused, Reset, Skip, Welcome, decode_frame, encode_frame
from mesh.replication.hello_answer import answer_hello
from mesh.replication.home_session import HomeSession
from mesh.replication.settings import LinkSettings
from mesh.replication.stream_header import first_digest


class OneLink:
    """Collects what a session sends."""

    def __init__(self) -> None:
        self.has_room = self.has_bulk_room = True
        self.parts: list[Part] = []
        self.buffers: list[tuple[bytes, ...]] = []
        self.starving: list[HomeSession] = []
        self.ended_sessions: list[HomeSession] = []
        self.work: list[Coroutine[Any, Any, None]] = []
        self.telling: list[HomeSession] = []

    def post(self, part: Part) -> None:
        self.parts.append(part)

    def post_buffers(self, *buffers: bytes) -> None:
        self.buffers.append(buffers)

    def starved(self, session: HomeSession) -> None:
        self.starving.append(session)

    def ended(self, session: HomeSession) -> None:
        self.ended_sessions.append(session)

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self.work.append(coroutine)

    def watermark_moved(self, session: HomeSession) -> None:
        self.telling.append(session)


async def open_session(log: Any, link: OneLink) -> HomeSession:
    hello = Hello(1, log.key, Epoch(1), Offset(0), first_digest(log.key))
    welcome = await answer_hello(hello, log, leader=1001)
    assert isinstance(welcome, Welcome)
    return HomeSession(
        hello=hello,
        welcome=welcome,
        committed=log,
        link=link,
        region=RegionNumber(2),
        broker=2001,
        clock=SystemClock(),
        settings=LinkSettings(),
    )


@pytest.fixture
def home(memory_log: Any) -> Any:
    log = memory_log()
    for number in range(5):
        log.sequence(f"batch {number}".encode() * 4)
    return log


async def test_a_session_without_room_ends_when_the_log_start_overtakes_it(home: Any) -> None:
    link = OneLink()
    link.has_room = False
    session = await open_session(home, link)
    session.pump()
    assert link.starving == [session]
    home.delete_below(Offset(3))
    assert [type(part) for part in link.parts] == [Reset]
    assert (link.ended_sessions, link.buffers) == ([session], [])


async def test_a_session_that_is_ahead_of_the_log_start_goes_on_and_says_where_it_is(home: Any) -> None:
    link = OneLink()
    session = await open_session(home, link)
    session.pump()
    assert len(link.buffers) == 5
    assert session.start_row() is None
    home.delete_below(Offset(3))
    assert link.parts == []
    row = session.start_row()
    assert row == (1, 3)
    assert session.start_row() is None
    assert decode_frame(encode_frame(LogStarts((row,)))) == [LogStarts(((1, Offset(3)),))]


async def test_records_deleted_under_a_read_from_disk_end_the_session_without_an_alarm(home: Any) -> None:
    link = OneLink()
    home.only_cold = True
    session = await open_session(home, link)
    session.pump()
    home.delete_below(Offset(3))
    home.read_failure = OffsetOutOfRange("deleted")
    for work in link.work:
        await work
    await asyncio.sleep(0)
    assert not any(isinstance(part, Refused) for part in link.parts)
    assert [type(part) for part in link.parts] == [Reset]
    assert link.ended_sessions == [session]


async def test_the_lag_of_a_mirror_below_the_log_start_is_still_told(home: Any) -> None:
    session = await open_session(home, OneLink())
    home.delete_below(Offset(3))
    assert session.lag_us() == 0  # the append time of what it lacks is gone with the records
    assert session.snapshot().lag_records == 5


@pytest.mark.parametrize(("version", "producers"), [(3, b"states"), (4, b"states with checksums")])
async def test_checksums_of_what_is_skipped_are_sent_to_brokers_that_know_how_they_travel(
    home: Any, version: int, producers: bytes
) -> None:
    home.sequence(b"one")
    home.sequence(b"two")
    home.delete_below(Offset(2))
    hello = Hello(1, home.key, Epoch(1), Offset(0), first_digest(home.key))
    answer = await answer_hello(hello, home, leader=1001, peer_version=version)
    assert isinstance(answer, Skip)
    assert answer.producers == producers
