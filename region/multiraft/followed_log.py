"""Brings a state machine to the end of its group's log at start: newest manifest, then the entries above it.

Reading may happen in any thread, following only where the machine lives, so a start in pieces never holds the
event loop: `read_next` and `follow` alternate until `done`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from georelay.errors import StorageFailed
from georelay.ids import RaftIndex, Term
from georelay.limits import MIB, TAIL_BYTES_MAX
from region.log.entry import FIRST_CHAIN, Entry
from region.log.errors import LogCorrupt
from region.log.group_log import GroupLog
from region.log.manifest import Manifest
from region.multiraft.machine import StateMachine
from region.raft.core import Membership
from region.raft.membership import decode_membership

REPLAY_BYTES: Final = 1 * MIB  # read at once
FOLLOW_AT_ONCE: Final = 32  # entries between two looks at the clock


class FollowedLog:
    """The log of one group as far as its machine has followed it.

    Attributes:
        manifest: what it began with, None for a log that is followed from index 1.
        chain, last_index: of the newest entry followed.
        memberships: (index, membership) of the manifest and of every CONF entry above it.
        tail: the newest entries, for memory.
    """

    def __init__(self, disk: GroupLog, *, tail_bytes_max: int) -> None:
        """Read the newest manifest. Raises LogCorrupt when nothing holds what was before the log's first entry."""
        self.disk = disk
        self.manifest: Manifest | None = disk.manifest
        self.memberships: list[tuple[int, Membership]] = []
        self.tail: deque[Entry] = deque()
        self._tail_bytes = 0
        self._tail_bytes_max = tail_bytes_max
        self.chain = FIRST_CHAIN
        self.last_index = RaftIndex(0)
        if self.manifest is not None:
            self.chain, self.last_index = self.manifest.chain, self.manifest.index
            if self.manifest.membership:
                self.memberships.append((self.manifest.index, decode_membership(self.manifest.membership)))
        if self.last_index + 1 < disk.first_index:
            raise LogCorrupt(
                disk.directory, 0, f"the log begins at {disk.first_index}, and no manifest holds what was before"
            )

    @classmethod
    def open(cls, disk: GroupLog, machine: StateMachine) -> FollowedLog:
        """Begin to follow `disk`; the machine is touched by `follow` only. Any thread."""
        return cls(disk, tail_bytes_max=1 << 62 if machine.keeps_whole_log else TAIL_BYTES_MAX)

    @property
    def done(self) -> bool:
        """Return whether the machine stands at the log end."""
        return self.last_index >= self.disk.last_index

    def begin(self, machine: StateMachine) -> None:
        """Bring the machine to the manifest; before the first `follow`."""
        if self.manifest is not None:
            machine.restore(self.manifest)

    def read_next(self) -> list[Entry]:
        """Return the next piece of the log. Any thread.

        Raises:
            LogCorrupt, StorageFailed: the log cannot be read.
        """
        if self.done:
            return []
        return self.disk.read_entries(RaftIndex(self.last_index + 1), RaftIndex(self.disk.last_index + 1), REPLAY_BYTES)

    def follow(self, machine: StateMachine, entries: Sequence[Entry], *, may_go_on: Callable[[], bool]) -> int:
        """Let the machine follow `entries` while `may_go_on`; return how many it followed, at least some of them."""
        for count, entry in enumerate(entries):
            if count and count % FOLLOW_AT_ONCE == 0 and not may_go_on():
                return count
            machine.recovered(entry)
            self.chain, self.last_index = entry.chain, entry.index
            if entry.is_conf:
                self.memberships.append((entry.index, decode_membership(entry.payload)))
            self._keep(entry)
        return len(entries)

    def _keep(self, entry: Entry) -> None:
        self.tail.append(entry)
        self._tail_bytes += entry.size
        while self._tail_bytes > self._tail_bytes_max and len(self.tail) > 1:
            self._tail_bytes -= self.tail.popleft().size

    def follow_all(self, machine: StateMachine) -> None:
        """Do the whole of it here and now. Raises as `read_next`."""
        self.begin(machine)
        while not self.done:
            entries = self.read_next()
            if not entries:
                raise StorageFailed(f"{self.disk.directory} ends at {self.last_index}, not at {self.disk.last_index}")
            self.follow(machine, entries, may_go_on=lambda: True)

    def term_runs(self) -> list[tuple[int, Term]]:
        """Return (first index, term) of each run of one term, from the entry below the log on if it is known."""
        runs: list[tuple[int, Term]] = [(int(index), term) for index, term in self.disk.term_runs]
        base_index, base_term = self.disk.base_index, Term(self.disk.base_term)
        if base_index < 1 or base_term < 1:
            return runs
        if runs and runs[0][1] == base_term:
            runs[0] = (base_index, base_term)
        else:
            runs.insert(0, (base_index, base_term))
        return runs
