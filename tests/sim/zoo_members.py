"""Bugs of memberships, snapshots and disks, each a patch over the shipping code (see zoo.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from region.broker.core import BrokerCore
from region.multiraft.group import Group
from region.multiraft.host import Host
from region.raft.core import RaftNode
from region.raft.core.durability import Durability
from region.raft.core.following import Follower
from region.raft.core.leadership import Leadership
from region.raft.core.roles import Role
from tests.sim.patching import replaced


@contextmanager
def enters_memberships_when_committed_at_followers() -> Iterator[None]:
    """A change of members is applied in two places: at a leader when appended, at a follower when committed."""
    waiting: dict[int, list[tuple[int, Any]]] = {}

    def enter(self: Any, index: int, membership: Any) -> None:
        if self.role is Role.LEADER:
            original_enter(self, index, membership)
        else:
            rows = waiting.setdefault(id(self), [])
            rows[:] = [row for row in rows if row[0] < index]
            rows.append((index, membership))

    def commit_to(self: Any, index: int) -> None:
        original_commit(self, index)
        rows = waiting.get(id(self), [])
        while rows and rows[0][0] <= self.commit_index:
            at, membership = rows.pop(0)
            if at > self._memberships.index:
                original_enter(self, at, membership)

    original_enter, original_commit = Follower._enter_membership, RaftNode._commit_to
    with replaced(Follower, "_enter_membership", enter), replaced(RaftNode, "_commit_to", commit_to):
        yield


@contextmanager
def changes_peers_before_the_quorum() -> Iterator[None]:
    """A leader counts among its new members with the quorum of the former ones, until the next change."""
    needed: dict[int, int] = {}

    def change(self: Any, membership: Any) -> None:
        needed[id(self)] = len(self._membership.voters) // 2 + 1
        original_change(self, membership)

    def committable(self: Any, commit: int) -> int:
        least = needed.get(id(self))
        if least is None:
            return int(original_committable(self, commit))
        voters = self._membership.voters
        held = sorted((self._match_of(voter) for voter in voters), reverse=True)
        index = held[min(least, len(held)) - 1]
        return int(index if index > commit and index >= self.first_own_index else commit)

    original_change, original_committable = Leadership.change, Leadership.committable
    with replaced(Leadership, "change", change), replaced(Leadership, "committable", committable):
        yield


def starts_the_log_behind_its_snapshot() -> AbstractContextManager[None]:
    """After a snapshot the log begins one entry too late: that entry is in neither of them."""

    def install(self: Any, snapshot: Any) -> None:
        self._log.reset(snapshot.index + 1, snapshot.snapshot_term)
        self._install = snapshot

    return replaced(Durability, "install", install)


@contextmanager
def rejoins_with_an_empty_disk() -> Iterator[None]:
    """A broker comes back on an empty disk and is taken for the voter it was."""

    async def open_group(self: Any, *args: Any, joins_after: int = -1, **options: Any) -> Any:
        del joins_after
        return await original(self, *args, **options)

    original: Callable[..., Any] = Host.open_group_async
    with (
        replaced(Host, "open_group_async", open_group),
        replaced(Group, "distrust", lambda self, unsafe: None),
        replaced(BrokerCore, "_registered_disk", lambda self, broker: None),
        replaced(BrokerCore, "_is_registered", lambda self: True),
    ):
        yield


def answers_end_queries_from_memory() -> AbstractContextManager[None]:
    """A leader says where the log ends without asking whether it still leads (stale reads)."""

    async def read_index(self: Any) -> Any:
        return self.applied_index

    return replaced(Group, "read_index", read_index)
