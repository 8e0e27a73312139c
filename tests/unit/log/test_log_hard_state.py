"""The journal of terms and votes never silently goes back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from georelay.ids import BrokerId, GroupId, Term
from region.log import hard_state
from region.log.errors import LogCorrupt
from region.log.filesystem import OsFileSystem
from region.log.hard_state import HardState, HardStateJournal, decode_journal, encode_file_header, encode_frame
from tests.tiers import first

if TYPE_CHECKING:
    from tests.unit.log.conftest import CrashFileSystem

DATA = Path("/data")
JOURNAL = DATA / "hard-state"
States = dict[GroupId, HardState]


def states(term: int, groups: int = 3) -> States:
    return {GroupId(n): HardState(Term(term), BrokerId(1001 + n)) for n in range(groups)}


def test_the_newest_state_of_each_group_is_loaded(tmp_path: Path) -> None:
    journal = HardStateJournal.open(OsFileSystem(), tmp_path)
    journal.append(states(1))
    journal.append({GroupId(1): HardState(Term(4), BrokerId(0))})
    journal.sync()
    journal.close()
    again = HardStateJournal.open(OsFileSystem(), tmp_path)
    assert again.load() == {**states(1), GroupId(1): (4, 0)}
    again.close()


def test_every_truncation_point_after_the_first_frame_gives_the_frames_before_it() -> None:
    frames = [encode_frame(states(n, groups=40), n) for n in range(5)]
    raw = encode_file_header() + b"".join(frames)
    for size in range(32 + len(frames[0]), len(raw) + 1):
        whole = (size - 32) // len(frames[0])
        assert decode_journal(raw[:size], JOURNAL) == states(whole - 1, groups=40), size


def test_a_journal_cut_inside_its_first_frame_is_refused() -> None:
    raw = encode_file_header() + encode_frame(states(1), 0)
    for size in range(len(raw)):
        with pytest.raises(LogCorrupt):
            decode_journal(raw[:size], JOURNAL)


def test_every_flipped_byte_is_refused_also_in_the_last_frame() -> None:
    raw = encode_file_header() + b"".join(encode_frame(states(n, groups=n + 1), n) for n in range(5))
    for position in range(len(raw)):
        damaged = bytearray(raw)
        damaged[position] ^= 1 << position % 8
        with pytest.raises(LogCorrupt, match=f"{JOURNAL} is damaged at byte"):
            decode_journal(bytes(damaged), JOURNAL)


def test_a_record_of_zeros_alone_in_a_sector_is_not_taken_for_a_lost_sector() -> None:
    many = {GroupId(n): HardState(Term(1), BrokerId(1)) for n in range(1, 27)}
    raw = bytearray(encode_file_header() + encode_frame({}, 0) + encode_frame({**many, GroupId(0): HardState()}, 1))
    assert len(raw) == 512 + 32
    raw[200] ^= 1
    with pytest.raises(LogCorrupt):
        decode_journal(bytes(raw), JOURNAL)


def test_every_lost_sector_of_the_last_frame_only_loses_that_frame() -> None:
    before = encode_file_header() + encode_frame(states(1), 0)
    raw = before + encode_frame(states(2, groups=200), 1)
    for start in range(0, len(raw), 512):
        lost = (
            raw[: max(start, len(before))] + bytes(len(raw[max(start, len(before)) : start + 512])) + raw[start + 512 :]
        )
        assert decode_journal(lost, JOURNAL) == states(1)


def test_a_lost_sector_before_a_later_frame_is_refused() -> None:
    raw = encode_file_header() + b"".join(encode_frame(states(n, groups=100), n) for n in range(3))
    frame_bytes = (len(raw) - 32) // 3
    start = (32 + frame_bytes) // 512 * 512 + 512
    with pytest.raises(LogCorrupt):
        decode_journal(raw[:start] + bytes(512) + raw[start + 512 :], JOURNAL)


@pytest.mark.parametrize("seed", first(10, range(60)))
def test_a_crash_never_takes_back_a_synced_vote(crash_fs: Callable[[int], CrashFileSystem], seed: int) -> None:
    fs = crash_fs(seed)
    fs.make_durable_directory(DATA)
    synced: States = {}
    for life in range(3):
        journal = HardStateJournal.open(fs, DATA)
        for n in range(4):
            journal.append(states(10 * life + n + 1, groups=60))
            if n < 3:
                journal.sync()
        synced = states(10 * life + 3, groups=60)
        unsynced = states(10 * life + 4, groups=60)
        fs.crash()
        assert HardStateJournal.open(fs, DATA).load() in (synced, unsynced)


def test_without_the_sync_a_crash_does_take_back_a_vote(crash_fs: Callable[[int], CrashFileSystem]) -> None:
    fs = crash_fs(0)
    fs.make_durable_directory(DATA)
    journal = HardStateJournal.open(fs, DATA)
    fs.sync_works = False
    journal.append(states(1))
    journal.sync()
    fs.crash(keep=0.0)
    assert HardStateJournal.open(fs, DATA).load() == {}


def test_opening_compacts(tmp_path: Path) -> None:
    journal = HardStateJournal.open(OsFileSystem(), tmp_path)
    for term in range(1, 100):
        journal.append(states(term))
    journal.sync()
    journal.close()
    HardStateJournal.open(OsFileSystem(), tmp_path).close()
    assert (tmp_path / "hard-state").stat().st_size == 32 + 32 + 64


def test_a_forgotten_group_is_gone_after_a_restart_with_and_without_a_compaction(tmp_path: Path) -> None:
    journal = HardStateJournal.open(OsFileSystem(), tmp_path)
    journal.append(states(3))
    journal.append({}, forgotten=[GroupId(2)])
    journal.sync()
    journal.close()
    for _ in range(2):
        again = HardStateJournal.open(OsFileSystem(), tmp_path)
        assert set(again.load()) == {0, 1}
        again.append({GroupId(2): HardState(Term(1), BrokerId(9))})  # a new group of that number begins anew
        again.append({}, forgotten=[GroupId(2)])
        again.close()


def test_a_damaged_journal_says_in_one_line_what_to_do(tmp_path: Path) -> None:
    HardStateJournal.open(OsFileSystem(), tmp_path).close()
    (tmp_path / "hard-state").write_bytes(b"x" * 64)
    with pytest.raises(LogCorrupt, match=r"remove its data directory and let the broker join anew[^\n]*$"):
        HardStateJournal.open(OsFileSystem(), tmp_path)


def test_a_large_journal_is_compacted_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hard_state, "COMPACT_BYTES", 1000)
    journal = HardStateJournal.open(OsFileSystem(), tmp_path)
    for term in range(1, 200):
        journal.append(states(term))
        journal.sync()
        assert (tmp_path / "hard-state").stat().st_size < 1200
    journal.close()
    assert HardStateJournal.open(OsFileSystem(), tmp_path).load() == states(199)


@pytest.mark.parametrize("new", [HardState(Term(4), BrokerId(1)), HardState(Term(5), BrokerId(2)), HardState(Term(5))])
def test_a_second_vote_in_a_term_or_an_older_term_is_our_bug(tmp_path: Path, new: HardState) -> None:
    journal = HardStateJournal.open(OsFileSystem(), tmp_path)
    journal.append({GroupId(1): HardState(Term(5), BrokerId(1))})
    with pytest.raises(AssertionError):
        journal.append({GroupId(1): new})
