"""Bugs of one replica's votes, logs and acknowledgements, each a patch over the shipping code (see zoo.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import region.log.entry_journal as entry_journal_module
import region.raft.core.election as election_module
from region.log.active_file import ActiveFile
from region.log.entry_journal import EntryJournal
from region.log.hard_state import HardState as StoredHardState
from region.log.hard_state import HardStateJournal
from region.raft.core import AppendResponse, RaftNode
from region.raft.core.durability import Durability
from region.raft.core.leadership import Leadership
from region.raft.core.progress import Progress, ProgressState
from region.raft.core.quorum import Outcome
from region.raft.core.roles import RoleInput
from region.raft.core.types import NO_BROKER
from tests.sim.patching import replaced
from tests.sim.sim_broker import Life

Patch = Callable[[], AbstractContextManager[None]]


def acknowledges_before_sync() -> AbstractContextManager[None]:
    """A follower acknowledges entries when it has written them, not when they are durable."""

    def release(self: Any, message: Any, index: int, out: list[Any]) -> None:
        if isinstance(message, AppendResponse):
            out.append(message)
        else:
            original(self, message, index, out)

    original = Durability.release
    return replaced(Durability, "release", release)


def forgets_its_vote() -> AbstractContextManager[None]:
    """The term is stored, the vote is not."""

    def append(self: Any, states: Any, **options: Any) -> int:
        return int(
            original(
                self, {group: StoredHardState(state.term, NO_BROKER) for group, state in states.items()}, **options
            )
        )

    original: Any = HardStateJournal.append
    return replaced(HardStateJournal, "append", append)


def commits_old_terms_by_counting() -> AbstractContextManager[None]:
    """A leader commits whatever a quorum holds, of whatever term (Raft paper, figure 8)."""

    original = Leadership.committable
    present = next(name for name in ("first_own_index", "_first_own_index") if hasattr(Leadership, name))

    def patched(self: Any, commit: int) -> int:
        kept = getattr(self, present)
        setattr(self, present, 0)
        try:
            return int(original(self, commit))
        finally:
            setattr(self, present, kept)

    return replaced(Leadership, "committable", patched)


def truncates_without_conflict() -> AbstractContextManager[None]:
    """An Append cuts what follows it, also when it is an old duplicate."""

    def store(self: Any, append: Any) -> None:
        if append.entries and append.prev_index < self.log.last_index:
            self.log.truncate_from(append.prev_index + 1)
        original(self, append)

    original = RaftNode._store
    return replaced(RaftNode, "_store", store)


class _CountingPoll:
    """Counts answers, not voters."""

    def __init__(self, membership: Any) -> None:
        self._needed = len(membership.voters) // 2 + 1
        self._granted = self._refused = 0

    def record(self, voter: Any, granted: bool) -> Outcome:
        self._granted += granted
        self._refused += not granted
        if self._granted >= self._needed:
            return Outcome.WON
        return Outcome.LOST if self._refused >= self._needed else Outcome.OPEN


def counts_a_vote_twice() -> AbstractContextManager[None]:
    """A vote that arrives twice counts twice."""
    return replaced(election_module, "Poll", _CountingPoll)


def takes_acknowledgements_of_any_term() -> AbstractContextManager[None]:
    """An acknowledgement carries no term: one of an earlier term counts."""

    def step(self: Any, message: Any) -> None:
        if isinstance(message, AppendResponse) and message.term < self.term:
            message.term = self.term
        original(self, message)

    original: Any = RaftNode.step
    return replaced(RaftNode, "step", step)


def trusts_a_write_of_a_replaced_log() -> AbstractContextManager[None]:
    """A finished write counts although the log was cut and refilled meanwhile (stable ABA)."""

    def written(self: Any, tag: Any, term: Any) -> bool:
        self._durable_sequence = max(self._durable_sequence, tag.sequence)
        self._log.made_stable(min(tag.index, self._log.last_index))
        return True

    return replaced(Durability, "written", written)


def counts_what_was_sent_to_catch_up() -> AbstractContextManager[None]:
    """Entries on their way to a follower that catches up count for the quorum."""

    def match_of(self: Any, voter: Any) -> int:
        progress = self.peers.get(voter)
        if progress is not None and progress.state is ProgressState.REPLICATE:
            return int(progress.next - 1)
        return int(original(self, voter))

    original = Leadership._match_of
    return replaced(Leadership, "_match_of", match_of)


def counts_itself_before_its_sync() -> AbstractContextManager[None]:
    """A leader counts its own log up to the end, durable or not."""

    def match_of(self: Any, voter: Any) -> int:
        return int(self._log.last_index if voter == self._config.id else original(self, voter))

    original = Leadership._match_of
    return replaced(Leadership, "_match_of", match_of)


def votes_again_in_the_same_term() -> AbstractContextManager[None]:
    """Who steps back in its own term forgets whom it voted for."""

    def become_follower(self: Any, term: Any, leader_id: Any, given: Any) -> None:
        original(self, term, leader_id, given)
        if given in (RoleInput.VOTES_LOST, RoleInput.QUORUM_LOST, RoleInput.LEADER_SEEN):
            self.vote = NO_BROKER

    original = RaftNode._become_follower
    return replaced(RaftNode, "_become_follower", become_follower)


@contextmanager
def drops_a_commit_it_cannot_use_yet() -> Iterator[None]:
    """A follower ignores a commit index above what is durable there, and beats do not tell it again."""

    def commit_to(self: Any, index: int) -> None:
        if index <= self.log.stable_index:
            original(self, index)

    original = RaftNode._commit_to
    with (
        replaced(RaftNode, "_commit_to", commit_to),
        replaced(Leadership, "heartbeat_commit", lambda self, peer, commit: 0),
    ):
        yield


def never_steps_back_after_a_rejection() -> AbstractContextManager[None]:
    """A follower that refuses Appends is kept quiet by beats, and its leader tries the same place for ever."""
    return replaced(Progress, "rejected", lambda self, index, *, probe_index: False)


def goes_on_after_a_failed_sync() -> AbstractContextManager[None]:
    """A broker whose disk has failed keeps leading and voting."""
    return replaced(Life, "_storage_failed", lambda self, reason: None)


def takes_a_rejection_for_an_acknowledgement() -> AbstractContextManager[None]:
    """The answer to an Append that does not fit counts as a success up to its place."""

    def answered(self: Any, message: Any) -> None:
        message.rejected = False
        original(self, message)

    original = Leadership.append_answered
    return replaced(Leadership, "append_answered", answered)


@contextmanager
def leaves_the_old_tail_in_the_file() -> Iterator[None]:
    """A cut log forgets its end in memory only: the bytes stay in the file and come back behind a shorter log."""
    from tests.sim.disk import SimDisk

    original = SimDisk.truncate

    def truncate(self: Any, handle: int, size: int) -> None:
        inode = self._open[handle]
        if size and size < len(inode.content) and inode.content[:2] == b"GR" and inode.content[:4] != b"GRHS":
            self._step()
            return
        original(self, handle, size)

    with replaced(SimDisk, "truncate", truncate):
        yield


def cuts_a_log_and_leaves_its_rows_in_the_journal() -> AbstractContextManager[None]:
    """What was cut off a log is replayed over what took its place."""
    return replaced(EntryJournal, "settle", lambda self, groups: None)


def writes_the_journal_over_too_early() -> AbstractContextManager[None]:
    """A file of the entry journal is used again although its segments were not synced."""
    return replaced(entry_journal_module, "_sync_segments", lambda logs: None)


def closes_a_log_that_lags_behind_the_journal() -> AbstractContextManager[None]:
    """A segment that only the entry journal holds durably is sealed without a sync."""

    def sync(self: Any) -> int:
        self._lags = False
        return original(self)

    original = ActiveFile.sync
    return replaced(ActiveFile, "sync", sync)


def trusts_the_journal_before_its_sync() -> AbstractContextManager[None]:
    """Writes count as durable when the entry journal has them in the page cache."""

    def write(self: Any, body: Any, rows: int) -> int:
        fs = self._fs
        self._fs = _WithoutSync(fs)
        try:
            return original(self, body, rows)
        finally:
            self._fs = fs

    original = EntryJournal._write
    return replaced(EntryJournal, "_write", write)


class _WithoutSync:
    """A file system whose fdatasync does nothing."""

    def __init__(self, fs: Any) -> None:
        self._fs = fs

    def __getattr__(self, name: str) -> Any:
        return (lambda handle: None) if name == "fdatasync" else getattr(self._fs, name)
