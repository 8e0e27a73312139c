"""Whose data directory it is, and every mistake a user can make with one."""

from __future__ import annotations

import errno
import json
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from georelay.errors import DataDirectoryError
from georelay.ids import BrokerId, GroupId
from region.log.data_directory import DataDirectory, held_while_idle
from region.log.filesystem import OsFileSystem

if TYPE_CHECKING:
    from tests.unit.log.conftest import EntryMaker, RecordingFileSystem

BROKER = BrokerId(1001)


def open_directory(path: Path, mesh_id: str = "mesh-a", broker_id: BrokerId = BROKER) -> DataDirectory:
    return DataDirectory.open(path, mesh_id=mesh_id, broker_id=broker_id)


def test_a_new_directory_is_made_with_its_format(tmp_path: Path) -> None:
    directory = open_directory(tmp_path / "a" / "b")
    about = json.loads((tmp_path / "a" / "b" / "FORMAT").read_text())
    about.pop("crc")
    assert about == {"format": 2, "mesh": "mesh-a", "broker": 1001, "disk": directory.disk_id}
    directory.close()


def test_the_disk_id_stays(tmp_path: Path) -> None:
    first = open_directory(tmp_path)
    first.close()
    again = open_directory(tmp_path)
    assert again.disk_id == first.disk_id
    again.close()


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    first = open_directory(tmp_path)
    with pytest.raises(DataDirectoryError, match="in use by another process"):
        open_directory(tmp_path)
    first.close()


def test_an_idle_directory_is_held_for_a_moment_and_one_in_use_is_not(tmp_path: Path) -> None:
    used = open_directory(tmp_path)
    with held_while_idle(tmp_path) as is_idle:
        assert not is_idle
    used.close()
    before = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
    with held_while_idle(tmp_path) as is_idle:
        assert is_idle
        with pytest.raises(DataDirectoryError, match="in use by another process"):
            open_directory(tmp_path)
    assert sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) == before
    open_directory(tmp_path).close()


def test_a_directory_that_nobody_ever_opened_is_one_line_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(DataDirectoryError, match="absent has no LOCK file: it is lost, or no broker ever used it"):
        held_while_idle(tmp_path / "absent").__enter__()
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_the_disk_does_not_give_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_directory(tmp_path).close()
    fs = OsFileSystem()

    def refuse(*_: object, **__: object) -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(fs, "open", refuse)
    with pytest.raises(DataDirectoryError, match=r"cannot be used: .*Read-only file system"):
        held_while_idle(tmp_path, fs).__enter__()


def test_a_broker_that_starts_waits_for_who_holds_its_directory_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_directory(tmp_path).close()
    polls = []
    with ExitStack() as held:
        assert held.enter_context(held_while_idle(tmp_path))

        def sleep(seconds: float) -> None:
            polls.append(seconds)
            if len(polls) == 3:
                held.close()

        monkeypatch.setattr(time, "sleep", sleep)
        waiting = OsFileSystem(lock_wait_s=60)
        DataDirectory.open(tmp_path, mesh_id="mesh-a", broker_id=BROKER, fs=waiting).close()
    assert len(polls) == 3


def test_a_broker_that_starts_does_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_directory(tmp_path)
    now_s = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])

    def sleep(seconds: float) -> None:
        now_s[0] += seconds

    monkeypatch.setattr(time, "sleep", sleep)
    with pytest.raises(DataDirectoryError, match="in use by another process"):
        DataDirectory.open(tmp_path, mesh_id="mesh-a", broker_id=BROKER, fs=OsFileSystem(lock_wait_s=10))
    assert 10 <= now_s[0] < 11
    first.close()


def test_the_directory_of_another_mesh_or_broker_is_refused_and_unlocked(tmp_path: Path) -> None:
    open_directory(tmp_path).close()
    with pytest.raises(DataDirectoryError, match="belongs to mesh 'mesh-a', not to 'mesh-b'"):
        open_directory(tmp_path, mesh_id="mesh-b")
    with pytest.raises(DataDirectoryError, match="belongs to broker 1001, not to broker 2001"):
        open_directory(tmp_path, broker_id=BrokerId(2001))
    open_directory(tmp_path).close()


@pytest.mark.parametrize("content", ['{"format":4,"mesh":"mesh-a","broker":1001,"disk":"d"}'])
def test_an_unknown_format_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "FORMAT").write_text(content)
    with pytest.raises(DataDirectoryError, match="has format 4, this broker knows 3"):
        open_directory(tmp_path)


