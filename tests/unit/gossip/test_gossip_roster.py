"""The order of probes, and who is forgotten."""

from __future__ import annotations

import random
from dataclasses import replace

from mesh.gossip.member import OUR_VERSIONS, Member, MemberState
from mesh.gossip.roster_core import Roster

MEMBER = Member(
    name="me",
    address=("10.0.0.1", 1),
    meta=b"",
    versions=OUR_VERSIONS,
    state=MemberState.ALIVE,
    incarnation=1,
    changed_at=0.0,
)


def roster_of(count: int) -> Roster:
    roster = Roster(own_name="me", rng=random.Random(1), forget_after_s=30.0)
    for name in ("me", *(f"m{number}" for number in range(count))):
        roster.put(replace(MEMBER, name=name))
    return roster


def a_round(roster: Roster, count: int, now: float = 0.0) -> list[str]:
    found = [roster.next_probe(now) for _ in range(count)]
    return [member.name for member in found if member is not None]


def test_every_member_is_probed_once_per_round_and_never_ourselves() -> None:
    roster = roster_of(20)
    rounds = [a_round(roster, 20) for _ in range(3)]
    assert all(sorted(names) == sorted(f"m{number}" for number in range(20)) for names in rounds)


def test_each_round_has_an_order_of_its_own() -> None:
    roster = roster_of(20)
    rounds = [a_round(roster, 20) for _ in range(3)]
    assert rounds[0] != rounds[1] != rounds[2]
    assert rounds[0] != [f"m{number}" for number in range(20)]


def test_the_gone_are_not_probed_and_are_forgotten_at_the_end_of_a_round() -> None:
    roster = roster_of(3)
    roster.put(replace(MEMBER, name="m0", state=MemberState.DEAD, changed_at=10.0))
    roster.put(replace(MEMBER, name="m1", state=MemberState.LEFT, changed_at=10.0))
    assert a_round(roster, 3, now=40.0) == ["m2"] * 3
    assert len(roster) == 4
    a_round(roster, 3, now=40.1)
    assert {member.name for member in roster.values()} == {"me", "m2"}


def test_alone_there_is_nobody_to_probe_or_to_pick() -> None:
    roster = roster_of(0)
    assert roster.next_probe(0.0) is None
    assert roster.pick(3, lambda member: True) == []


def test_picked_are_different_members_that_are_wanted() -> None:
    roster = roster_of(20)
    for _ in range(50):
        picked = roster.pick(3, lambda member: member.name != "m7")
        names = {member.name for member in picked}
        assert len(names) == 3
        assert not names & {"me", "m7"}
