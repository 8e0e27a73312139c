"""The Serf layer over pure member lists, on a clock of the test."""

from __future__ import annotations

from typing import Any

import pytest

from mesh.gossip.key_queries_core import INSTALL_KEY, LIST_KEYS, REMOVE_KEY, USE_KEY
from mesh.gossip.keyring import Keyring
from mesh.gossip.member_table_core import MemberTable
from mesh.gossip.query_core import names_filter, tag_filter
from mesh.gossip.query_payloads import ConflictResponse, KeyRequest, KeyResponse
from mesh.gossip.serf_core import Clocks, TooLong
from mesh.gossip.serf_effects import NameLost
from mesh.gossip.serf_messages import JoinIntent, LeaveIntent, QueryResponse, Relay, UserEvent, UserState, decode
from mesh.gossip.tags import TagsTooLong
from mesh.gossip.view import MemberChange, MemberStatus

World = Any
ALIVE, LEAVING, LEFT, FAILED = MemberStatus.ALIVE, MemberStatus.LEAVING, MemberStatus.LEFT, MemberStatus.FAILED
ELSEWHERE = ("10.9.9.9", 7946)


def tell(world: World, serf: Any, body: bytes) -> None:
    """Hand a message of this layer to a member, as if a packet had brought it."""
    serf.packet_received(b"\x08" + body, ELSEWHERE, world.now)
    world.settle()


# --- members ---------------------------------------------------------------------------------------


def test_members_that_join_one_another_know_all(world: World) -> None:
    pool = world.pool("a", "b", "c")
    for serf in pool:
        assert [(m.name, m.status) for m in serf.members()] == [("a", ALIVE), ("b", ALIVE), ("c", ALIVE)]


def test_changed_tags_reach_everybody_and_are_told_once(world: World) -> None:
    a, b, c = world.pool("a", "b", "c")
    b.set_tags({"color": "blue"}, world.now)
    assert not b.own_news_sent
    world.run(2.0)
    assert b.own_news_sent
    for serf in (a, c):
        assert {m.name: dict(m.tags) for m in serf.members()}["b"] == {"color": "blue"}
        assert world.changes(serf).count((MemberChange.UPDATED, "b")) == 1


def test_tags_over_512_bytes_are_refused_and_change_nothing(world: World) -> None:
    (a,) = world.pool("a")
    with pytest.raises(TagsTooLong, match="512"):
        a.set_tags({"long": "x" * 510}, world.now)
    assert a.tags == {}


def test_who_leaves_is_left_for_everybody_and_never_failed(world: World) -> None:
    a, b, c = world.pool("a", "b", "c")
    c.begin_leave(world.now)
    world.run(1.0)
    assert c.leave_is_told
    assert world.status(a, "c") is LEAVING
    c.leave(world.now)
    world.run(1.0)
    assert c.own_news_sent
    for serf in (a, b):
        assert world.status(serf, "c") is LEFT
        assert (MemberChange.FAILED, "c") not in world.changes(serf)


def test_who_vanishes_fails_and_comes_back_by_joining(world: World) -> None:
    a, _, c = world.pool("a", "b", "c")
    world.cut.add("c")
    world.run(40.0)
    assert world.status(a, "c") is FAILED
    world.cut.discard("c")
    world.run(61.0)  # two reconnects, with a probability of 1/2 each; gossip to the dead also tells it
    assert world.status(a, "c") is ALIVE
    assert world.status(c, "b") is ALIVE


def test_a_failed_member_is_reconnected_long_after_gossip_forgot_it(world: World) -> None:
    a, b, c = world.pool("a", "b", "c")
    world.cut.add("c")
    world.run(600.0)
    assert a.memberlist.member("c") is None or a.memberlist.member("c").is_gone
    world.cut.discard("c")
    world.run(300.0)
    assert world.status(a, "c") is ALIVE
    assert a.counts["reconnects"] + b.counts["reconnects"] + c.counts["reconnects"] > 0


def test_force_leave_turns_failed_into_left_everywhere(world: World) -> None:
    a, b, _ = world.pool("a", "b", "c")
    world.cut.add("c")
    world.run(40.0)
    a.force_leave("c", world.now)
    world.run(1.0)
    assert (world.status(a, "c"), world.status(b, "c")) == (LEFT, LEFT)


def test_force_leave_with_prune_forgets_the_member(world: World) -> None:
    a, b, _ = world.pool("a", "b", "c")
    world.cut.add("c")
    world.run(40.0)
    a.force_leave("c", world.now, prune=True)
    world.run(1.0)
    assert world.status(a, "c") is None
    assert world.status(b, "c") is None
    assert (MemberChange.REAPED, "c") in world.changes(b)


