"""Whatever breaks, nothing is promised that is not true: stopped groups, halted hosts, groups that are let go."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest

from georelay.errors import GeorelayError, NotLeader, OutcomeUnknown, Unavailable
from georelay.ids import BrokerId, GroupId, RaftIndex, Term
from georelay.wire.batch import RecordDraft, build_batch
from mesh.replication.publish import Publish
from region.multiraft.heartbeat import Beat, encode_ack, encode_beat
from region.multiraft.leader_book import encode_hints
from region.multiraft.peers import FrameKind
from tests.conditions import until

GROUP = GroupId(1)
PEER = BrokerId(1002)


def publish(broker: Any, group: GroupId = GROUP) -> asyncio.Future[Any]:
    raw = bytearray(build_batch([RecordDraft(b"v")], timestamps_ms=1))
    published = broker.streams[group].publish(Publish.built(raw, received_ns=1, entry_region=1))
    assert isinstance(published, asyncio.Future)
    return published


@pytest.fixture
async def broker(start_region: Any) -> Any:
    (only,) = await start_region(1, 2)
    await until(lambda: all(stream.is_leader for stream in only.streams.values()))
    await publish(only)
    return only


async def test_a_halted_host_answers_no_publish_even_when_its_write_becomes_durable(broker: Any) -> None:
    answer = publish(broker)
    broker.host._turn()  # on its way to the disk
    broker.host.halt()
    await until(lambda: broker.flusher.queue_length == 0)
    await asyncio.to_thread(broker.flusher.stop)  # whatever was submitted is durable and reported
    for _ in range(3):
        await asyncio.sleep(0)
    assert not answer.done()
    with pytest.raises(Unavailable):
        publish(broker)
    broker.streams[GROUP].close()
    with pytest.raises(OutcomeUnknown):
        answer.result()


async def test_a_group_that_fails_in_any_way_stops_alone(broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(broker.streams[GROUP], "applied", broken)
    answer = publish(broker)
    await until(lambda: broker.stopped_groups == [GROUP])
    assert not answer.done()
    other = await publish(broker, GroupId(2))
    assert other.base_offset == 0


async def test_a_group_that_is_let_go_is_closed_behind_its_last_write(broker: Any) -> None:
    group = broker.host.groups[GROUP]
    answer = publish(broker)
    broker.host._turn()
    closed = broker.host.close_group(GROUP)
    broker.streams[GROUP].close()
    assert not closed.done()
    await closed
    assert group.disk.last_index == group.disk.durable_index == group.node.last_index
    broker.directory.remove_group(GROUP)
    assert (await publish(broker, GroupId(2))).base_offset == 0  # the flusher did not stumble over the folder
    with pytest.raises(OutcomeUnknown):
        answer.result()


async def test_letting_a_group_go_keeps_who_leads_it_unless_that_was_this_broker(broker: Any) -> None:
    broker.host.leaders.learn(GroupId(9), Term(1), PEER)
    await broker.host.close_group(GroupId(9))
    assert broker.host.leaders.leader(GroupId(9)) == PEER  # its other replicas go on serving it
    broker.host.leaders.learn(GroupId(9), Term(2), broker.host.me)
    await broker.host.close_group(GroupId(9))
    assert broker.host.leaders.leader(GroupId(9)) == -1


async def test_a_publish_after_its_group_was_closed_is_not_stored(broker: Any) -> None:
    broker.host.close_group(GROUP)
    with pytest.raises(Unavailable):
        publish(broker)
    broker.streams[GROUP].close()
    with pytest.raises(NotLeader):
        publish(broker)


async def test_frames_for_an_unknown_group_change_nothing_and_beats_name_it_in_the_answer(
    start_region: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, *_ = await start_region(2, 1)
    peer = BrokerId(1002)
    sent: list[tuple[FrameKind, bytes]] = []

    def send(to: BrokerId, lane: object, kind: FrameKind, parts: list[bytes]) -> bool:
        sent.append((kind, b"".join(parts)))
        return True

    monkeypatch.setattr(one.host.transport, "send", send)
    beat = Beat(7, [(GroupId(99), Term(1), RaftIndex(0))], [])
    one.host.frame_received(peer, FrameKind.BEAT, memoryview(encode_beat(beat)), object())
    assert (FrameKind.BEAT_ACK, encode_ack(7, [GroupId(99)])) in sent


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (FrameKind.HELLO, b""),
        (FrameKind.RAFT, b"?"),
        (FrameKind.BEAT, b"?"),
        (FrameKind.BEAT_ACK, b"?"),
        (FrameKind.HINTS, b"?"),
        (FrameKind.HINTS, encode_hints([(GROUP, Term(99), BrokerId(1003))])),  # only a leader says that it leads
        (FrameKind.RAFT, struct.pack(">BBHIQII", 1, 0, 0, 1, 1, 1003, 1001)),
    ],
)
async def test_garbage_from_a_peer_is_refused_and_changes_nothing(broker: Any, kind: FrameKind, body: bytes) -> None:
    before = broker.host.leaders.version
    with pytest.raises((ValueError, GeorelayError)):
        broker.host.frame_received(PEER, kind, memoryview(body), object())
    assert broker.host.leaders.version == before


async def test_an_answer_to_a_beat_of_an_earlier_connection_is_no_sign_of_life(start_region: Any) -> None:
    brokers = await start_region(3, 1)
    leader = await until(lambda: next((one for one in brokers if one.streams[GROUP].is_leader), None))
    peer = next(one.me for one in brokers if one is not leader)
    node = leader.host.groups[GROUP].node
    await until(lambda: node._leadership is not None and peer in leader.host.beats.senders)
    progress = node._leadership.peers[peer]
    progress.recent_active = False
    stale = encode_ack(leader.host.beats.senders[peer]._sequence ^ 0x8000_0000, [])
    leader.host.frame_received(peer, FrameKind.BEAT_ACK, memoryview(stale), object())
    assert not progress.recent_active


async def test_a_leader_that_was_only_silent_is_known_again_when_it_is_heard(start_region: Any) -> None:
    brokers = await start_region(3, 1)
    leader = await until(lambda: next((one for one in brokers if one.streams[GROUP].is_leader), None))
    other = next(one for one in brokers if one is not leader)
    await until(lambda: other.host.leaders.leader(GROUP) == leader.me)
    other.host.leaders.lost(leader.me)
    other.host.beats.alive.discard(leader.me)
    assert other.host.leaders.leader(GROUP) == -1
    await until(lambda: other.host.leaders.leader(GROUP) == leader.me)
