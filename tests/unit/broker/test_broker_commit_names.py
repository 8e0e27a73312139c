"""Who names what commits: a leader at once, and the next leader what nobody was left to name. With a real group."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from georelay.clock import SystemClock
from georelay.ids import BrokerId, Epoch, GroupId, Offset, RaftIndex, RegionNumber, StreamKey, Term
from georelay.trace.kinds import LedgerKind
from georelay.wire.batch import RecordDraft, build_batch
from georelay.wire.crc import crc32c
from mesh.replication.stream_header import EntryType, StreamHeader
from mesh.tracing.offset_run_core import LateRange
from region.broker.commit_names import CommitNames
from region.log.entry import FIRST_CHAIN, Entry, EntryDraft, control_header, seal_entry
from region.log.filesystem import OsFileSystem
from region.log.group_log import GroupLog
from region.log.hard_state import HardState
from region.multiraft import followed_log
from region.multiraft.group import Group
from region.raft.core import Append, AppendResponse, VoteResponse
from region.topics import unnamed_core
from region.topics.committed_tail import TailBudget
from region.topics.epoch_entry_core import EpochBegun, encode_epoch
from region.topics.hosted_stream import HostedStream

ME, OTHER, THIRD = BrokerId(1001), BrokerId(1002), BrokerId(1003)
T0_US = 1_700_000_000_000_000
S = 1_000_000
Named = tuple[str, int, int, int, int]  # kind, epoch, offsets, second since T0


class Recorder:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.at_once: list[tuple[str, int, int]] = []
        self.late: list[Named] = []
        self.followed: list[int] = []
        self.named_before: list[int] = []
        self.streams_left = 0

    def committed(self, **said: Any) -> None:
        self.at_once.append(("commit", said["from_offset"], said["to_offset"]))

    def replicated(self, **said: Any) -> None:
        self.at_once.append(("replicated", said["from_offset"], said["to_offset"]))

    def named_late(self, kind: LedgerKind, ranges: Sequence[LateRange], **_: Any) -> None:
        self.late += [
            (kind.value, late.epoch, late.from_offset, late.to_offset, (late.first_us - T0_US) // S) for late in ranges
        ]

    def aborted_late(self, entries: Sequence[Any], *, is_named: bool, **_: Any) -> None:
        self.followed += [entry.base_offset for entry in entries]
        self.named_before += [entry.base_offset for entry in entries if is_named]

    def left(self, **_: Any) -> None:
        self.streams_left += 1
        self.followed.clear()


class Clock(SystemClock):
    """Time that a test sets."""

    now_s = 10.0

    def wall_ns(self) -> int:
        return (T0_US + int(self.now_s * S)) * 1_000

    def monotonic_ns(self) -> int:
        return int(self.now_s * S) * 1_000


class Leader:
    """The log of another broker: entries that continue each other."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.next_offset = 0
        self.epoch = 0
        self.append_us = T0_US
        self.begin_epoch(1)

    def begin_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        payload = encode_epoch(EpochBegun(control_index=0, cut=None))
        header = control_header(
            EntryType.EPOCH, next_offset=Offset(self.next_offset), epoch=Epoch(epoch), append_us=self.append_us,
            digest=bytes(16), payload=payload,
        )  # fmt: skip
        self._append(header, payload)

    def data(self, count: int, *, at_s: float = 0.0) -> None:
        payload = build_batch([RecordDraft(b"v")] * count, timestamps_ms=1)
        self.append_us = T0_US + int(at_s * S)
        header = StreamHeader(
            type=EntryType.DATA, entry_region=1, record_count=count, epoch=Epoch(self.epoch),
            base_offset=Offset(self.next_offset), append_us=self.append_us, received_ns=0, max_timestamp_ms=1,
            producer_id=-1, producer_epoch=-1, base_sequence=-1, payload_crc=crc32c(payload), digest=bytes(16),
        )  # fmt: skip
        self.next_offset += count
        self._append(header, payload)

    def _append(self, header: StreamHeader, payload: bytes | bytearray) -> None:
        chain = self.entries[-1].chain if self.entries else FIRST_CHAIN
        index = RaftIndex(len(self.entries) + 1)
        draft = EntryDraft(header=header, payload=bytes(payload))
        self.entries.append(seal_entry(draft, term=Term(1), index=index, previous_chain=chain))