def test_a_leave_said_of_a_living_member_is_refuted_by_it(world: World) -> None:
    a, b, _ = world.pool("a", "b", "c")
    a.force_leave("b", world.now)
    world.run(2.0)
    assert world.status(a, "b") is ALIVE
    assert b.counts["leave_refuted"] == 1


def test_failed_members_are_reaped_after_a_day_and_left_ones_too(world: World) -> None:
    a, _, c = world.pool("a", "b", "c")
    c.begin_leave(world.now)
    world.run(1.0)
    c.leave(world.now)
    world.run(1.0)
    world.cut |= {"b", "c"}
    world.run(60.0)
    assert (world.status(a, "b"), world.status(a, "c")) == (FAILED, LEFT)
    a.tick(world.now + 86_400.0)
    assert [m.name for m in a.members()] == ["a"]


def test_a_member_of_another_mesh_is_refused_by_its_tag(world: World) -> None:
    a = world.add("a", tags={"cl": "shop"}, mesh="shop")
    b = world.add("b", tags={"cl": "bank"}, mesh="bank")
    world.join(b, a)
    assert [m.name for m in a.members()] == ["a"]
    assert [m.name for m in b.members()] == ["b"]
    assert world.refused == ["b is of the mesh 'bank', this is 'shop': refused"]


# --- intents ---------------------------------------------------------------------------------------


def table() -> MemberTable:
    return MemberTable(me="me", is_leaving=lambda: False)


def test_an_intent_before_its_member_waits_for_it() -> None:
    rows = table()
    assert rows.leave_intended("x", 7, prune=False, now=0.0).spread
    row = rows.joined("x", ("10.0.0.1", 1), {})
    assert (row.status, row.ltime) == (LEAVING, 7)


def test_an_older_intent_is_not_told_on() -> None:
    rows = table()
    rows.joined("x", ("10.0.0.1", 1), {})
    assert rows.join_intended("x", 5, now=0.0).spread
    assert not rows.join_intended("x", 5, now=0.0).spread
    assert not rows.leave_intended("x", 4, prune=False, now=0.0).spread
    assert rows.rows["x"].status is ALIVE


def test_the_time_of_a_leave_is_stored_whatever_the_status_so_it_is_told_on_once() -> None:
    rows = table()
    rows.joined("x", ("10.0.0.1", 1), {})
    for ltime in (5, 6, 7):
        assert rows.leave_intended("x", ltime, prune=False, now=0.0).spread
        assert not rows.leave_intended("x", ltime, prune=False, now=0.0).spread


def test_a_join_later_than_the_leave_makes_a_member_alive_again() -> None:
    rows = table()
    rows.joined("x", ("10.0.0.1", 1), {})
    rows.leave_intended("x", 5, prune=False, now=0.0)
    assert rows.join_intended("x", 6, now=0.0).spread
    assert rows.rows["x"].status is ALIVE


def test_early_intents_are_bounded_and_forgotten_after_five_minutes() -> None:
    rows = table()
    assert sum(rows.join_intended(f"m{n}", 1, now=0.0).spread for n in range(5000)) == 4096
    rows.reap(301.0, failed_after_s=1e9, left_after_s=1e9)
    assert rows.join_intended("late", 1, now=301.0).spread


def test_a_clock_that_is_forged_is_refused(world: World) -> None:
    (a,) = world.pool("a")
    before = a.clocks
    tell(world, a, LeaveIntent(ltime=2**63, name="x").encode())
    tell(world, a, UserEvent(ltime=2**63, name="x", payload=b"").encode())
    assert a.clocks == before


# --- events ----------------------------------------------------------------------------------------


def test_an_event_is_heard_once_by_everybody_its_sender_included(world: World) -> None:
    pool = world.pool(*(f"m{n}" for n in range(12)))
    pool[3].user_event("deploy", b"7", world.now)
    world.run(5.0)
    for serf in pool:
        assert world.events(serf) == [("deploy", b"7")]


def test_an_event_over_512_bytes_is_refused(world: World) -> None:
    (a,) = world.pool("a")
    with pytest.raises(TooLong, match="512"):
        a.user_event("name", b"x" * 512, world.now)


def test_events_of_one_time_with_other_payloads_are_all_heard_and_echoes_are_not(world: World) -> None:
    (a,) = world.pool("a")
    for payload in (b"1", b"2", b"1", b"2"):
        tell(world, a, UserEvent(ltime=9, name="e", payload=payload).encode())
    assert world.events(a) == [("e", b"1"), ("e", b"2")]


