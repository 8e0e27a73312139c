"""Messages between the members of a group.

Every message carries the term of its sender (pre-votes: the term the sender would campaign in); a message of
an older term is never acted on. They are built thousands of times per second, so they are plain slotted
classes; nobody changes one after it was made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias

from georelay.ids import BrokerId, Term
from region.raft.core.types import NO_TERM, E, Membership


@dataclass(slots=True, kw_only=True)
class VoteRequest:
    """A candidate asks for a vote; its log ends at (last_index, last_term).

    `pre`: would you vote for me? `term` is the term to come and nobody changes theirs for it.
    `force`: the leader itself handed over, so a follower that still hears it votes all the same.
    """

    from_: BrokerId
    to: BrokerId
    term: Term
    last_index: int
    last_term: Term
    pre: bool = False
    force: bool = False


@dataclass(slots=True, kw_only=True)
class VoteResponse:
    """The answer. A granted pre-vote carries the term asked for, everything else the sender's own term."""

    from_: BrokerId
    to: BrokerId
    term: Term
    granted: bool
    pre: bool = False


@dataclass(slots=True, kw_only=True)
class Append(Generic[E]):
    """Entries that follow (prev_index, prev_term), and the leader's commit index. Entries may be empty.

    `quiet` is True when it only tells a commit index that its receiver is known to hold the entries of:
    the answer would say nothing new. A receiver that does not match answers all the same.
    """

    from_: BrokerId
    to: BrokerId
    term: Term
    prev_index: int
    prev_term: Term
    commit: int
    entries: Sequence[E] = ()
    quiet: bool = False


@dataclass(slots=True, kw_only=True)
class AppendResponse:
    """Accepted: everything up to `index` is durable and equals the leader's log.

    Rejected: the entry at `index` (the Append's prev_index) is missing or of another term; the logs can only
    agree at or below `hint_index`, where the sender has `hint_term`.
    `repairing`: the sender lost entries that it had acknowledged and has not got them all back. Whatever it
    acknowledged before is void, and what it acknowledges now is not counted.
    """

    from_: BrokerId
    to: BrokerId
    term: Term
    index: int
    rejected: bool = False
    hint_index: int = 0
    hint_term: Term = NO_TERM
    repairing: bool = False


@dataclass(slots=True, kw_only=True)
class Heartbeat:
    """The leader is alive; `commit` never exceeds what it knows the receiver to hold."""

    from_: BrokerId
    to: BrokerId
    term: Term
    commit: int


@dataclass(slots=True, kw_only=True)
class HeartbeatResponse:
    """A heartbeat was heard; also tells a leader of an old term that the term has passed."""

    from_: BrokerId
    to: BrokerId
    term: Term


@dataclass(slots=True, kw_only=True)
class TimeoutNow:
    """The leader hands over: campaign at once, without a pre-vote."""

    from_: BrokerId
    to: BrokerId
    term: Term


@dataclass(slots=True, kw_only=True)
class Snapshot:
    """The group after entry `index` of `snapshot_term`, for a follower that needs entries the leader has dropped.

    `membership` was in force at `index`; `data` is the host's and may be large, within one frame.
    """

    from_: BrokerId
    to: BrokerId
    term: Term
    index: int
    snapshot_term: Term
    membership: Membership
    data: bytes


@dataclass(slots=True, kw_only=True)
class ReadIndexCheck:
    """Do you still follow me? `context` numbers the rounds of one leader's term, from 1."""

    from_: BrokerId
    to: BrokerId
    term: Term
    context: int


@dataclass(slots=True, kw_only=True)
class ReadIndexAnswer:
    """The sender is still in the leader's term; confirms the round `context` and all rounds before it."""

    from_: BrokerId
    to: BrokerId
    term: Term
    context: int


LeaderMessage: TypeAlias = Append[E] | Heartbeat | Snapshot | ReadIndexCheck  # only a leader of its term sends these
Message: TypeAlias = (
    VoteRequest
    | VoteResponse
    | Append[E]
    | AppendResponse
    | Heartbeat
    | HeartbeatResponse
    | TimeoutNow
    | Snapshot
    | ReadIndexCheck
    | ReadIndexAnswer
)
