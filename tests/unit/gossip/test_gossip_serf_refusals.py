"""What a Serf member refuses, drops and counts: strangers, forged answers, too many questions, damaged lines."""

from __future__ import annotations

import base64
import random
from collections import Counter
from typing import Any

import pytest

from mesh.gossip import foreigners_core, serf_queries_core, snapshot_core
from mesh.gossip.broadcast_queue_core import BroadcastQueue
from mesh.gossip.codec import Ack, Alive, MemberRow, PushPull, encode, encode_coordinate, encode_push_pull
from mesh.gossip.coordinate_core import Coordinate
from mesh.gossip.faults import CodecError, MergeRefused
from mesh.gossip.foreigners_core import Foreigners
from mesh.gossip.key_queries_core import cut_to
from mesh.gossip.lamport_core import LamportClock
from mesh.gossip.member import Member, MemberState, Versions
from mesh.gossip.member_table_core import PRUNE_LEAVING_S, MemberTable
from mesh.gossip.query_payloads import UNKNOWN_NAME, ConflictResponse, KeyResponse
from mesh.gossip.serf_core import TooLong
from mesh.gossip.serf_intents_core import SerfIntents
from mesh.gossip.serf_map_core import SerfMap
from mesh.gossip.serf_messages import JoinIntent, Query, QueryFlag, QueryResponse, UserState
from mesh.gossip.serf_queries_core import QUERY_BYTES_MAX, RESPONSE_BYTES_MAX
from mesh.gossip.snapshot_core import Remembered
from mesh.gossip.tags import encode_tags
from mesh.gossip.view import MemberChange, MemberStatus

World = Any
ELSEWHERE = ("10.9.9.9", 7946)


def tell(world: World, serf: Any, body: bytes) -> None:
    """Hand a message of this layer to a member, as if a packet had brought it."""
    serf.packet_received(b"\x08" + body, ELSEWHERE, world.now)
    world.settle()


# --- strangers -----------------------------------------------------------------------------------------


def test_a_member_of_another_mesh_that_comes_by_rumour_is_never_told_whatever_becomes_of_it(world: World) -> None:
    a = world.add("a", tags={"cl": "shop"}, mesh="shop")
    between = world.add("m")  # it names no mesh, so it refuses nobody
    world.join(between, a)
    stranger = world.add("x", tags={"cl": "bank"})
    world.join(stranger, between)
    world.run(2.0)
    assert a.counts["foreign_member"] == 1
    stranger.set_tags({"cl": "bank", "color": "red"}, world.now)
    world.run(2.0)
    stranger.leave(world.now)
    world.run(2.0)
    assert [member.name for member in a.members()] == ["a", "m"]
    assert {name for _, name in world.changes(a)} == {"a", "m"}
    assert [member.name for member in between.members()] == ["a", "m", "x"]


def member(name: str, meta: bytes) -> Member:
    versions = Versions(1, 5, 2, 2, 5, 4)
    return Member(
        name=name,
        address=ELSEWHERE,
        meta=meta,
        versions=versions,
        incarnation=1,
        state=MemberState.ALIVE,
        changed_at=0.0,
    )


def test_unreadable_tags_are_none_and_a_stranger_that_becomes_one_of_ours_is_known() -> None:
    counts: Counter[str] = Counter()
    foreigners = Foreigners(mesh="shop", counts=counts)
    assert foreigners.tags_of(member("x", b"\xff\xc1")) == {}
    assert foreigners.tags_of(member("x", encode_tags({"cl": "bank"}))) is None
    assert foreigners.known == 1
    assert foreigners.tags_of(member("x", encode_tags({"cl": "shop"}))) == {"cl": "shop"}
    assert foreigners.known == 0
    assert counts == {"tags_refused": 1, "foreign_member": 1}


def test_few_strangers_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreigners_core, "NAMES_MAX", 2)
    counts: Counter[str] = Counter()
    foreigners = Foreigners(mesh="shop", counts=counts)
    for name in ("x", "x", "y", "z"):
        assert foreigners.tags_of(member(name, encode_tags({"cl": "bank"}))) is None
    assert (foreigners.known, counts["foreign_member"]) == (1, 3)