class Bench:
    """One replica of a stream on a disk that works at once; the other two brokers are the test."""

    def __init__(
        self, path: Path, executor: Any, *, home: int = 1, topic: str = "orders", hard_state: HardState | None = None,
        voters: tuple[BrokerId, ...] = (ME, OTHER, THIRD), home_row: Any = None,
    ) -> None:  # fmt: skip
        self.recorder = Recorder()
        self.budget = TailBudget()
        self.disk = GroupLog.open(path, OsFileSystem())
        self.stream = HostedStream(
            key=StreamKey(bytes(range(16)), RegionNumber(0), 0), topic=topic, group_id=GroupId(1),
            home=RegionNumber(home), region=RegionNumber(1), clock=SystemClock(), budget=self.budget,
            executor=executor,
        )  # fmt: skip
        self.stream.home_row = home_row
        self.clock = Clock()
        self.names = CommitNames(me=ME, recorder=self.recorder, clock=self.clock)
        self.stream.on_committed = self.names.committed
        self.stream.on_leadership = self.names.leadership
        self.group = Group(
            group_id=GroupId(1), me=ME, voters=voters, disk=self.disk, hard_state=hard_state,
            machine=self.stream, rng=random.Random(1), on_dirty=lambda group: None,
        )  # fmt: skip
        self.stream.attach(self.group, self.disk)

    def turn(self) -> None:
        while self.group.node.has_ready():
            ready = self.group.take_ready()
            if ready.write is not None:
                if ready.write.truncate_from is not None:
                    self.disk.truncate_suffix(RaftIndex(ready.write.truncate_from))
                self.disk.append(ready.write.entries)
                self.disk.sync()
                self.group.node.written(ready.write)
            self.group.apply(ready)

    def told(self, entries: Sequence[Entry], *, commit: int = 0, term: int = 1) -> None:
        prev = entries[0].index - 1
        prev_term = self.group.node.log.term(prev) or Term(0)
        self.group.step(
            Append(
                from_=OTHER, to=ME, term=Term(term), prev_index=prev, prev_term=prev_term,
                commit=commit, entries=list(entries),
            )
        )  # fmt: skip
        self.turn()

    def lead(self) -> None:
        """Win an election; the first entry of the term is stored by another broker too."""
        node = self.group.node
        node.campaign()
        self.turn()
        if len(node.membership.voters) > 1:
            self.group.step(VoteResponse(from_=OTHER, to=ME, term=Term(node.term + 1), granted=True, pre=True))
            self.turn()
            self.group.step(VoteResponse(from_=OTHER, to=ME, term=Term(node.term), granted=True))
            self.turn()
            self.group.step(AppendResponse(from_=OTHER, to=ME, term=Term(node.term), index=node.last_index))
            self.turn()
        assert self.stream.is_leader

    def close(self) -> None:
        self.stream.close()
        self.disk.close()


Make = Callable[..., Bench]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    executor = ThreadPoolExecutor(1)
    made: list[Bench] = []

    def start(**settings: Any) -> Bench:
        for bench in made:
            bench.close()
        made.append(Bench(tmp_path / "group", executor, **settings))
        return made[-1]

    yield start
    for bench in made:
        bench.close()
    executor.shutdown()


def killed_with(make: Make, leader: Leader, **settings: Any) -> Bench:
    """Return a broker alone in its region that was killed when `leader`'s log was on its disk and nothing applied."""
    before = make(voters=(ME,))
    before.disk.append(leader.entries)
    before.disk.sync()
    return make(voters=(ME,), hard_state=HardState(term=Term(1), vote=ME), **settings)


@pytest.mark.parametrize("sealed_after", [0, 2], ids=["one segment", "a manifest boundary in between"])
def test_a_new_leader_names_what_was_in_flight_when_the_old_one_was_killed(make: Make, sealed_after: int) -> None:
    bench, leader = make(), Leader()
    leader.data(3)
    leader.data(2, at_s=0.5)
    bench.told(leader.entries[:sealed_after] or leader.entries)
    if sealed_after:
        bench.disk.seal()
        bench.told(leader.entries[sealed_after:])
    assert (bench.stream.next_offset, bench.stream.high_watermark) == (5, 0)
    bench.lead()
    assert bench.stream.high_watermark == 5
    assert bench.group.upkeep.checkpointed == sealed_after
    assert bench.recorder.late == [("commit", 1, 0, 5, 0)]
    assert bench.recorder.followed == [0, 3]
    assert bench.recorder.at_once == []  # its commit time is not known


