"""Every pair of a role and an input is decided."""

from __future__ import annotations

import itertools

import pytest

from region.raft.core.roles import ROLE_CHANGES, InvariantViolated, Role, RoleInput, next_role
from tests.tiers import in_one_test


@in_one_test(("role", "given"), list(itertools.product(Role, RoleInput)))
def test_every_pair_changes_the_role_or_stops_the_group(role: Role, given: RoleInput) -> None:
    if (role, given) in ROLE_CHANGES:
        assert next_role(role, given) is ROLE_CHANGES[(role, given)]
    else:
        with pytest.raises(InvariantViolated, match=f"{given.value} while {role.value}"):
            next_role(role, given)


def test_only_a_candidate_becomes_leader() -> None:
    assert [pair for pair, role in ROLE_CHANGES.items() if role is Role.LEADER] == [
        (Role.CANDIDATE, RoleInput.VOTES_WON)
    ]


def test_a_newer_term_makes_everybody_a_follower() -> None:
    assert {ROLE_CHANGES[(role, RoleInput.NEWER_TERM_SEEN)] for role in Role} == {Role.FOLLOWER}