# --- members -------------------------------------------------------------------------------------------


def table() -> MemberTable:
    return MemberTable(me="me", is_leaving=lambda: False)


def test_news_of_a_name_that_nobody_has_changes_nothing() -> None:
    rows = table()
    assert rows.gone("x", 1.0) is None
    assert rows.updated("x", ELSEWHERE, {}) is None
    assert rows.rows == {}


def test_a_member_that_left_does_not_fail_later() -> None:
    rows = table()
    rows.joined("x", ELSEWHERE, {})
    rows.leave_intended("x", 1, prune=False, now=0.0)
    assert [rows.gone("x", 1.0), rows.gone("x", 2.0)] == [MemberChange.LEFT, None]


def test_a_living_member_that_is_to_be_pruned_is_forgotten_once_it_had_time_to_leave() -> None:
    rows = table()
    rows.joined("x", ELSEWHERE, {})
    rows.joined("y", ELSEWHERE, {})
    for name in ("x", "y"):
        assert rows.leave_intended(name, 1, prune=True, now=0.0).changes == []
    rows.join_intended("y", 2, now=0.0)  # it is there after all
    assert rows.reap(PRUNE_LEAVING_S - 0.1, failed_after_s=1e9, left_after_s=1e9) == []
    gone = rows.reap(PRUNE_LEAVING_S, failed_after_s=1e9, left_after_s=1e9)
    assert [row.name for row in gone] == ["x"]
    assert [row.name for row in rows.of_status(MemberStatus.ALIVE)] == ["y"]


def test_one_member_is_erased_at_once() -> None:
    rows = table()
    rows.joined("x", ELSEWHERE, {})
    assert rows.erase("x") is not None
    assert rows.erase("x") is None


# --- where members are ---------------------------------------------------------------------------------


def test_a_coordinate_that_cannot_be_is_counted_and_teaches_nothing() -> None:
    counts: Counter[str] = Counter()
    places = SerfMap(me="me", rng=random.Random(1), counts=counts)
    before = places.own
    places.pinged("x", 0.02, b"")
    places.pinged("x", 0.02, b"\x01\xc1")
    places.pinged("x", 0.02, encode_coordinate(Coordinate(vec=(0.0,) * 8, error=float("nan"), adjustment=0, height=1)))
    assert (places.own, counts["coordinate_refused"]) == (before, 2)
    assert [places.rtt_s("me", "x"), places.rtt_s("x", "x")] == [None, 0.0]
    places.pinged("x", 0.02, places.payload())
    assert places.rtt_s("me", "x") is not None
    places.forget("x")
    assert places.rtt_s("me", "x") is None


def test_a_member_says_where_it_is_how_far_others_are_and_what_waits(world: World) -> None:
    a, _ = world.pool("a", "b")
    world.run(5.0)
    assert a.coordinate.height > 0
    assert [a.rtt_s("a", "a"), a.rtt_s("a", "nobody")] == [0.0, None]
    assert a.queued() == {"intent": 0, "query": 0, "event": 0}


def test_a_stall_of_the_main_loop_makes_a_member_doubt_itself(world: World) -> None:
    (a,) = world.pool("a")
    a.stalled(16.0, world.now)
    assert a.memberlist.counts["stalled"] == 1
    a.stalled(0.01, world.now)
    assert a.memberlist.counts["stalled"] == 1


# --- states and answers that nobody asked for ------------------------------------------------------------


def state(**changes: Any) -> UserState:
    rows: dict[str, Any] = {"ltime": 0, "statuses": {}, "left": (), "event_ltime": 0, "events": (), "query_ltime": 0}
    return UserState(**(rows | changes))


def test_a_whole_state_in_a_packet_is_refused(world: World) -> None:
    (a,) = world.pool("a")
    before = (a.members(), a.clocks)
    tell(world, a, state(ltime=900).encode())
    assert (a.members(), a.clocks) == before
    assert sum(a.memberlist.counts.values()) > 0