def test_what_a_leader_commits_itself_is_named_at_once_and_once(make: Make) -> None:
    bench, leader = make(), Leader()
    bench.told(leader.entries)
    bench.lead()
    leader.data(4)
    bench.group.propose([EntryDraft(header=leader.entries[-1].header(), payload=bytes(leader.entries[-1].payload))])
    bench.turn()
    node = bench.group.node
    bench.group.step(AppendResponse(from_=OTHER, to=ME, term=Term(node.term), index=node.last_index))
    bench.turn()
    assert (bench.recorder.at_once, bench.recorder.late) == ([("commit", 0, 4)], [])
    bench.stream.on_leadership(bench.stream)  # as when control says something about the home
    assert bench.recorder.late == []


def test_a_follower_names_nothing(make: Make) -> None:
    bench, leader = make(), Leader()
    leader.data(3)
    bench.told(leader.entries, commit=2)
    assert bench.stream.high_watermark == 3
    assert (bench.recorder.at_once, bench.recorder.late) == ([], [])


def test_a_new_leader_names_what_it_was_told_of_last_for_the_old_one_may_not_have_come_to_it(make: Make) -> None:
    bench, leader = make(), Leader()
    for at_s in range(11):
        leader.data(1, at_s=at_s)
    bench.told(leader.entries[:1], commit=1)
    bench.told(leader.entries[1:-1], commit=11)  # a turn of its leader may be of many seconds: a mirror catches up
    bench.told(leader.entries[-1:], commit=11)
    bench.lead()
    assert bench.recorder.late == [("commit", 1, at_s, at_s + 1, at_s) for at_s in range(11)]


def test_what_a_leader_outlived_by_seconds_it_has_named(make: Make) -> None:
    bench, leader = make(), Leader()
    for told_s in (10.0, 11.0, 11.02, 13.5, 14.0):
        leader.data(1, at_s=5)
        bench.clock.now_s = told_s
        bench.told(leader.entries[-1:] if told_s > 10 else leader.entries, commit=leader.entries[-1].index)
    bench.lead()
    assert bench.recorder.late == [("commit", 1, 2, 5, 5)]


def test_a_new_leader_of_a_stream_that_was_quiet_for_long_names_nothing_of_it_again(make: Make) -> None:
    bench, leader = make(), Leader()
    leader.data(1)
    bench.told(leader.entries, commit=2)
    bench.clock.now_s += 61.0
    bench.lead()
    assert bench.recorder.late == []


def test_what_was_told_last_is_named_however_long_no_leader_was_found_after(make: Make) -> None:
    bench, leader = make(), Leader()
    leader.data(1)
    bench.told(leader.entries, commit=2)
    bench.group.node.campaign()
    bench.turn()
    bench.clock.now_s += 3_600.0
    bench.lead()
    assert bench.recorder.late == [("commit", 1, 0, 1, 0)]


def test_a_mirror_names_what_it_was_told_of_however_long_ago_its_home_appended_it(make: Make) -> None:
    bench, leader = make(home=2), Leader()
    for at_s in (0, 1, 8, 9):
        leader.data(1, at_s=at_s)
    bench.clock.now_s = 5_400.0
    bench.told(leader.entries, commit=5)
    bench.clock.now_s += 1.0
    bench.lead()
    assert bench.stream.high_watermark == 4
    assert bench.recorder.late == [("replicated", 1, row, row + 1, at_s) for row, at_s in enumerate((0, 1, 8, 9))]


@pytest.mark.parametrize(("lived_s", "names"), [(0.5, [0, 2, 3, 4]), (3.0, [3, 4])])
def test_what_the_leader_before_the_last_one_told_is_named_unless_the_last_one_lived_for_seconds(
    make: Make, lived_s: float, names: list[int]
) -> None:
    bench, leader = make(), Leader()
    leader.data(2)
    bench.told(leader.entries, commit=2)
    bench.clock.now_s += 30.0
    second = Leader()
    second.data(2)
    for at_s in (30, 31, 32):
        second.data(1, at_s=at_s)
    chain = leader.entries[-1].chain
    for count, wait_s in enumerate((0.0, lived_s, 0.0), start=3):
        bench.clock.now_s += wait_s
        entry = in_term(second.entries[count - 1], 2, chain)
        chain = entry.chain
        bench.group.step(
            Append(
                from_=THIRD, to=ME, term=Term(2), prev_index=count - 1, prev_term=Term(1 if count == 3 else 2),
                commit=count, entries=[entry],
            )
        )  # fmt: skip
        bench.turn()
    bench.lead()
    assert [row[2] for row in bench.recorder.late] == names


