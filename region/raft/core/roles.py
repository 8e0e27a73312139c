"""Roles of a Raft member and the one table of their changes.

Rule 1: every change of a role goes through `next_role`.
Rule 2: a pair that is not in ROLE_CHANGES is a bug of this package: the group stops.

Pre-votes (Ongaro's thesis, section 9.6) come before each election but the one that a leader asked for itself:
a broker that was cut off raises no term and so disturbs nobody when it comes back.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final


class InvariantViolated(Exception):
    """A safety rule of Raft does not hold here: the group must stop, and never be reset or retried."""


class Role(enum.Enum):
    """What this member is in its current term."""

    FOLLOWER = "follower"  # stores what the leader sends, or waits for one
    PRE_CANDIDATE = "pre_candidate"  # asks whether it would be elected; has promised nothing
    CANDIDATE = "candidate"  # has raised its term and voted for itself
    LEADER = "leader"  # elected in this term; the only one


class RoleInput(enum.Enum):
    """What can change a role."""

    TIMED_OUT = "timed_out"  # no leader, or no result of the election, in time
    PRE_VOTES_WON = "pre_votes_won"
    VOTES_WON = "votes_won"
    VOTES_LOST = "votes_lost"  # a quorum said no
    TOLD_TO_LEAD = "told_to_lead"  # the leader hands over: no pre-vote
    LEADER_SEEN = "leader_seen"  # an Append or Heartbeat of the current term
    NEWER_TERM_SEEN = "newer_term_seen"
    QUORUM_LOST = "quorum_lost"  # no contact with a majority for an election timeout
    RESIGNED = "resigned"  # no voter any more by a committed membership, or its host cannot serve


ROLE_CHANGES: Final[Mapping[tuple[Role, RoleInput], Role]] = {
    (Role.FOLLOWER, RoleInput.TIMED_OUT): Role.PRE_CANDIDATE,
    (Role.FOLLOWER, RoleInput.TOLD_TO_LEAD): Role.CANDIDATE,
    (Role.FOLLOWER, RoleInput.LEADER_SEEN): Role.FOLLOWER,
    (Role.FOLLOWER, RoleInput.NEWER_TERM_SEEN): Role.FOLLOWER,
    (Role.PRE_CANDIDATE, RoleInput.TIMED_OUT): Role.PRE_CANDIDATE,
    (Role.PRE_CANDIDATE, RoleInput.PRE_VOTES_WON): Role.CANDIDATE,
    (Role.PRE_CANDIDATE, RoleInput.VOTES_LOST): Role.FOLLOWER,
    (Role.PRE_CANDIDATE, RoleInput.TOLD_TO_LEAD): Role.CANDIDATE,
    (Role.PRE_CANDIDATE, RoleInput.LEADER_SEEN): Role.FOLLOWER,
    (Role.PRE_CANDIDATE, RoleInput.NEWER_TERM_SEEN): Role.FOLLOWER,
    (Role.CANDIDATE, RoleInput.TIMED_OUT): Role.PRE_CANDIDATE,
    (Role.CANDIDATE, RoleInput.VOTES_WON): Role.LEADER,
    (Role.CANDIDATE, RoleInput.VOTES_LOST): Role.FOLLOWER,
    (Role.CANDIDATE, RoleInput.LEADER_SEEN): Role.FOLLOWER,
    (Role.CANDIDATE, RoleInput.NEWER_TERM_SEEN): Role.FOLLOWER,
    (Role.LEADER, RoleInput.NEWER_TERM_SEEN): Role.FOLLOWER,
    (Role.LEADER, RoleInput.QUORUM_LOST): Role.FOLLOWER,
    (Role.LEADER, RoleInput.RESIGNED): Role.FOLLOWER,
}


def next_role(role: Role, given: RoleInput) -> Role:
    """Return the role after `given`.

    Raises:
        InvariantViolated: `given` cannot happen to `role`, such as a second leader seen by a leader.
    """
    try:
        return ROLE_CHANGES[(role, given)]
    except KeyError:
        raise InvariantViolated(f"{given.value} while {role.value}") from None
