"""Damage of the file of the marks that no row shows: its head, its length, or that it is gone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from georelay.ids import BrokerId, GroupId
from region.log.accept_loss import accept_loss
from region.log.data_directory import DataDirectory
from region.log.errors import LogCorrupt
from region.log.flushed_marks import MARKS_NAME

if TYPE_CHECKING:
    from tests.unit.log.conftest import CrashFileSystem, EntryMaker

GROUP, OTHER, NEW = GroupId(7), GroupId(8), GroupId(9)
ROW_BYTES = 32


def opened(path: Path, fs: Any = None) -> DataDirectory:
    return DataDirectory.open(path, mesh_id="m", broker_id=BrokerId(1001), fs=fs)


def write_entries(directory: DataDirectory, make: EntryMaker, group: GroupId) -> None:
    log = directory.open_group(group)
    log.append([make.data(b"x" * 100) for _ in range(6)])
    log.sync()
    directory.marks.note({group: log.end_mark})
    log.close()


@pytest.fixture
def home(tmp_path: Path, entry_maker: Callable[[], EntryMaker]) -> Path:
    """A data directory with two groups of six entries, all of them promised."""
    path = tmp_path / "broker"
    directory = opened(path)
    for group in (GROUP, OTHER):
        write_entries(directory, entry_maker(), group)
    directory.marks.sync()
    directory.close()
    return path


def tear_last_entry(home: Path, group: GroupId) -> None:
    (path,) = (home / "groups" / str(group)).glob("*.log")
    content = path.read_bytes()
    path.write_bytes(content[: content.rindex(b"x") - 10])


def marks_bytes(home: Path) -> bytes:
    return (home / MARKS_NAME).read_bytes()


def spoil(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def spoiled(home: Path) -> None:
        (home / MARKS_NAME).write_bytes(change(marks_bytes(home)))

    return spoiled


DAMAGE: dict[str, Callable[[Path], None]] = {
    "first sector zeroed": spoil(lambda raw: bytes(512)[: len(raw)] + raw[512:]),
    "header flipped, row zeroed": spoil(lambda raw: bytes([raw[0] ^ 1]) + raw[1:32] + bytes(32) + raw[64:]),
    "half a row": spoil(lambda raw: raw[:40]),
    "half a row of zeros": spoil(lambda raw: raw[:32] + bytes(8)),
    "half a header": spoil(lambda raw: raw[:20]),
    "empty": spoil(lambda raw: b""),
    "gone": lambda home: (home / MARKS_NAME).unlink(),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_torn_end_is_refused_at_every_start_while_the_marks_are_damaged(home: Path, damage: str) -> None:
    tear_last_entry(home, GROUP)
    DAMAGE[damage](home)
    for _ in range(3):
        directory = opened(home)
        assert directory.marks.is_damaged
        directory.open_group(OTHER).close()
        with pytest.raises(LogCorrupt, match="is damaged at byte"):
            directory.open_group(GROUP)
        directory.close()


@pytest.mark.parametrize("damage", DAMAGE)
def test_whole_logs_get_their_marks_back_and_the_file_is_whole_again(home: Path, damage: str) -> None:
    before = marks_bytes(home)
    DAMAGE[damage](home)
    directory = opened(home)
    assert directory.marks.is_damaged
    for group in (GROUP, OTHER):
        log = directory.open_group(group)
        assert (log.last_index, log.lost) == (6, None)
        log.close()
    assert not directory.marks.is_damaged
    directory.close()
    after = marks_bytes(home)
    assert after[:ROW_BYTES] == before[:ROW_BYTES]
    rows = {after[at : at + ROW_BYTES] for at in range(ROW_BYTES, len(after), ROW_BYTES)} - {bytes(ROW_BYTES)}
    assert rows == {before[at : at + ROW_BYTES] for at in range(ROW_BYTES, len(before), ROW_BYTES)} - {bytes(ROW_BYTES)}
    directory = opened(home)
    assert not directory.marks.is_damaged
    directory.close()


@pytest.mark.parametrize("damage", DAMAGE)
def test_the_only_replica_is_given_up_in_part_as_with_a_damaged_row(home: Path, damage: str) -> None:
    tear_last_entry(home, GROUP)
    DAMAGE[damage](home)
    directory = opened(home)
    assert "ends at index 5" in accept_loss(directory, GROUP)
    directory.close()
    directory = opened(home)
    for group in (GROUP, OTHER):
        directory.open_group(group).close()
    assert not directory.marks.is_damaged
    directory.close()


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_directory_without_groups_has_promised_nothing(tmp_path: Path, damage: str) -> None:
    opened(tmp_path).close()
    before = marks_bytes(tmp_path)
    DAMAGE[damage](tmp_path)
    directory = opened(tmp_path)
    assert not directory.marks.is_damaged
    directory.close()
    assert marks_bytes(tmp_path)[:ROW_BYTES] == before


def test_a_new_group_of_a_new_directory_may_be_torn_by_a_power_cut_before_any_mark_is_synced(
    crash_fs: Callable[[int], CrashFileSystem], entry_maker: Callable[[], EntryMaker]
) -> None:
    home = Path("/data/broker")
    for seed in range(20):
        fs = crash_fs(seed)
        fs.make_durable_directory(home.parent)
        directory = opened(home, fs)
        write_entries(directory, entry_maker(), NEW)  # its mark is not synced
        make = entry_maker()
        log = directory.open_group(OTHER)
        log.append([make.data(b"x" * 2_000)])  # nor is this
        fs.crash(keep=0.5)
        directory = opened(home, fs)
        assert not directory.marks.is_damaged
        assert directory.open_group(NEW).last_index == 6
        assert directory.open_group(OTHER).lost is None


def make_format_1(home: Path) -> None:
    """Make the directory one of before there were marks."""
    (home / MARKS_NAME).unlink()
    about = json.loads((home / "FORMAT").read_text())
    (home / "FORMAT").write_text(json.dumps({name: about[name] for name in ("mesh", "broker", "disk")} | {"format": 1}))


def test_a_directory_of_format_1_has_no_marks_and_its_torn_ends_are_cut(home: Path) -> None:
    tear_last_entry(home, GROUP)
    make_format_1(home)
    directory = opened(home)
    assert not directory.marks.is_damaged
    log = directory.open_group(GROUP)
    assert (log.last_index, log.lost) == (5, None)
    directory.close()


def test_an_upgrade_that_a_crash_ended_is_done_again(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tear_last_entry(home, GROUP)
    make_format_1(home)

    class Killed(BaseException):
        pass

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:  # before FORMAT is written
        patched.setattr("region.log.data_directory._write_format", killed)
        with pytest.raises(Killed):
            opened(home)
    copy = tmp_path / "copy"
    shutil.copytree(home, copy)
    for path in (home, copy):
        directory = opened(path)
        assert not directory.marks.is_damaged
        assert directory.open_group(GROUP).last_index == 5
        directory.close()
        assert json.loads((path / "FORMAT").read_text())["format"] == 2


def test_the_mark_of_a_log_that_is_longer_is_durable_once_it_is_open(
    crash_fs: Callable[[int], CrashFileSystem], entry_maker: Callable[[], EntryMaker]
) -> None:
    home, fs, make = Path("/data/broker"), crash_fs(0), entry_maker()
    fs.make_durable_directory(Path("/data"))
    directory = opened(home, fs)
    write_entries(directory, make, GROUP)  # its mark is not synced
    fs.crash(keep=0.0)
    directory = opened(home, fs)
    log = directory.open_group(GROUP)
    assert log.last_index == 6
    fs.crash(keep=0.0)
    assert opened(home, fs).marks.get(GROUP) == log.end_mark


def test_marks_that_a_killed_process_did_not_sync_are_durable_once_they_are_read(
    crash_fs: Callable[[int], CrashFileSystem], entry_maker: Callable[[], EntryMaker]
) -> None:
    home, fs = Path("/data/broker"), crash_fs(0)
    fs.make_durable_directory(Path("/data"))
    directory = opened(home, fs)
    write_entries(directory, entry_maker(), GROUP)  # its mark is not synced
    noted = directory.marks.get(GROUP)
    opened(home, fs).open_group(GROUP)
    fs.crash(keep=0.0)
    assert opened(home, fs).marks.get(GROUP) == noted
