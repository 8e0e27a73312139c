"""Several groups over one entry journal against lists: appends, cuts, logs that are opened anew, and crashes anywhere.

After a crash each log has everything whose token was posted. What was being written may be there or not; of a cut the
former end may have come back.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from georelay.errors import StorageFailed
from georelay.ids import GroupId, RaftIndex
from region.log.entry import Entry
from region.log.entry_journal import EntryJournal, replay_journal
from region.log.flushed_marks import FlushedMarks
from region.log.flusher import Flusher, GroupWrite
from region.log.group_log import GroupLog
from region.log.hard_state import HardStateJournal
from tests.tiers import first

if TYPE_CHECKING:
    from tests.unit.log.conftest import CrashFileSystem, EntryMaker

DATA = Path("/data")
GROUPS = 4
STEPS = 60


def folder(group: int) -> Path:
    return DATA / "groups" / str(group)


class OneThread(Flusher):
    """A flusher without a pool: files in memory are for one thread."""

    def _sync(self, logs: Sequence[GroupLog]) -> None:
        for group_log in logs:
            group_log.sync()


class Broker:
    """The logs of a broker that loses power again and again, and what they must hold."""

    def __init__(self, fs: CrashFileSystem, maker: Callable[[], EntryMaker], rng: random.Random) -> None:
        self.fs, self.rng = fs, rng
        fs.make_durable_directory(DATA / "groups")
        self.makers = {group: maker() for group in range(GROUPS)}
        self.held: dict[int, list[Entry]] = {group: [] for group in range(GROUPS)}
        self.term = 1
        self.start()

    def start(self) -> None:
        replay_journal(self.fs, DATA, folder)
        self.marks = FlushedMarks.open(self.fs, DATA)
        self.entries = EntryJournal(self.fs, DATA, size_bytes=self.rng.choice((4_096, 16_384)))
        self.flusher = OneThread(
            HardStateJournal.open(self.fs, DATA),
            post=lambda _: None,
            on_failure=lambda _: None,
            marks=self.marks,
            entries=self.entries,
        )
        self.logs = {group: self.open(group) for group in range(GROUPS)}

    def open(self, group: int) -> GroupLog:
        return GroupLog.open(folder(group), self.fs, mark=self.marks.get(GroupId(group)), segment_bytes_max=3_000)

    def made(self, group: int, count: int, size: int) -> list[Entry]:
        return [self.makers[group].data(bytes([1 + number]) * size, term=self.term) for number in range(count)]

    def appends(self) -> list[GroupWrite]:
        size = self.rng.choice((10, 10, 200, 1_100))
        groups = self.rng.sample(range(GROUPS), self.rng.randint(1, GROUPS))
        writes = []
        for group in groups:
            entries = self.made(group, self.rng.randint(1, 3), size)
            writes.append(GroupWrite(group_id=GroupId(group), log=self.logs[group], token=0, entries=entries))
        return writes

    def cut(self) -> list[GroupWrite]:
        """A follower's log is replaced from somewhere on by what a new leader has."""
        group = self.rng.randrange(GROUPS)
        held = self.held[group]
        if not held:
            return []
        self.term += 1
        kept = self.rng.randrange(max(0, len(held) - 6), len(held))
        maker = self.makers[group]
        maker.rewind(held[kept - 1] if kept else None)
        write = GroupWrite(group_id=GroupId(group), log=self.logs[group], token=0)
        write.truncate_from = RaftIndex(kept + 1)
        write.entries = self.made(group, self.rng.randint(1, 2), 10)
        return [write]

    def reopen(self) -> None:
        """A group leaves this broker, and comes back."""
        group = self.rng.randrange(GROUPS)
        self.flusher.run_cycle([GroupWrite(group_id=GroupId(group), log=None, token=0)])
        self.logs[group].close()
        self.logs[group] = self.open(group)

    def run(self, writes: list[GroupWrite]) -> None:
        """Do it, perhaps with a crash on the way."""
        calls = self.rng.randint(0, 14) if self.rng.random() < 0.15 else None
        self.fs.calls_left = calls
        wanted = {int(write.group_id): self._after(write) for write in writes}
        try:
            self.flusher.run_cycle(writes)
        except StorageFailed:
            assert calls is not None
        else:
            self.held.update(wanted)
        self.fs.calls_left = None
        if calls is not None:
            self.lose_power(wanted)

    def _after(self, write: GroupWrite) -> list[Entry]:
        held = self.held[int(write.group_id)]
        kept = held if write.truncate_from is None else held[: write.truncate_from - 1]
        return [*kept, *write.entries]

    def lose_power(self, wanted: dict[int, list[Entry]]) -> None:
        self.fs.crash()
        self.start()
        for group, log in self.logs.items():
            self.check(group, log, wanted.get(group))
            self.makers[group].rewind(self.held[group][-1] if self.held[group] else None)

    def check(self, group: int, log: GroupLog, wanted: list[Entry] | None = None) -> None:
        """Compare a log with what it must hold, or with what was being done to it; take over what it has."""
        assert log.lost is None, (group, log.lost)
        frames = [entry.frame for entry in log.read_entries(RaftIndex(1), RaftIndex(log.last_index + 1), 1 << 30)]
        held = self.held[group]
        wanted = held if wanted is None else wanted
        kept = next(
            (at for at, pair in enumerate(zip(held, wanted, strict=False)) if pair[0] is not pair[1]), len(held)
        )
        for end in (held, wanted):
            if len(frames) >= kept and frames == [entry.frame for entry in end[: len(frames)]]:
                self.held[group] = end[: len(frames)]
                return
        raise AssertionError((group, len(frames), len(held), len(wanted), kept))


@pytest.mark.parametrize("seed", first(40, range(400)))
def test_every_log_has_what_was_promised_after_any_crash(
    crash_fs: Callable[[int], CrashFileSystem], entry_maker: Callable[[], EntryMaker], seed: int
) -> None:
    rng = random.Random(seed)
    broker = Broker(crash_fs(seed), entry_maker, rng)
    for _ in range(STEPS):
        way = rng.random()
        if way < 0.7:
            broker.run(broker.appends())
        elif way < 0.85:
            broker.run(broker.cut())
        elif way < 0.92:
            broker.reopen()
        else:
            broker.lose_power({})
        for group, log in broker.logs.items():
            broker.check(group, log)
