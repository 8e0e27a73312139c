"""The state machine sees exactly the log of its group: appended, truncated, committed; or the group stops."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from georelay.errors import NotLeader, StorageFailed, Unavailable
from georelay.ids import BrokerId, Epoch, GroupId, Offset, RaftIndex, Term
from mesh.replication.stream_header import EntryType, StreamHeader
from region.log.entry import FIRST_CHAIN, Entry, EntryDraft, control_header, seal_entry
from region.log.errors import ReadInterrupted
from region.log.filesystem import OsFileSystem
from region.log.group_log import GroupLog
from region.log.hard_state import HardState
from region.log.manifest import Manifest
from region.multiraft import followed_log
from region.multiraft.group import Group
from region.multiraft.log_end import GroupStopped
from region.raft.core import Append, AppendResponse, Fetch, Role, TimeoutNow, VoteResponse

ME, OTHER, THIRD = BrokerId(1001), BrokerId(1002), BrokerId(1003)


def noop() -> StreamHeader:
    return control_header(EntryType.NOOP, next_offset=Offset(0), epoch=Epoch(1), append_us=0, digest=bytes(16))


class Follower:
    """A state machine that keeps the log it was told of."""

    keeps_whole_log = False
    serves_at_followers = False

    def __init__(self) -> None:
        self.log: list[Entry] = []
        self.committed = 0
        self.leads = False

    def recovered(self, entry: Entry) -> None:
        self.appended(entry)

    def snapshot(self) -> bytes:
        return b"%d" % self.committed

    def restore(self, manifest: Manifest) -> None:
        raise AssertionError("these logs begin at 1")

    def noop_header(self) -> StreamHeader:
        return noop()

    def appended(self, entry: Entry) -> None:
        assert entry.index == len(self.log) + 1
        self.log.append(entry)

    def truncated(self, from_index: RaftIndex, newest: Entry | None) -> None:
        assert from_index > self.committed
        del self.log[from_index - 1 :]
        assert newest is (self.log[-1] if self.log else None) or newest.frame == self.log[-1].frame  # type: ignore[union-attr]

    def applied(self, entries: Sequence[Entry]) -> None:
        assert [entry.frame for entry in entries] == [
            entry.frame for entry in self.log[self.committed : self.committed + len(entries)]
        ]
        self.committed += len(entries)

    def applied_until(self, newest: Entry) -> None:
        self.committed = newest.index

    def led(self, *, leader: int, is_leader: bool) -> None:
        self.leads = is_leader


class GroupBench:
    """One group whose disk works at once."""

    def __init__(self, path: Path, hard_state: HardState | None = None) -> None:
        self.disk = GroupLog.open(path / "1", OsFileSystem())
        self.machine = Follower()
        self.sent: list[Any] = []
        self.group = Group(
            group_id=GroupId(1),
            me=ME,
            voters=(ME, OTHER, THIRD),
            disk=self.disk,
            hard_state=hard_state,
            machine=self.machine,
            rng=random.Random(1),
            on_dirty=lambda group: None,
        )

    def turn(self) -> None:
        """Do what the host does in one turn of the loop."""
        group = self.group
        while group.node.has_ready():
            ready = group.take_ready()
            self.sent += ready.messages
            group.apply(ready)
            if ready.write is not None:
                if ready.write.truncate_from is not None:
                    self.disk.truncate_suffix(RaftIndex(ready.write.truncate_from))
                self.disk.append(ready.write.entries)
                self.disk.sync()
                group.node.written(ready.write)
                self.sent += ready.write.responses

    def elect(self) -> None:
        group = self.group
        group.node.campaign()
        self.turn()
        group.step(VoteResponse(from_=OTHER, to=ME, term=Term(group.node.term + 1), granted=True, pre=True))
        self.turn()
        group.step(VoteResponse(from_=OTHER, to=ME, term=Term(group.node.term), granted=True))

    def acknowledge(self) -> None:
        node = self.group.node
        self.group.step(AppendResponse(from_=OTHER, to=ME, term=Term(node.term), index=node.last_index))
        self.turn()

    def told(self, entries: Sequence[Entry], *, term: int, commit: int = 0) -> None:
        prev = entries[0].index - 1
        self.group.step(
            Append(
                from_=OTHER,
                to=ME,
                term=Term(term),
                prev_index=prev,
                prev_term=self.group.node.log.term(prev) or Term(0),
                commit=commit,
                entries=list(entries),
            )
        )


def chain_of(count: int, *, term: int = 1, after: Entry | None = None, salt: int = 0) -> list[Entry]:
    entries: list[Entry] = []
    for _ in range(count):
        last = entries[-1] if entries else after
        header = control_header(EntryType.NOOP, next_offset=Offset(0), epoch=Epoch(1), append_us=salt, digest=bytes(16))
        entries.append(
            seal_entry(
                EntryDraft(header=header, payload=b""),
                term=Term(term),
                index=RaftIndex(last.index + 1 if last else 1),
                previous_chain=last.chain if last else FIRST_CHAIN,
            )
        )
    return entries


@pytest.fixture
def bench(tmp_path: Path) -> GroupBench:
    return GroupBench(tmp_path)


def test_a_leader_serves_once_its_own_first_entry_is_committed(bench: GroupBench) -> None:
    bench.elect()
    bench.turn()
    assert bench.group.node.is_leader
    assert not bench.machine.leads
    bench.acknowledge()
    assert bench.machine.leads


def test_a_follower_sees_entries_at_once_and_commits_later(bench: GroupBench) -> None:
    entries = chain_of(3)
    bench.told(entries, term=1, commit=2)
    bench.turn()
    assert ([entry.index for entry in bench.machine.log], bench.machine.committed) == ([1, 2, 3], 2)


def test_an_entry_that_does_not_continue_the_chain_stops_the_group_before_it_is_stored(bench: GroupBench) -> None:
    bench.told(chain_of(2), term=1)
    bench.turn()
    stranger = chain_of(3, salt=1)[2:]  # same term, same index, another history below
    bench.told(stranger, term=1)
    with pytest.raises(GroupStopped, match="diverged"):
        bench.turn()
    assert bench.disk.last_index == 2
    assert not any(isinstance(message, AppendResponse) and message.index == 3 for message in bench.sent)


def test_a_newer_leader_replaces_what_was_not_committed(bench: GroupBench) -> None:
    old = chain_of(4)
    bench.told(old, term=1, commit=1)
    bench.turn()
    new = chain_of(2, term=2, after=old[1], salt=7)
    bench.told(new, term=2, commit=4)
    bench.turn()
    assert [entry.frame for entry in bench.machine.log] == [entry.frame for entry in [*old[:2], *new]]
    assert bench.machine.committed == 4


def test_a_proposal_that_is_replaced_before_storage_heard_of_it_is_truncated_too(bench: GroupBench) -> None:
    bench.elect()
    bench.turn()
    bench.acknowledge()
    opened = bench.machine.log[0]
    bench.group.propose([EntryDraft(header=noop(), payload=b"")])  # seen by the machine, not yet by the disk
    new = chain_of(2, term=2, after=opened, salt=7)
    bench.told(new, term=2)
    bench.turn()
    assert [entry.frame for entry in bench.machine.log] == [entry.frame for entry in [opened, *new]]
    bench.told(chain_of(1, term=2, after=new[-1]), term=2, commit=4)
    bench.turn()
    assert (bench.machine.committed, bench.machine.leads) == (4, False)


def test_a_stopped_group_and_a_follower_accept_no_proposal(bench: GroupBench) -> None:
    draft = EntryDraft(header=noop(), payload=b"")
    with pytest.raises(NotLeader):
        bench.group.propose([draft])
    bench.group.stopped = True
    with pytest.raises(Unavailable):
        bench.group.propose([draft])
    assert bench.machine.log == []


def test_replacing_a_committed_entry_stops_the_group(bench: GroupBench) -> None:
    bench.told(chain_of(2), term=1, commit=2)
    bench.turn()
    with pytest.raises(GroupStopped):
        bench.told(chain_of(2, term=2), term=2)


def test_a_restart_follows_the_whole_log_in_pieces(
    bench: GroupBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = chain_of(20)
    bench.told(entries, term=1)
    bench.turn()
    bench.disk.close()
    monkeypatch.setattr(followed_log, "REPLAY_BYTES", 3 * entries[0].size)
    monkeypatch.setattr(followed_log, "TAIL_BYTES_MAX", 5 * entries[0].size)
    again = GroupBench(tmp_path, HardState(Term(1), BrokerId(0)))
    assert [entry.frame for entry in again.machine.log] == [entry.frame for entry in entries]
    assert again.group.node.log.tail_first > 1
    again.told(chain_of(1, after=entries[-1]), term=1, commit=21)
    again.turn()
    assert again.machine.committed == 21


def test_a_restarted_follower_gives_up_what_its_new_leader_does_not_have(bench: GroupBench, tmp_path: Path) -> None:
    entries = chain_of(6)
    bench.told(entries, term=1)
    bench.turn()
    bench.disk.close()
    again = GroupBench(tmp_path, HardState(Term(1), BrokerId(0)))
    again.group.node.log.evict(5)  # the truncation has to look at the disk
    new = chain_of(1, term=2, after=entries[2], salt=3)
    again.told(new, term=2, commit=4)
    again.turn()
    assert [entry.frame for entry in again.machine.log] == [entry.frame for entry in [*entries[:3], *new]]


def test_every_entry_below_an_index_comes_from_disk_and_memory_together(bench: GroupBench) -> None:
    entries = chain_of(8)
    bench.told(entries, term=1, commit=5)
    bench.turn()
    bench.group.node.log.evict(5)
    for index in (1, 4, 6, 9):
        found = list(bench.group.entries_below(RaftIndex(index)))
        assert [entry.frame for entry in found] == [entry.frame for entry in entries[: index - 1]]


def test_a_cold_read_that_was_interrupted_is_asked_again(bench: GroupBench, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch = Fetch(to=OTHER, term=Term(1), lo=1, hi=2, bytes_max=100)

    def interrupted(*_: object) -> list[Entry]:
        raise ReadInterrupted("truncated")

    monkeypatch.setattr(bench.disk, "read_entries", interrupted)
    assert bench.group.read_cold(fetch) == []


def test_an_own_log_that_cannot_be_read_stops_the_group(bench: GroupBench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.told(chain_of(2), term=1, commit=2)
    bench.turn()
    bench.group.node.log.evict(1)

    def failed(*_: object) -> list[Entry]:
        raise StorageFailed("reading failed")

    monkeypatch.setattr(bench.disk, "read_entries", failed)
    with pytest.raises(GroupStopped):
        list(bench.group.entries_below(RaftIndex(2)))


def test_a_manifest_is_made_exactly_where_a_segment_ends_however_much_is_applied_at_once(bench: GroupBench) -> None:
    entries = chain_of(6)
    bench.told(entries[:4], term=1)
    bench.turn()
    bench.disk.seal()
    bench.told(entries[4:], term=1, commit=6)
    bench.turn()
    write = bench.group.upkeep.take(GroupId(1), bench.disk, None)
    assert write is not None
    assert write.manifest is not None
    made = write.manifest
    assert (made.index, made.state, made.chain, made.stream_part) == (4, b"4", entries[3].chain, entries[3].stream_part)
    assert bench.group.upkeep.take(GroupId(1), bench.disk, None) is None


def test_a_checkpoint_is_of_what_is_applied_and_is_not_made_twice(bench: GroupBench) -> None:
    bench.told(chain_of(5), term=1, commit=3)
    bench.turn()
    assert bench.group.checkpoint()
    assert not bench.group.checkpoint()
    write = bench.group.upkeep.take(GroupId(1), bench.disk, None)
    assert write is not None
    assert write.manifest is not None
    assert (write.manifest.index, write.manifest.state) == (3, b"3")
    bench.group.stop()
    bench.told(chain_of(5), term=1, commit=5)
    bench.turn()
    assert not bench.group.checkpoint()


def test_while_segments_are_linked_in_nothing_else_lengthens_the_log(bench: GroupBench) -> None:
    entries = chain_of(3)
    bench.told(entries[:1], term=1)
    bench.turn()
    bench.group.adopting = True
    bench.told(entries[1:], term=1)
    bench.turn()
    assert bench.group.node.last_index == 1
    bench.group.step(TimeoutNow(from_=OTHER, to=ME, term=Term(1)))
    assert bench.group.node.role is Role.FOLLOWER
    bench.group.step_heartbeat(OTHER, Term(1), RaftIndex(1))
    bench.turn()
    assert bench.machine.committed == 1
    bench.group.adopting = False
    bench.told(entries[1:], term=1)
    bench.turn()
    assert bench.group.node.last_index == 3


def test_the_end_of_a_bulk_fetch_is_looked_at_in_the_same_turn(bench: GroupBench) -> None:
    dirty: list[Group] = []
    bench.group._on_dirty = dirty.append
    bench.group.end_bulk(OTHER)
    assert dirty == [bench.group]