@pytest.mark.parametrize("content", ["", "nonsense", "[]", '{"format":1}', "\x00"])
def test_an_unreadable_format_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "FORMAT").write_text(content)
    with pytest.raises(DataDirectoryError, match="cannot be read"):
        open_directory(tmp_path)


def test_a_directory_of_format_1_is_upgraded_and_keeps_its_disk_id(tmp_path: Path) -> None:
    (tmp_path / "FORMAT").write_text('{"format":1,"mesh":"mesh-a","broker":1001,"disk":"d"}')
    directory = open_directory(tmp_path)
    assert directory.disk_id == "d" and json.loads((tmp_path / "FORMAT").read_text())["format"] == 2
    directory.close()
    open_directory(tmp_path).close()


def test_every_flipped_bit_of_the_format_file_is_refused_or_changes_nothing(tmp_path: Path) -> None:
    first = open_directory(tmp_path)
    first.close()
    good, found = (tmp_path / "FORMAT").read_bytes(), set[str]()
    for bit in range(8 * len(good)):
        raw = bytearray(good)
        raw[bit // 8] ^= 1 << bit % 8
        (tmp_path / "FORMAT").write_bytes(raw)
        with suppress(DataDirectoryError):
            directory = open_directory(tmp_path)
            found.add(directory.disk_id)
            directory.close()
    assert found <= {first.disk_id}


def test_a_file_is_not_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataDirectoryError, match="is not a directory"):
        open_directory(tmp_path / "file")
    with pytest.raises(DataDirectoryError, match="cannot be used"):
        open_directory(tmp_path / "file" / "below")


def test_a_directory_with_foreign_files_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("x")
    with pytest.raises(DataDirectoryError, match="not empty and has no FORMAT"):
        open_directory(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path, recording_fs: RecordingFileSystem) -> None:
    recording_fs.fault = lambda kind, path: (
        PermissionError(errno.EACCES, "Permission denied") if kind == "create" else None
    )
    with pytest.raises(DataDirectoryError, match="Permission denied"):
        DataDirectory.open(tmp_path, mesh_id="m", broker_id=BROKER, fs=recording_fs)


def test_a_directory_half_made_at_a_crash_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "LOCK").touch()
    (tmp_path / "FORMAT.tmp").write_text("{")
    (tmp_path / "groups").mkdir()
    open_directory(tmp_path).close()


def test_groups_appear_with_their_first_append_and_can_be_removed(tmp_path: Path, make: EntryMaker) -> None:
    directory = open_directory(tmp_path)
    logs = {n: directory.open_group(GroupId(n)) for n in (10, 2, 3)}
    assert directory.group_ids() == []
    for n in (10, 2):
        make.rewind(None)
        logs[n].append([make.data()])
        logs[n].sync()
        logs[n].close()
    assert directory.group_ids() == [2, 10]
    directory.remove_group(GroupId(2))
    directory.remove_group(GroupId(3))
    assert directory.group_ids() == [10] and list((tmp_path / "trash").iterdir()) == []
    directory.close()


def test_a_group_that_could_not_be_used_is_kept_aside_in_the_place_of_an_older_one(
    tmp_path: Path, make: EntryMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("region.log.data_directory.DAMAGED_GROUPS_MAX", 1)
    directory = open_directory(tmp_path)
    for n, kept in ((2, [2]), (2, [2]), (3, [2])):  # there is room for one group
        make.rewind(None)
        log = directory.open_group(GroupId(n))
        log.append([make.data()])
        log.sync()
        log.close()
        directory.remove_group(GroupId(n), keep=True)
        assert directory.group_ids() == [] and directory.marks.get(GroupId(n)) is None
        assert [int(path.name) for path in (tmp_path / "damaged").iterdir()] == kept
    directory.close()
    open_directory(tmp_path).close()
    assert [path.suffix for path in (tmp_path / "damaged" / "2").iterdir()] == [".log"]


def test_trash_left_by_a_crash_is_emptied_at_the_next_open(tmp_path: Path) -> None:
    open_directory(tmp_path).close()
    (tmp_path / "trash" / "7-abc").mkdir()
    (tmp_path / "trash" / "7-abc" / "x.log").touch()
    open_directory(tmp_path).close()
    assert list((tmp_path / "trash").iterdir()) == []


def test_a_journal_missing_beside_groups_is_refused(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    directory.open_hard_states().close()
    (tmp_path / "groups" / "1").mkdir()
    (tmp_path / "hard-state").unlink()
    with pytest.raises(DataDirectoryError, match="votes of this broker are lost"):
        directory.open_hard_states()
    directory.close()