def test_a_state_of_a_member_that_never_said_anything_moves_no_clock(world: World) -> None:
    (a,) = world.pool("a")
    before = a.clocks
    a.merge_remote_state(state().encode(), join=False)
    assert a.clocks == before
    a.merge_remote_state(state(query_ltime=90).encode(), join=False)
    assert (a.clocks.members, a.clocks.events, a.clocks.queries) == (before.members, before.events, 89)


def test_an_answer_to_a_ping_over_a_connection_that_nobody_sent_changes_nothing(world: World) -> None:
    a, _ = world.pool("a", "b")
    before = a.members()
    a.stream_ping_answered(4_711, encode(Ack(seq_no=4_711, payload=b"")), world.now)
    assert a.members() == before


# --- questions -----------------------------------------------------------------------------------------


def test_a_question_or_an_answer_that_is_too_long_is_refused_and_nothing_is_sent(world: World) -> None:
    a, b = world.pool("a", "b")
    with pytest.raises(TooLong, match=f"a query may take {QUERY_BYTES_MAX}"):
        a.query("who", b"x" * QUERY_BYTES_MAX, world.now)
    a.query("who", b"", world.now, timeout_s=1.0)
    world.settle()
    world.run(0.5)
    (heard,) = world.queries(b)
    with pytest.raises(TooLong, match=f"an answer may take {RESPONSE_BYTES_MAX}"):
        b.respond(heard.query, b"x" * RESPONSE_BYTES_MAX, world.now)
    assert world.answers(a) == []


def test_few_questions_are_open_at_a_time_own_ones_and_those_of_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = world.pool("a", "b")
    monkeypatch.setattr(serf_queries_core, "RUNNING_MAX", 1)
    a.query("one", b"", world.now, timeout_s=5.0)
    with pytest.raises(TooLong, match="1 queries are open"):
        a.query("two", b"", world.now, timeout_s=5.0)
    b.query("three", b"", world.now, timeout_s=5.0)
    world.settle()
    world.run(1.0)
    assert len(world.queries(a)) == 1


def test_a_question_that_is_not_to_be_spread_stays_here(world: World) -> None:
    a, b = world.pool("a", "b")
    question = Query(
        ltime=50, query_id=7, address=ELSEWHERE, source="x", filters=(), flags=QueryFlag.NO_REBROADCAST,
        relay_factor=0, timeout_ns=10**9, name="who", payload=b"",
    )  # fmt: skip
    tell(world, a, question.encode())
    world.run(1.0)
    assert (len(world.queries(a)), world.queries(b)) == (1, [])


def test_a_name_that_is_unknown_is_answered_as_unknown(world: World) -> None:
    a, _ = world.pool("a", "b")
    a.query("_serf_conflict", b"nobody", world.now, timeout_s=1.0)
    world.settle()
    world.run(0.5)
    assert {answer.payload for answer in world.answers(a)} == {UNKNOWN_NAME}


def test_a_vote_counts_once_it_can_be_read_names_us_and_is_no_acknowledgement(world: World) -> None:
    a, _ = world.pool("a", "b")
    world.cut.add("b")  # its answers are written here
    a._queries.settle_conflict(world.now, alive=2)
    a._queries.settle_conflict(world.now, alive=2)
    (query_id,) = a._queries._votes
    other = ConflictResponse(name="z", address=ELSEWHERE, tags={}, status=1).encode()
    ours = ConflictResponse(name="a", address=ELSEWHERE, tags={}, status=1).encode()
    votes = [("1", False, b"\xc1"), ("2", False, other), ("3", True, ours), ("4", False, ours)]
    for sender, is_ack, payload in votes:
        response = QueryResponse(
            ltime=a.clocks.queries, query_id=query_id, sender=sender, is_ack=is_ack, payload=payload
        )
        tell(world, a, response.encode())
    assert a._queries._votes[query_id] == [ELSEWHERE]
    assert a.counts["response_refused"] == 1


def test_a_list_of_keys_is_cut_to_the_room_there_is_and_says_so() -> None:
    keys = [base64.b64encode(bytes([number]) * 32).decode() for number in range(20)]
    whole = KeyResponse(result=True, keys=keys, primary=keys[0])
    assert cut_to(whole, room_bytes=4_096) == whole
    cut = cut_to(whole, room_bytes=600)
    assert 0 < len(cut.keys) < 20
    assert len(cut.encode()) <= 600
    assert cut.text == f"truncated: {len(cut.keys)} of 20 keys"


