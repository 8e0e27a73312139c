"""The rules of SWIM, one claim at a time."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from mesh.gossip.awareness_core import Awareness
from mesh.gossip.broadcast_queue_core import BroadcastQueue
from mesh.gossip.codec import Alive, Dead, MemberRow, Message, Suspect, decode
from mesh.gossip.effects import Effect, MemberJoined, MemberLeft, MemberUpdated, NameConflict
from mesh.gossip.member import INCARNATION_MAX, OUR_VERSIONS, Member, MemberState, Versions
from mesh.gossip.membership_core import REANNOUNCE_EVERY_S, Membership
from mesh.gossip.roster_core import Roster
from mesh.gossip.timing import LAN

ME = Member(
    name="me",
    address=("10.0.0.9", 1),
    meta=b"",
    versions=OUR_VERSIONS,
    state=MemberState.ALIVE,
    incarnation=100,
    changed_at=0.0,
)
BOB = Alive(incarnation=5, name="bob", address=("10.0.0.1", 1), meta=b"tags", versions=OUR_VERSIONS)


class Pool:
    """Membership with its surroundings, at a time of our choice."""

    def __init__(self, members_max: int = 100) -> None:
        self.effects: list[Effect] = []
        self.counts: Counter[str] = Counter()
        self.queue = BroadcastQueue(retransmit_mult=4)
        self.awareness = Awareness(8)
        self.roster = Roster(own_name="me", rng=random.Random(1), forget_after_s=30.0, members_max=members_max)
        self.rules = Membership(
            own=ME,
            timing=LAN,
            roster=self.roster,
            queue=self.queue,
            awareness=self.awareness,
            effects=self.effects,
            counts=self.counts,
        )
        self.rules.announce(now=0.0)
        self.told()
        self.effects.clear()

    def told(self) -> list[Message]:
        """Return the rumours waiting, and drop them."""
        bodies = self.queue.take(members=1, overhead_bytes=0, limit_bytes=100_000)
        self.queue.clear()
        return [decode(body) for body in bodies]

    def state(self, name: str = "bob") -> MemberState:
        member = self.roster.get(name)
        assert member is not None
        return member.state

    def with_bob(self, *others: str) -> Pool:
        for number, name in enumerate(("bob", *others)):
            self.rules.on_alive(replace(BOB, name=name, address=("10.0.0.1", 1 + number)), 1.0)
        self.told()
        self.effects.clear()
        return self


def suspect(incarnation: int = 5, name: str = "bob", accuser: str = "eve") -> Suspect:
    return Suspect(incarnation=incarnation, name=name, accuser=accuser)


def dead(incarnation: int = 5, name: str = "bob", accuser: str = "eve") -> Dead:
    return Dead(incarnation=incarnation, name=name, accuser=accuser)


def test_an_unknown_member_that_lives_joins_and_is_told_on() -> None:
    pool = Pool()
    pool.rules.on_alive(BOB, 1.0)
    assert [type(effect) for effect in pool.effects] == [MemberJoined]
    assert pool.told() == [BOB]
    assert pool.state() is MemberState.ALIVE


@pytest.mark.parametrize("incarnation", [4, 5])
def test_an_alive_of_no_newer_incarnation_changes_nothing(incarnation: int) -> None:
    pool = Pool().with_bob()
    pool.rules.on_alive(replace(BOB, incarnation=incarnation, meta=b"other"), 2.0)
    assert (pool.told(), pool.effects) == ([], [])


def test_new_tags_come_with_a_new_incarnation_and_are_an_update() -> None:
    pool = Pool().with_bob()
    pool.rules.on_alive(replace(BOB, incarnation=6, meta=b"other"), 2.0)
    assert [type(effect) for effect in pool.effects] == [MemberUpdated]


def test_a_suspect_is_told_on_and_dies_when_its_time_is_over() -> None:
    pool = Pool().with_bob()
    pool.rules.on_suspect(suspect(), 10.0)
    assert pool.told() == [suspect()]
    assert pool.rules.next_due() == 14.0  # two members: nobody could confirm
    pool.rules.tick(13.999)
    assert pool.state() is MemberState.SUSPECT
    pool.rules.tick(14.0)
    assert pool.state() is MemberState.DEAD
    assert pool.told() == [dead(accuser="me")]
    assert [type(effect) for effect in pool.effects] == [MemberLeft]
    assert pool.rules.next_due() == float("inf")


def test_a_newer_incarnation_clears_a_suspicion_and_the_same_one_does_not() -> None:
    pool = Pool().with_bob()
    pool.rules.on_suspect(suspect(), 10.0)
    pool.rules.on_alive(BOB, 11.0)
    assert pool.state() is MemberState.SUSPECT
    pool.rules.on_alive(replace(BOB, incarnation=6), 11.0)
    assert pool.state() is MemberState.ALIVE
    assert pool.rules.next_due() == float("inf")
    assert pool.effects == []  # suspicion is no news for the layer above


def test_only_confirmations_that_count_are_told_on() -> None:
    pool = Pool().with_bob("carl", "dora")
    pool.rules.on_suspect(suspect(accuser="carl"), 10.0)
    pool.told()
    longest = pool.rules.next_due()
    pool.rules.on_suspect(suspect(accuser="carl"), 10.1)
    assert pool.told() == []
    pool.rules.on_suspect(suspect(accuser="dora"), 10.2)
    assert pool.told() == [suspect(accuser="dora")]
    assert pool.rules.next_due() < longest


@pytest.mark.parametrize("claim", [suspect(4), suspect(name="nobody")])
def test_accusations_of_an_old_incarnation_or_of_strangers_are_void(claim: Suspect) -> None:
    pool = Pool().with_bob()
    pool.rules.on_suspect(claim, 2.0)
    pool.rules.on_dead(dead(claim.incarnation, claim.name), 2.0)
    assert (pool.told(), pool.effects, pool.state()) == ([], [], MemberState.ALIVE)


def test_a_death_notice_signed_by_the_member_itself_is_a_farewell() -> None:
    pool = Pool().with_bob("carl")
    pool.rules.on_dead(dead(accuser="bob"), 2.0)
    pool.rules.on_dead(dead(name="carl"), 2.0)
    assert (pool.state("bob"), pool.state("carl")) == (MemberState.LEFT, MemberState.DEAD)


def test_the_dead_stay_dead_at_their_incarnation_and_join_again_with_a_newer() -> None:
    pool = Pool().with_bob()
    pool.rules.on_dead(dead(), 2.0)
    pool.effects.clear()
    pool.rules.on_alive(BOB, 3.0)
    pool.rules.on_dead(dead(7), 3.0)
    pool.rules.on_suspect(suspect(7), 3.0)
    assert (pool.state(), pool.effects) == (MemberState.DEAD, [])
    pool.rules.on_alive(replace(BOB, incarnation=6), 4.0)
    assert pool.state() is MemberState.ALIVE
    assert [type(effect) for effect in pool.effects] == [MemberJoined]


@pytest.mark.parametrize("claim", [suspect(100, "me"), suspect(207, "me"), dead(100, "me"), dead(207, "me")])
def test_an_accusation_against_us_is_refuted_above_it(claim: Suspect | Dead) -> None:
    pool = Pool()
    if isinstance(claim, Suspect):
        pool.rules.on_suspect(claim, 2.0)
    else:
        pool.rules.on_dead(claim, 2.0)
    (told,) = pool.told()
    assert isinstance(told, Alive) and (told.name, told.incarnation) == ("me", claim.incarnation + 1)
    assert pool.awareness.score == 1
    assert pool.effects == []


def test_somebody_elses_claim_about_our_tags_is_refuted_and_our_own_rumour_is_not() -> None:
    pool = Pool()
    mine = Alive(incarnation=100, name="me", address=ME.address, meta=b"", versions=OUR_VERSIONS)
    pool.rules.on_alive(mine, 2.0)
    pool.rules.on_alive(replace(mine, incarnation=99, meta=b"old"), 2.0)
    assert pool.told() == []
    pool.rules.on_alive(replace(mine, meta=b"forged"), 2.0)
    assert pool.rules.own.incarnation == 101
    pool.rules.on_alive(replace(mine, incarnation=150), 2.0)  # an earlier life had more
    assert (pool.rules.own.incarnation, pool.rules.own.meta) == (151, b"")


def test_an_incarnation_that_leaves_no_room_to_refute_is_refused() -> None:
    pool = Pool().with_bob()
    pool.rules.on_suspect(suspect(INCARNATION_MAX, "me"), 2.0)
    pool.rules.on_dead(dead(INCARNATION_MAX), 2.0)
    mine = Alive(incarnation=INCARNATION_MAX, name="me", address=ME.address, meta=b"x", versions=OUR_VERSIONS)
    pool.rules.on_alive(mine, 2.0)
    assert pool.counts["claim.incarnation_refused"] == 3
    assert (pool.rules.own.incarnation, pool.state()) == (100, MemberState.ALIVE)


def test_whoever_leaves_is_not_called_back() -> None:
    pool = Pool().with_bob()
    pool.rules.leave(2.0)
    pool.rules.leave(2.0)
    assert pool.told() == [dead(100, "me", "me")]
    pool.rules.on_alive(Alive(incarnation=200, name="me", address=ME.address, meta=b"", versions=OUR_VERSIONS), 3.0)
    pool.rules.on_suspect(suspect(200, "me"), 3.0)
    pool.rules.on_dead(dead(200, "me"), 3.0)
    assert (pool.state("me"), pool.told()) == (MemberState.LEFT, [])


ELSEWHERE = ("10.0.0.7", 7)


def test_another_address_under_a_living_name_is_a_conflict() -> None:
    pool = Pool().with_bob()
    pool.rules.on_alive(replace(BOB, incarnation=9, address=ELSEWHERE), 2.0)
    (effect,) = pool.effects
    assert isinstance(effect, NameConflict)
    assert (effect.member.address, effect.address) == (BOB.address, ELSEWHERE)
    assert pool.told() == []


def test_our_own_name_at_another_address_is_a_conflict_and_never_taken() -> None:
    pool = Pool()
    mine = Alive(incarnation=900, name="me", address=ELSEWHERE, meta=b"", versions=OUR_VERSIONS)
    pool.rules.on_alive(mine, 2.0)
    assert [type(effect) for effect in pool.effects] == [NameConflict]
    assert pool.rules.own == replace(ME, changed_at=0.0)


def test_a_name_that_left_may_come_back_elsewhere_at_once_even_with_a_lower_incarnation() -> None:
    pool = Pool().with_bob()
    pool.rules.on_dead(dead(accuser="bob"), 2.0)
    pool.rules.on_alive(replace(BOB, incarnation=1, address=ELSEWHERE), 2.1)
    member = pool.roster.get("bob")
    assert member is not None and (member.address, member.incarnation) == (ELSEWHERE, 1)


def test_a_dead_name_may_come_back_elsewhere_only_after_a_while() -> None:
    pool = Pool().with_bob()
    pool.rules.on_dead(dead(), 2.0)
    pool.rules.on_alive(replace(BOB, incarnation=9, address=ELSEWHERE), 31.9)
    assert pool.state() is MemberState.DEAD
    pool.rules.on_alive(replace(BOB, incarnation=9, address=ELSEWHERE), 32.1)
    assert pool.state() is MemberState.ALIVE


def test_a_stranger_at_our_own_address_is_not_taken() -> None:
    pool = Pool()
    pool.rules.on_alive(replace(BOB, address=ME.address), 2.0)
    assert pool.roster.get("bob") is None


def test_a_full_pool_takes_nobody_new() -> None:
    pool = Pool(members_max=2).with_bob()
    pool.rules.on_alive(replace(BOB, name="carl", address=ELSEWHERE), 2.0)
    assert pool.roster.get("carl") is None
    assert pool.counts["alive.pool_full"] == 1


def row(name: str, state: MemberState, *, versions: Versions = OUR_VERSIONS, incarnation: int = 5) -> MemberRow:
    port = 1 + sum(name.encode())
    return MemberRow(
        name=name, address=("10.0.0.1", port), meta=b"", incarnation=incarnation, state=state, versions=versions
    )


def test_a_state_brings_the_living_and_only_suspects_the_dead() -> None:
    pool = Pool()
    names = {"carl": MemberState.SUSPECT, "dora": MemberState.DEAD, "emil": MemberState.LEFT}
    pool.rules.merge([row(name, MemberState.ALIVE) for name in ("bob", *names)], 1.0)
    pool.rules.merge([row(name, state) for name, state in names.items()], 2.0)
    assert [pool.state(name) for name in ("bob", *names)] == [
        MemberState.ALIVE,
        MemberState.SUSPECT,
        MemberState.SUSPECT,
        MemberState.LEFT,
    ]


def test_a_state_that_calls_us_dead_is_refuted() -> None:
    pool = Pool()
    pool.rules.merge([replace(row("me", MemberState.DEAD, incarnation=120), address=ME.address)], 1.0)
    assert pool.rules.own.incarnation == 121


@pytest.mark.parametrize("bad", [Versions(3, 5, 3, 2, 5, 5), Versions(1, 5, 2, 2, 9, 9), Versions(1, 1, 1, 2, 5, 5)])
def test_a_member_whose_versions_clash_is_left_out_and_does_not_cost_the_others(bad: Versions) -> None:
    pool = Pool()
    rows = [row("old", MemberState.ALIVE, versions=bad), row("bob", MemberState.ALIVE)]
    pool.rules.merge(rows, 1.0)
    assert pool.roster.get("old") is None
    assert pool.state() is MemberState.ALIVE
    assert pool.counts["alive.version_refused"] == 1


def test_a_rumour_of_a_member_whose_versions_clash_is_not_taken_nor_told_on() -> None:
    pool = Pool()
    pool.rules.on_alive(replace(BOB, versions=Versions(3, 5, 3, 2, 5, 5)), 1.0)
    assert (pool.roster.get("bob"), pool.told()) == (None, [])


def test_only_members_that_are_known_can_be_accused_by_us() -> None:
    pool = Pool()
    pool.rules.suspect("nobody", 1.0)
    assert pool.told() == []


def test_the_check_of_versions_spans_all_members_not_only_pairs_with_us() -> None:
    pool = Pool()
    low = row("low", MemberState.ALIVE, versions=Versions(1, 5, 1, 2, 5, 5))
    strict = row("strict", MemberState.ALIVE, versions=Versions(2, 5, 2, 2, 5, 5))
    pool.rules.merge([low, strict], 1.0)
    assert pool.roster.get("low") is not None
    assert pool.roster.get("strict") is None
    alone = Pool()
    alone.rules.merge([strict], 1.0)
    assert alone.roster.get("strict") is not None


def test_after_a_stall_no_suspicion_ends_at_once() -> None:
    pool = Pool().with_bob()
    pool.rules.on_suspect(suspect(), 10.0)
    pool.rules.defer(20.5)
    pool.rules.tick(20.0)
    assert pool.state() is MemberState.SUSPECT
    pool.rules.tick(20.5)
    assert pool.state() is MemberState.DEAD


def test_who_meets_its_name_at_another_address_announces_itself_again_until_nobody_says_so_any_more() -> None:
    pool = Pool()
    elsewhere = Alive(incarnation=50, name="me", address=ELSEWHERE, meta=b"", versions=OUR_VERSIONS)
    pool.rules.on_alive(elsewhere, 2.0)
    assert pool.told() == []
    pool.rules.tick(2.0 + REANNOUNCE_EVERY_S)
    assert [(type(claim), claim.address) for claim in pool.told()] == [(Alive, ME.address)]  # type: ignore[union-attr]
    assert pool.rules.next_due() == 2.0 + 2 * REANNOUNCE_EVERY_S
    for times in range(2, 30):
        pool.rules.tick(2.0 + times * REANNOUNCE_EVERY_S)
    pool.told()
    assert pool.rules.next_due() == float("inf")  # longer than a dead member keeps its name


def test_who_leaves_announces_itself_no_more() -> None:
    pool = Pool()
    pool.rules.on_alive(Alive(incarnation=50, name="me", address=ELSEWHERE, meta=b"", versions=OUR_VERSIONS), 2.0)
    pool.rules.leave(3.0)
    pool.told()
    pool.rules.tick(2.0 + REANNOUNCE_EVERY_S)
    assert pool.told() == []