def test_an_event_older_than_the_ring_is_dropped(world: World) -> None:
    (a,) = world.pool("a")
    tell(world, a, UserEvent(ltime=1000, name="new", payload=b"").encode())
    tell(world, a, UserEvent(ltime=1000 - 512, name="old", payload=b"").encode())
    assert world.events(a) == [("new", b"")]


def test_who_joins_hears_nothing_of_before(world: World) -> None:
    a, b = world.pool("a", "b")
    a.user_event("before", b"", world.now)
    world.run(3.0)
    c = world.add("c")
    world.join(c, a)
    world.run(3.0)
    b.user_event("after", b"", world.now)
    world.run(3.0)
    assert world.events(c) == [("after", b"")]


def test_a_restarted_member_hears_no_event_again(world: World) -> None:
    a, b = world.pool("a", "b")
    a.user_event("once", b"", world.now)
    world.run(3.0)
    clocks = b.clocks
    again = world.add("b2", clocks=clocks)
    world.join(again, a)
    world.run(3.0)
    assert world.events(again) == []
    assert again.clocks.events >= clocks.events


# --- queries ---------------------------------------------------------------------------------------


def test_a_query_is_acknowledged_and_answered_by_everybody_once(world: World) -> None:
    pool = world.pool("a", "b", "c")
    query_id = pool[0].query("who", b"x", world.now, ack=True, timeout_s=3.0)
    world.settle()
    world.run(1.0)
    for serf in pool:
        (heard,) = world.queries(serf)
        serf.respond(heard.query, serf.settings.name.encode(), world.now)
        serf.respond(heard.query, b"again", world.now)
        assert serf.counts["answer_late"] == 1
    world.settle()
    world.run(3.0)
    answers = world.answers(pool[0])
    assert sorted(a.sender for a in answers if a.is_ack) == ["a", "b", "c"]
    assert sorted((a.sender, a.payload) for a in answers if not a.is_ack) == [("a", b"a"), ("b", b"b"), ("c", b"c")]
    assert world.is_over(pool[0], query_id)


def test_filters_choose_by_name_and_by_tag(world: World) -> None:
    a = world.add("a", tags={"role": "gateway"})
    b, c = (world.add(name, tags={"role": "broker"}) for name in ("b", "c"))
    for serf in (b, c):
        world.join(serf, a)
    world.run(3.0)
    a.query("q", b"", world.now, filters=[names_filter(["b", "a"]), tag_filter("role", "^brok")], timeout_s=2.0)
    world.settle()
    world.run(2.5)
    assert [len(world.queries(serf)) for serf in (a, b, c)] == [0, 1, 0]


def test_a_filter_that_cannot_be_read_matches_nobody(world: World) -> None:
    (a,) = world.pool("a")
    a.query("q", b"", world.now, filters=[b"\x07what"], timeout_s=1.0)
    world.settle()
    assert world.queries(a) == []


def test_an_answer_after_the_deadline_or_with_another_id_is_dropped(world: World) -> None:
    a, _ = world.pool("a", "b")
    query_id = a.query("q", b"", world.now, timeout_s=1.0)
    world.settle()
    ltime = a.clocks.queries
    wrong = QueryResponse(ltime=ltime, query_id=query_id ^ 1, sender="b", is_ack=False, payload=b"wrong")
    tell(world, a, wrong.encode())
    world.run(2.0)
    tell(world, a, QueryResponse(ltime=ltime, query_id=query_id, sender="b", is_ack=False).encode())
    assert world.answers(a) == []
    assert a.counts["response_dropped"] == 2


def test_internal_queries_are_not_shown_to_the_application(world: World) -> None:
    a, b = world.pool("a", "b")
    a.query("_serf_ping", b"", world.now, ack=True, timeout_s=1.0)
    world.settle()
    world.run(1.5)
    assert world.queries(b) == []
    assert sorted(answer.sender for answer in world.answers(a)) == ["a", "b"]


def test_a_relayed_answer_arrives_though_it_counts_once(world: World) -> None:
    a, b, _ = world.pool("a", "b", "c")
    a.query("q", b"", world.now, relay_factor=2, timeout_s=2.0)
    world.settle()
    world.run(1.0)
    (heard,) = world.queries(b)
    b.respond(heard.query, b"yes", world.now)
    world.settle()
    assert [answer.payload for answer in world.answers(a)] == [b"yes"]
    assert sum(serf.counts["relayed"] for serf in world.serfs.values()) >= 1