def test_seconds_and_epochs_are_ranges_of_their_own(make: Make) -> None:
    bench, leader = make(), Leader()
    for at_s in (0.1, 0.9, 1.0):
        leader.data(2, at_s=at_s)
    leader.begin_epoch(2)
    leader.data(1, at_s=1.5)
    bench.told(leader.entries)
    bench.lead()
    assert bench.recorder.late == [("commit", 1, 0, 4, 0), ("commit", 1, 4, 6, 1), ("commit", 2, 6, 7, 1)]


def test_records_are_named_as_what_their_epoch_made_them_in_this_region(make: Make) -> None:
    row = SimpleNamespace(homes=((Epoch(1), RegionNumber(2)), (Epoch(2), RegionNumber(1))), epoch=Epoch(2), table=())
    bench, leader = make(home_row=row), Leader()
    leader.data(2)
    leader.begin_epoch(2)
    leader.data(1)
    bench.told(leader.entries)
    bench.lead()
    assert bench.recorder.late == [("replicated", 1, 0, 2, 0), ("commit", 2, 2, 3, 0)]


def test_a_mirror_names_what_it_replicated(make: Make) -> None:
    bench, leader = make(home=2), Leader()
    leader.data(2)
    bench.told(leader.entries)
    bench.lead()
    assert bench.recorder.late == [("replicated", 1, 0, 2, 0)]


def test_what_brokers_write_for_themselves_is_never_named(make: Make) -> None:
    leader = Leader()
    leader.data(2)
    bench = killed_with(make, leader, topic="__georelay_probes")
    bench.lead()
    assert bench.stream.high_watermark == 2
    assert (bench.recorder.late, bench.recorder.followed) == ([], [])
    assert bench.stream.unnamed.take() == []


@pytest.mark.parametrize("is_cold", [False, True], ids=["in memory", "on disk only"])
@pytest.mark.parametrize(("home", "kind"), [(1, "commit"), (2, "replicated")])
def test_a_killed_broker_names_all_that_it_had_stored_however_long_ago_that_was_appended(
    make: Make, monkeypatch: pytest.MonkeyPatch, is_cold: bool, home: int, kind: str
) -> None:
    leader = Leader()
    for at_s in (0, 10, 70, 99.5):
        leader.data(1, at_s=at_s)
    if is_cold:
        monkeypatch.setattr(followed_log, "TAIL_BYTES_MAX", 1)
    bench = killed_with(make, leader, home=home)
    bench.clock.now_s = 3_600.0
    assert (bench.group.node.log.tail_first > 4) is is_cold
    bench.lead()
    assert bench.stream.high_watermark == 4
    assert bench.recorder.late == [(kind, 1, row, row + 1, at_s) for row, at_s in enumerate((0, 10, 70, 99))]


def test_what_was_in_flight_when_the_quorum_was_lost_is_named_after_any_number_of_runs(make: Make) -> None:
    leader = Leader()
    for at_s in range(3):
        leader.data(1, at_s=at_s)
    first = make()
    first.told(leader.entries)
    for term, now_s in ((1, 900.0), (1, 1_800.0)):
        bench = make(hard_state=HardState(term=Term(term), vote=OTHER))
        bench.clock.now_s = now_s
    bench.lead()
    assert bench.stream.high_watermark == 3
    assert bench.recorder.late == [("commit", 1, at_s, at_s + 1, at_s) for at_s in range(3)]


def test_of_a_log_of_more_seconds_than_are_remembered_the_aborted_transactions_are_followed_and_not_named(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unnamed_core, "RANGES_MAX", 2)
    leader = Leader()
    for at_s in range(4):
        leader.data(1, at_s=at_s)
    bench = killed_with(make, leader)
    bench.lead()
    assert [row[2:4] for row in bench.recorder.late] == [(2, 3), (3, 4)]
    assert (bench.recorder.followed, bench.recorder.named_before) == ([0, 1, 2, 3], [0, 1])


