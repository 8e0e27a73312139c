"""A mark that is damaged itself: what the log had promised is not known any more, and is never taken for nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from georelay.ids import BrokerId, GroupId
from region.log.data_directory import DataDirectory
from region.log.errors import LogCorrupt
from region.log.flushed_marks import MARKS_NAME

if TYPE_CHECKING:
    from tests.unit.log.conftest import EntryMaker

GROUP, OTHER = GroupId(7), GroupId(8)


def opened(path: Path) -> DataDirectory:
    return DataDirectory.open(path, mesh_id="m", broker_id=BrokerId(1001))


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@pytest.fixture
def home(tmp_path: Path, entry_maker: Callable[[], EntryMaker]) -> Path:
    """A data directory with two groups of six entries, all of them promised; the mark of GROUP is in row 1."""
    path = tmp_path / "broker"
    directory = opened(path)
    for group in (GROUP, OTHER):
        make = entry_maker()
        log = directory.open_group(group)
        log.append([make.data(b"x" * 100) for _ in range(6)])
        log.sync()
        directory.marks.note({group: log.end_mark})
        directory.marks.sync()
        log.close()
    directory.close()
    return path


def segment(home: Path, group: GroupId) -> Path:
    (path,) = (home / "groups" / str(group)).glob("*.log")
    return path


def damage_last_entry(home: Path, group: GroupId) -> None:
    path = segment(home, group)
    content = path.read_bytes()
    flip(path, content.rindex(b"x"))


def tear_last_entry(home: Path, group: GroupId) -> None:
    """Cut the segment in the middle of its last entry, as a power cut does."""
    path = segment(home, group)
    content = path.read_bytes()
    path.write_bytes(content[: content.rindex(b"x") - 10])


def damage_mark(home: Path) -> None:
    flip(home / MARKS_NAME, 32 + 8)


def test_a_known_loss_is_not_forgotten_when_its_mark_becomes_unreadable(home: Path) -> None:
    damage_last_entry(home, GROUP)
    directory = opened(home)
    log = directory.open_group(GROUP)
    assert log.lost is not None
    log.close()
    directory.close()
    damage_mark(home)
    for _ in range(2):  # refusing it changes nothing
        directory = opened(home)
        with pytest.raises(LogCorrupt, match="how far it had reached is not known"):
            directory.open_group(GROUP)
        directory.close()


def test_a_bad_end_is_no_torn_tail_when_a_mark_was_damaged(home: Path) -> None:
    tear_last_entry(home, GROUP)
    damage_mark(home)
    for _ in range(2):  # nor does a start that gets no further than the other group make it one
        directory = opened(home)
        directory.open_group(OTHER).close()
        with pytest.raises(LogCorrupt, match="is damaged at byte"):
            directory.open_group(GROUP)
        directory.close()


def test_a_whole_log_gets_its_damaged_mark_back(home: Path) -> None:
    damage_mark(home)
    directory = opened(home)
    assert directory.marks.is_damaged
    for group in (OTHER, GROUP):
        assert directory.marks.is_damaged
        log = directory.open_group(group)
        assert (log.last_index, log.lost) == (6, None)
        log.close()
    assert not directory.marks.is_damaged
    directory.close()
    directory = opened(home)
    assert not directory.marks.is_damaged
    assert directory.marks.get(GROUP) is not None
    directory.close()


def test_a_new_group_may_be_torn_when_no_mark_is_damaged(home: Path, entry_maker: Callable[[], EntryMaker]) -> None:
    directory = opened(home)
    make = entry_maker()
    log = directory.open_group(GroupId(9))
    log.append([make.data(b"x" * 100) for _ in range(2)])
    log.sync()
    log.close()
    directory.close()
    tear_last_entry(home, GroupId(9))
    directory = opened(home)
    log = directory.open_group(GroupId(9))
    assert (log.last_index, log.lost) == (1, None)
    log.close()
    directory.close()