def test_a_relay_to_nowhere_does_no_harm(world: World) -> None:
    (a,) = world.pool("a")
    tell(world, a, Relay(address=("10.7.7.7", 1), name="x", body=b"\x05").encode())
    assert a.counts["relayed"] == 1


# --- keys and names ----------------------------------------------------------------------------------


def test_keys_are_installed_used_and_removed_by_query(world: World) -> None:
    old, new = b"o" * 32, b"n" * 32
    rings = [Keyring([old]) for _ in range(2)]
    a, b = world.add("a", keyring=rings[0]), world.add("b", keyring=rings[1])
    world.join(b, a)
    world.run(2.0)
    for action, key in ((INSTALL_KEY, new), (USE_KEY, new), (REMOVE_KEY, old)):
        a.query(action, KeyRequest(key=key).encode(), world.now, timeout_s=1.0)
        world.settle()
        world.run(1.5)
    assert [ring.keys() for ring in rings] == [(new,), (new,)]
    a.query(LIST_KEYS, b"", world.now, timeout_s=1.0)
    world.settle()
    world.run(1.5)
    listed = [KeyResponse.decode(answer.payload) for answer in world.answers(a)[-2:]]
    assert all(response.result and len(response.keys) == 1 for response in listed)


def test_the_primary_key_is_not_removed_and_the_answer_says_so(world: World) -> None:
    a = world.add("a", keyring=Keyring([b"k" * 16]))
    a.query(REMOVE_KEY, KeyRequest(key=b"k" * 16).encode(), world.now, timeout_s=1.0)
    world.settle()
    response = KeyResponse.decode(world.answers(a)[0].payload)
    assert not response.result
    assert "primary" in response.text


def test_a_member_without_a_keyring_refuses_key_queries(world: World) -> None:
    (a,) = world.pool("a")
    a.query(LIST_KEYS, b"", world.now, timeout_s=1.0)
    world.settle()
    assert not KeyResponse.decode(world.answers(a)[0].payload).result


def test_a_member_says_where_it_knows_a_name_and_the_named_one_is_silent(world: World) -> None:
    a, b, _ = world.pool("a", "b", "c")
    a.query("_serf_conflict", b"b", world.now, timeout_s=1.0)
    world.settle()
    world.run(1.5)
    found = {answer.sender: ConflictResponse.decode(answer.payload) for answer in world.answers(a)}
    assert set(found) == {"a", "c"}
    assert all(answer is not None and answer.address == b.settings.address for answer in found.values())


@pytest.mark.parametrize(("others_say", "lost"), [(("10.0.0.1", "10.0.0.1"), False), (("10.6.6.6", "10.6.6.6"), True)])
def test_who_loses_the_vote_about_its_name_must_end(world: World, others_say: tuple[str, ...], lost: bool) -> None:
    a, _, _ = world.pool("a", "b", "c")
    world.cut |= {"b", "c"}  # their answers are written here
    a._queries.settle_conflict(world.now, alive=3)
    ltime = a.clocks.queries
    (query_id,) = a._queries._votes
    for name, host in zip("bc", others_say, strict=True):
        known = ConflictResponse(name="a", address=(host, 7946), tags={}, status=1)
        answer = QueryResponse(ltime=ltime, query_id=query_id, sender=name, is_ack=False, payload=known.encode())
        tell(world, a, answer.encode())
    world.run(10.0)
    assert any(isinstance(effect, NameLost) for effect in world.log["a"]) is lost


# --- bad bytes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [b"", b"\x00", b"\x63abc", b"\x03\x80", b"\x04\x81\xa5LTime\xff", JoinIntent(ltime=1, name="x").encode()[:-1]],
)
def test_bad_messages_are_counted_and_change_nothing(world: World, body: bytes) -> None:
    (a,) = world.pool("a")
    before = (a.members(), a.clocks)
    tell(world, a, body)
    assert (a.members(), a.clocks) == before
    assert sum(a.memberlist.counts.values()) > 0


def test_clocks_continue_after_a_restart(world: World) -> None:
    a = world.add("a", clocks=Clocks(members=40, events=50, queries=60))
    assert (a.clocks.members >= 40, a.clocks.events >= 50, a.clocks.queries >= 60) == (True, True, True)


def test_a_member_that_has_seen_nothing_tells_the_first_times_as_debians_serf_does(world: World) -> None:
    """A later time would make who joins next take the first event of another member for old."""
    told = decode(world.add("a").local_state(join=True))
    assert isinstance(told, UserState)
    assert (told.event_ltime, told.query_ltime) == (1, 1)
