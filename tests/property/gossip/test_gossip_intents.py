"""Join and leave intents in any order, any number of times: members agree, and none is told on for ever."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mesh.gossip.event_ring_core import RING_SLOTS, EventRing
from mesh.gossip.lamport_core import LTIME_MAX, LamportClock
from mesh.gossip.member_table_core import MemberTable
from mesh.gossip.view import MemberStatus

INTENTS = st.lists(st.tuples(st.sampled_from("ab"), st.booleans(), st.integers(1, 6)), max_size=12)


def table() -> MemberTable:
    rows = MemberTable(me="me", is_leaving=lambda: False)
    for name in "ab":
        rows.joined(name, ("10.0.0.1", 1), {})
    return rows


def take(rows: MemberTable, name: str, leaves: bool, ltime: int) -> bool:
    if leaves:
        return rows.leave_intended(name, ltime, prune=False, now=0.0).spread
    return rows.join_intended(name, ltime, now=0.0).spread


@given(INTENTS, st.randoms(use_true_random=False))
def test_members_agree_on_the_newest_intent_in_whatever_order_they_hear_them(
    intents: list[tuple[str, bool, int]], rng: object
) -> None:
    distinct = {(name, ltime): leaves for name, leaves, ltime in intents}  # one clock gives a time out once per member
    rows = [(name, leaves, ltime) for (name, ltime), leaves in distinct.items()]
    shuffled = list(rows)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = table(), table()
    for row in rows:
        take(one, *row)
    for row in shuffled:
        take(other, *row)
    for name in "ab":
        newest = max(((ltime, leaves) for n, leaves, ltime in rows if n == name), default=(0, False))
        assert one.rows[name].ltime == other.rows[name].ltime == newest[0]
        wanted = MemberStatus.LEAVING if newest[1] else MemberStatus.ALIVE
        assert one.rows[name].status is other.rows[name].status is wanted


@given(INTENTS)
def test_every_intent_is_told_on_at_most_once(intents: list[tuple[str, bool, int]]) -> None:
    rows = table()
    spread = [(name, ltime) for name, leaves, ltime in intents * 3 if take(rows, name, leaves, ltime)]
    assert len(spread) == len(set(spread))


@given(st.lists(st.integers(0, LTIME_MAX)))
def test_a_clock_is_later_than_all_it_has_seen_and_never_goes_back(seen: list[int]) -> None:
    clock = LamportClock()
    for ltime in seen:
        before = clock.time
        clock.witness(ltime)
        assert clock.time > ltime
        assert clock.time >= before
        assert clock.take() < clock.time


@given(st.lists(st.tuples(st.integers(1, 3 * RING_SLOTS), st.integers(0, 3)), max_size=200))
def test_what_a_ring_accepts_it_accepts_once(heard: list[tuple[int, int]]) -> None:
    ring: EventRing[int] = EventRing()
    clock = LamportClock()
    accepted: list[tuple[int, int]] = []
    for ltime, key in heard + heard:
        clock.witness(ltime)
        if ring.accept(ltime, key, clock=clock.time):
            accepted.append((ltime, key))
    assert len(accepted) == len(set(accepted))
