"""Which replicas hold control's log, and which of them vote."""

from __future__ import annotations

import pytest

from georelay.errors import BadRequest, PolicyViolation
from georelay.fields import FieldError
from region.control.members_core import Members, founded


def made(*regions: int) -> Members:
    members = Members()
    for region in regions:
        replica = members.apply(
            {"do": "add", "broker": region * 1000 + 1, "address": "h:1"}, index=region, append_us=0
        )["replica"]
        members.apply(
            {"do": "made", "replica": replica, "disk": f"disk-{region}", "address": ""}, index=region, append_us=0
        )
    return members


def reached(members: Members) -> None:
    voters, learners = members.targets()
    members.apply({"do": "reached", "voters": list(voters), "learners": list(learners)}, index=9, append_us=0)


@pytest.mark.parametrize(("regions", "voters"), [(1, 1), (2, 2), (3, 3), (4, 3), (5, 5), (6, 5), (9, 5)])
def test_voters_are_at_most_five_and_odd_from_three_on(regions: int, voters: int) -> None:
    chosen, learners = made(*range(1, regions + 1)).targets()
    assert len(chosen) == voters
    assert len(chosen) + len(learners) == regions


def test_a_replica_votes_only_once_its_broker_has_made_it() -> None:
    members = made(1, 2)
    members.apply({"do": "add", "broker": 3001, "address": "h:1"}, index=3, append_us=0)
    assert members.targets() == ((1, 2), ())


def test_who_votes_keeps_voting_when_others_come() -> None:
    members = made(2, 3, 4)
    reached(members)
    members = made_more(members, 1)
    assert members.targets() == ((1, 2, 3), (4,))


def made_more(members: Members, region: int) -> Members:
    replica = members.apply({"do": "add", "broker": region * 1000 + 1, "address": "h:1"}, index=5, append_us=0)[
        "replica"
    ]
    members.apply({"do": "made", "replica": replica, "disk": "d", "address": ""}, index=6, append_us=0)
    return members


def test_a_learner_takes_the_place_of_a_voter_that_retires() -> None:
    members = made(1, 2, 3, 4)
    reached(members)
    members.apply({"do": "retire", "replica": 2}, index=7, append_us=0)
    assert members.targets() == ((1, 3, 4), ())


def test_a_replica_number_is_never_given_twice() -> None:
    members = made(1, 2)
    reached(members)
    members.apply({"do": "retire", "replica": 2}, index=7, append_us=0)
    reached(members)
    assert members.row(2) is None
    again = members.apply({"do": "add", "broker": 2001, "address": "h:1"}, index=8, append_us=0)
    assert again == {"replica": 3}


def test_a_replica_that_retired_is_known_until_it_is_no_member_any_more() -> None:
    members = made(1, 2)
    reached(members)
    members.apply({"do": "retire", "replica": 2}, index=7, append_us=0)
    assert members.row(2) is not None
    reached(members)
    assert members.row(2) is None


def test_a_region_has_one_replica_at_a_time() -> None:
    members = made(1)
    assert members.apply({"do": "add", "broker": 1001, "address": "h:1"}, index=2, append_us=0) == {"replica": 1}
    with pytest.raises(PolicyViolation, match="on broker 1001"):
        members.apply({"do": "add", "broker": 1002, "address": "h:1"}, index=3, append_us=0)


def test_an_empty_disk_does_not_speak_for_a_replica() -> None:
    members = made(1, 2)
    with pytest.raises(PolicyViolation, match="has to be replaced"):
        members.apply({"do": "made", "replica": 2, "disk": "another", "address": ""}, index=3, append_us=0)


def test_the_last_replica_does_not_retire() -> None:
    members = made(1)
    reached(members)
    with pytest.raises(PolicyViolation, match="the last one"):
        members.apply({"do": "retire", "replica": 1}, index=2, append_us=0)


def test_an_unknown_wish_or_replica_is_refused() -> None:
    commands: list[dict[str, object]] = [{"do": "dance"}, {"do": "retire", "replica": 7}]
    for command in commands:
        with pytest.raises(BadRequest):
            made(1).apply(command, index=2, append_us=0)


def test_a_snapshot_with_a_number_that_was_never_given_out_is_refused() -> None:
    raw = founded(1001, replica=1, disk="d", address="h:1", index=1) | {"next_replica": 1}  # type: ignore[arg-type]
    with pytest.raises(FieldError):
        Members().restore(raw)