def test_what_a_manifest_holds_is_not_named_again(make: Make) -> None:
    leader = Leader()
    leader.data(3)
    before = killed_with(make, leader)
    before.lead()
    before.group.checkpoint()
    write = before.group.upkeep.take(GroupId(1), before.disk, None)
    assert write is not None and write.manifest is not None
    before.disk.write_manifest(write.manifest)
    after = make(voters=(ME,), hard_state=HardState(term=Term(2), vote=ME))
    after.lead()
    assert after.stream.high_watermark == 3
    assert after.recorder.late == []


def test_a_snapshot_takes_the_place_of_what_was_recovered(make: Make) -> None:
    leader = Leader()
    leader.data(3)
    bench = killed_with(make, leader)
    manifest: Any = SimpleNamespace(index=RaftIndex(9), state=bench.stream.snapshot())
    bench.stream.restore(manifest)
    assert bench.stream.unnamed.take() == []


def test_what_was_recovered_is_not_named_by_who_followed_another_leader_since_nor_what_that_one_cut_off(
    make: Make,
) -> None:
    leader = Leader()
    for at_s in (1, 1.5, 5, 5.5, 6):
        leader.data(1, at_s=at_s)
    first = make()
    first.told(leader.entries)
    bench = make(hard_state=HardState(term=Term(1), vote=OTHER))
    bench.told(leader.entries[:2], commit=2)
    assert bench.stream.high_watermark == 1
    shorter = Leader()
    for at_s in (1, 1.5, 5, 5.5):
        shorter.data(1, at_s=at_s)
    shorter.entries = shorter.entries[:-1]
    bench.group.step(
        Append(
            from_=OTHER, to=ME, term=Term(2), prev_index=4, prev_term=Term(1), commit=2,
            entries=[noop_after(shorter.entries[-1], term=2)],
        )
    )  # fmt: skip
    bench.turn()
    bench.lead()
    assert bench.stream.high_watermark == 3
    # The first was told of, and may not have been named; the second and third were recovered; the others are gone.
    assert bench.recorder.late == [("commit", 1, 0, 2, 1), ("commit", 1, 2, 3, 5)]


def in_term(entry: Entry, term: int, previous_chain: int) -> Entry:
    draft = EntryDraft(header=entry.header(), payload=bytes(entry.payload))
    return seal_entry(draft, term=Term(term), index=entry.index, previous_chain=previous_chain)


def noop_after(entry: Entry, *, term: int) -> Entry:
    header = control_header(
        EntryType.NOOP, next_offset=entry.next_offset, epoch=Epoch(1), append_us=entry.header().append_us,
        digest=bytes(16),
    )  # fmt: skip
    draft = EntryDraft(header=header, payload=b"")
    return seal_entry(draft, term=Term(term), index=RaftIndex(entry.index + 1), previous_chain=entry.chain)


def test_who_leads_no_longer_says_so(make: Make) -> None:
    bench, leader = make(), Leader()
    bench.told(leader.entries)
    bench.lead()
    before = bench.recorder.streams_left
    bench.group.step(
        Append(
            from_=OTHER, to=ME, term=Term(bench.group.node.term + 1), prev_index=1, prev_term=Term(1), commit=1,
            entries=[],
        )
    )  # fmt: skip
    bench.turn()
    assert not bench.stream.is_leader
    assert bench.recorder.streams_left > before


def test_the_transactions_of_what_was_in_flight_are_still_known_when_an_epoch_began_among_it(make: Make) -> None:
    row = SimpleNamespace(homes=((Epoch(1), RegionNumber(1)), (Epoch(2), RegionNumber(1))), epoch=Epoch(2), table=())
    bench, leader = make(home_row=row), Leader()
    leader.data(1)
    leader.begin_epoch(2)
    leader.data(1, at_s=1)
    bench.told(leader.entries)
    bench.lead()
    assert bench.stream.epoch == 2
    assert bench.recorder.followed == [0, 1]


def test_a_stream_that_left_this_broker_is_remembered_no_longer(make: Make) -> None:
    leader = Leader()
    leader.data(3)
    bench = killed_with(make, leader)
    assert bench.budget.ranges.held == 1
    bench.names.left(bench.stream)
    assert bench.budget.ranges.held == 0
