"""Values of the Raft core: what a host configures, stores and is told.

Rule 1: nothing in this package reads a clock, a file, a socket or a random source of its own.
Rule 2: a range of indexes is half open, [lo, hi).
Rule 3: terms and broker ids have their own types; indexes are plain ints here, because the core does
arithmetic with nothing else and a NewType call on each sum would cost more than the sum.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeVar

from georelay.ids import BrokerId, Term
from georelay.limits import (
    APPEND_MESSAGE_BYTES_MAX,
    INFLIGHT_BYTES_MAX,
    INFLIGHT_MESSAGES_MAX,
    MIB,
    UNCOMMITTED_BYTES_MAX,
)

NO_BROKER: Final = BrokerId(0)  # "nobody": no vote given, no leader known
NO_TERM: Final = Term(0)  # of index 0, and of an empty log
APPLY_BYTES_MAX: Final = 8 * MIB  # handed out to be applied at once, plus one entry


class LogEntry(Protocol):
    """What the core needs to know of an entry; the rest is the host's business."""

    @property
    def term(self) -> Term:
        """Term of the leader that appended it."""

    @property
    def index(self) -> int:
        """Position in the group's log, from 1."""

    @property
    def size(self) -> int:
        """Bytes it takes on disk and on the wire."""

    @property
    def is_conf(self) -> bool:
        """Whether its payload is a Membership."""


E = TypeVar("E", bound=LogEntry)


class RandomSource(Protocol):
    """The one method of random.Random that the core uses."""

    def randrange(self, start: int, stop: int) -> int:
        """Return a number of [start, stop)."""


class Pending(enum.Enum):
    """The type of PENDING, so that a type checker can tell it from a list."""

    PENDING = "pending"


PENDING: Final = Pending.PENDING  # "not in memory": read it from the stored log


class HardStateLike(Protocol):
    """Any form of a hard state: the journal has its own."""

    @property
    def term(self) -> Term:
        """Newest term seen."""

    @property
    def vote(self) -> BrokerId:
        """Who got this broker's vote in `term`; 0 is nobody."""


class HardState(NamedTuple):
    """What must be durable before anything that depends on it is sent."""

    term: Term = NO_TERM
    vote: BrokerId = NO_BROKER


@dataclass(frozen=True, slots=True, order=True)
class LastId:
    """Where a log ends. Ordered as Raft orders logs: the higher one is at least as new."""

    term: Term
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """Who belongs to a group.

    Args:
        voters: their majority elects and commits. Empty: a replica that does not know its group yet.
        learners: get the log, are never counted. One that is also in `outgoing` is being demoted: it votes with
            the old half until the joint change is left.
        outgoing: the old voters while a joint change is under way: then both majorities are needed.
    """

    voters: tuple[BrokerId, ...]
    learners: tuple[BrokerId, ...] = ()
    outgoing: tuple[BrokerId, ...] = ()

    def __post_init__(self) -> None:
        if self.outgoing and not self.voters:
            raise ValueError(f"outgoing voters {self.outgoing} have no successors: at least one voter is needed")
        for name, ids in (("voters", self.voters), ("learners", self.learners), ("outgoing", self.outgoing)):
            if len(set(ids)) != len(ids) or NO_BROKER in ids:
                raise ValueError(f"{name} {ids} hold a broker twice, or broker 0")
        if set(self.learners) & set(self.voters):
            raise ValueError(f"learners {self.learners} must not vote")

    def votes(self, broker: BrokerId) -> bool:
        """Return whether `broker` is a voter of either half."""
        return broker in self.voters or broker in self.outgoing

    def electors(self) -> tuple[BrokerId, ...]:
        """Return everybody whose vote can count, each once."""
        return tuple(dict.fromkeys((*self.voters, *self.outgoing)))

    def members(self) -> tuple[BrokerId, ...]:
        """Return everybody who gets the log, each once."""
        return tuple(dict.fromkeys((*self.voters, *self.outgoing, *self.learners)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftConfig:
    """Settings of one group on one broker.

    Args:
        id: this broker.
        voters, learners, outgoing: see Membership.
        election_ticks: a follower that hears no leader for a random [election_ticks, 2 * election_ticks) asks
            for pre-votes; a leader that hears no quorum for election_ticks steps down. Ticks are the host's
            unit: 100 ms each give elections after 1-2 s. Range: > heartbeat_ticks, and at least 2.
        heartbeat_ticks: ticks between heartbeats of a leader; 0 when the host sends one beat per broker pair for
            all groups (touch_leader, touch_peer, heartbeat_commit), which is 20 times cheaper with many groups.
        append_message_bytes_max: entries in one Append; one larger entry still travels, alone.
        inflight_messages_max, inflight_bytes_max: Appends sent to one follower and not yet acknowledged. Bytes may
            be exceeded by one message.
        uncommitted_bytes_max: proposed and not committed; beyond it a proposal gets Busy.
        apply_bytes_max: entries of one Ready.committed that are in memory; one larger entry still goes, alone.
        joins_after: a replica that joined later, perhaps with an empty disk, gives no vote and does not campaign
            before a membership above this index names it, and until then says `repairing` in its answers, so that
            it is not counted; -1 for a replica that was there from the start. An empty log would grant any
            candidate its vote, and with it the loss of what is committed.
        tells_commits: a commit index travels alone when there is nothing else to send. False where nobody waits at a
            follower and the host tells it by heartbeats or beats: the next Append or beat says it.
    """

    id: BrokerId
    voters: tuple[BrokerId, ...]
    learners: tuple[BrokerId, ...] = ()
    outgoing: tuple[BrokerId, ...] = ()
    election_ticks: int = 10
    heartbeat_ticks: int = 0
    append_message_bytes_max: int = APPEND_MESSAGE_BYTES_MAX
    inflight_messages_max: int = INFLIGHT_MESSAGES_MAX
    inflight_bytes_max: int = INFLIGHT_BYTES_MAX
    uncommitted_bytes_max: int = UNCOMMITTED_BYTES_MAX
    apply_bytes_max: int = APPLY_BYTES_MAX
    joins_after: int = -1
    tells_commits: bool = True

    def __post_init__(self) -> None:
        if self.election_ticks < 2 or not 0 <= self.heartbeat_ticks < self.election_ticks:
            raise ValueError(
                f"election_ticks {self.election_ticks} must exceed heartbeat_ticks {self.heartbeat_ticks} and 1"
            )
        limits = (
            self.append_message_bytes_max,
            self.inflight_messages_max,
            self.inflight_bytes_max,
            self.uncommitted_bytes_max,
            self.apply_bytes_max,
        )
        if min(limits) < 1:
            raise ValueError(f"every limit must be positive: {limits}")

    def membership(self) -> Membership:
        """Return the members as one value."""
        return Membership(voters=self.voters, learners=self.learners, outgoing=self.outgoing)