# --- what is remembered ----------------------------------------------------------------------------------


def test_a_damaged_line_of_a_snapshot_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_core, "METAS_MAX", 2)
    remembered = Remembered()
    good = base64.b64encode(encode_tags({"id": "1"})).decode()
    lines = ["tags: a " + good, "tags: b AAAA", "tags: c " + good, "tags: d !", "forget: gone", "what: x", "clock: -1"]
    assert [remembered.take(line) for line in lines] == [True, True, False, False, True, False, False]
    assert remembered.tags()["a"] == {"id": "1"}
    assert "c" not in remembered.tags()
    remembered.take("alive: a 10.0.0.1:7946")
    remembered.take("forget: a")
    assert (remembered.alive, "a" in remembered.tags()) == ({}, False)


# --- exchanges, conflicts and farewells ------------------------------------------------------------------


def exchanged(*rows: MemberRow) -> bytes:
    return encode_push_pull(PushPull(is_join=False, rows=rows, user_state=b""))


def row(name: str, meta: bytes, member_state: MemberState = MemberState.ALIVE) -> MemberRow:
    return MemberRow(
        name=name, address=ELSEWHERE, meta=meta, incarnation=1, state=member_state, versions=Versions(1, 5, 2, 2, 5, 4)
    )


def test_only_a_living_member_that_names_another_mesh_makes_an_exchange_be_refused() -> None:
    foreigners = Foreigners(mesh="shop", counts=Counter())
    stranger, unreadable = encode_tags({"cl": "bank"}), b"\xff\xc1"
    foreigners.refuse(exchanged(row("x", stranger, MemberState.DEAD), row("y", unreadable), row("z", b"")))
    with pytest.raises(MergeRefused, match="x is of the mesh 'bank'"):
        foreigners.refuse(exchanged(row("y", unreadable), row("x", stranger)))


def test_an_exchange_without_a_state_of_this_layer_is_refused(world: World) -> None:
    (a,) = world.pool("a")
    before = (a.members(), a.clocks)
    with pytest.raises(CodecError, match="without a user state"):
        a.merge_remote_state(JoinIntent(ltime=900, name="x").encode(), join=False)
    assert (a.members(), a.clocks) == before


def test_who_hears_that_its_own_name_is_used_elsewhere_asks_the_others_and_nobody_else_does(world: World) -> None:
    a, b, c = world.pool("a", "b", "c")
    claim = Alive(incarnation=9, name="b", address=ELSEWHERE, meta=b"", versions=Versions(1, 5, 2, 2, 5, 4))
    for serf in (a, b):
        serf.packet_received(encode(claim), ELSEWHERE, world.now)
    world.settle()
    assert [serf.counts["name_conflict"] for serf in (a, b, c)] == [1, 1, 0]
    assert [len(serf._queries._votes) for serf in (a, b, c)] == [0, 1, 0]


def test_an_exchange_tells_who_left_and_when_others_joined(world: World) -> None:
    a, b = world.pool("a", "b")
    heard = state(ltime=30, statuses={"b": 20, "gone": 21}, left=("gone", "b"))
    a.merge_remote_state(heard.encode(), join=False)
    assert world.status(a, "b") is MemberStatus.LEAVING
    assert world.status(a, "gone") is None
    world.run(2.0)
    assert world.status(a, "b") is MemberStatus.ALIVE  # it has heard of it, and is there
    assert b.counts["leave_refuted"] >= 1


def test_a_member_that_is_not_in_its_own_table_can_leave_too() -> None:
    intents = SerfIntents(
        me="me", clock=LamportClock(), queue=BroadcastQueue(retransmit_mult=4), told=lambda *_: None, counts=Counter()
    )
    assert intents.leave_is_told
    intents.begin_leave()
    assert intents.is_leaving
    assert not intents.leave_is_told
    assert intents.left() == []
