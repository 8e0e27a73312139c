"""The faulty disk is the operating system's until it is told otherwise, and then exactly as broken as it was told."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from region.faults.faulty_file_system import FaultyFileSystem
from region.faults.settings import FaultSettings
from region.faults.unsynced_file import UnsyncedFile
from region.log.filesystem import write_fully

Opened = tuple[FaultyFileSystem, int, Path]


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., Opened]:
    def open_file(**settings: object) -> Opened:
        fs = FaultyFileSystem()
        fs.apply(FaultSettings(**settings))  # type: ignore[arg-type]
        path = tmp_path / "file"
        return fs, fs.open(path, create=True), path

    return open_file


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    naps: list[float] = []
    monkeypatch.setattr("region.faults.faulty_file_system.time", SimpleNamespace(sleep=naps.append))
    return naps


def test_without_faults_a_write_is_in_the_file_at_once(opened: Callable[..., Opened]) -> None:
    fs, handle, path = opened()
    assert fs.pwritev(handle, [b"ab", memoryview(b"cd")], 0) == 4
    fs.truncate(handle, 3)
    assert path.read_bytes() == fs.pread(handle, 10, 0) == b"abc"


def test_what_was_not_synced_is_not_in_the_file(opened: Callable[..., Opened]) -> None:
    fs, handle, path = opened(volatile_writes=True)
    fs.pwritev(handle, [b"abcd"], 0)
    fs.truncate(handle, 3)
    assert (fs.pread(handle, 10, 0), fs.size(handle), path.read_bytes()) == (b"abc", 3, b"")
    fs.fdatasync(handle)
    assert path.read_bytes() == b"abc"


def test_a_second_handle_sees_what_was_not_synced(opened: Callable[..., Opened]) -> None:
    fs, handle, path = opened(volatile_writes=True)
    fs.pwritev(handle, [b"abcd"], 0)
    other = fs.open(path, write=False)
    assert (fs.pread(other, 2, 1), fs.size(other)) == (b"bc", 4)
    fs.close(other)
    assert path.read_bytes() == b""
    fs.close(handle)
    assert path.read_bytes() == b"abcd"


def test_a_sync_of_the_file_system_syncs_every_file(opened: Callable[..., Opened]) -> None:
    fs, handle, path = opened(volatile_writes=True)
    other = fs.open(path.with_name("other"), create=True)
    fs.pwritev(handle, [b"a"], 0)
    fs.pwritev(other, [b"b"], 0)
    fs.sync_file_system(handle)
    assert (path.read_bytes(), path.with_name("other").read_bytes()) == (b"a", b"b")


def test_a_lying_disk_says_that_it_synced(opened: Callable[..., Opened]) -> None:
    fs, handle, path = opened(volatile_writes=True, lying_syncs=True)
    fs.pwritev(handle, [b"a"], 0)
    fs.fdatasync(handle)
    fs.sync_file_system(handle)
    assert path.read_bytes() == b""


def test_reserved_room_comes_after_what_was_written_before(opened: Callable[..., Opened]) -> None:
    fs, handle, path = opened(volatile_writes=True)
    fs.pwritev(handle, [b"abcd"], 0)
    fs.truncate(handle, 2)
    fs.allocate(handle, 2, 4)
    assert (fs.size(handle), path.read_bytes()) == (6, b"ab" + bytes(4))


def test_a_full_disk_takes_what_fits_and_then_refuses(opened: Callable[..., Opened]) -> None:
    fs, handle, path = opened(free_bytes=3)
    with pytest.raises(OSError, match="short write: 3 of 4"):
        write_fully(fs, handle, [b"abcd"], 0)
    with pytest.raises(OSError, match="No space left") as raised:
        fs.pwritev(handle, [b"e"], 3)
    assert (raised.value.errno, path.read_bytes()) == (errno.ENOSPC, b"abc")


def test_writing_over_what_is_there_needs_no_room(opened: Callable[..., Opened]) -> None:
    fs, handle, _ = opened(free_bytes=2)
    fs.pwritev(handle, [b"ab"], 0)
    assert fs.pwritev(handle, [b"cd"], 0) == 2


def test_cutting_and_removing_give_room(opened: Callable[..., Opened]) -> None:
    fs, handle, path = opened(free_bytes=4)
    fs.pwritev(handle, [b"abcd"], 0)
    assert fs.free_bytes(path) == 0
    fs.truncate(handle, 1)
    assert fs.free_bytes(path) == 3
    fs.close(handle)
    fs.remove(path)
    assert fs.free_bytes(path.parent) == 4


def test_reserving_more_than_there_is_is_refused(opened: Callable[..., Opened]) -> None:
    fs, handle, _ = opened(free_bytes=4)
    with pytest.raises(OSError, match="No space left"):
        fs.allocate(handle, 0, 5)


def test_a_disk_that_got_room_again_takes_writes(opened: Callable[..., Opened]) -> None:
    fs, handle, path = opened(free_bytes=0)
    fs.apply(FaultSettings(generation=1))
    assert fs.pwritev(handle, [b"a"], 0) == 1
    assert fs.free_bytes(path) > 1


def test_a_new_generation_with_the_same_room_does_not_fill_it_up_again(opened: Callable[..., Opened]) -> None:
    fs, handle, path = opened(free_bytes=4)
    fs.pwritev(handle, [b"abc"], 0)
    fs.apply(FaultSettings(generation=1, free_bytes=4, sync_delay_ms=1))
    assert fs.free_bytes(path) == 1


def test_a_slow_disk_waits_before_each_write_and_sync(opened: Callable[..., Opened], slept: list[float]) -> None:
    fs, handle, path = opened(write_delay_ms=20, sync_delay_ms=300)
    fs.pwritev(handle, [b"a"], 0)
    fs.fdatasync(handle)
    fs.sync_file_system(handle)
    fs.fsync_directory(path.parent)
    assert slept == [0.02, 0.3, 0.3, 0.3]


changes = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 40), st.binary(max_size=20)),
        st.tuples(st.just("cut"), st.integers(0, 50), st.just(b"")),
        st.tuples(st.just("flush"), st.just(0), st.just(b"")),
        st.tuples(st.just("read"), st.integers(0, 60), st.binary(max_size=30)),
    ),
    max_size=25,
)


@given(steps=changes)
def test_unsynced_changes_read_as_if_they_were_in_the_file(steps: list[tuple[str, int, bytes]]) -> None:
    file, model = UnsyncedFile(), bytearray()
    with tempfile.TemporaryFile(buffering=0) as real:
        handle = real.fileno()
        for name, position, data in steps:
            if name == "write" and data:
                file.write(position, data)
                model.extend(bytes(max(0, position - len(model))))
                model[position : position + len(data)] = data
            elif name == "cut":
                file.cut(position)
                model = model[:position] + bytes(max(0, position - len(model)))
            elif name == "flush":
                file.flush(handle)
                assert os.pread(handle, 1000, 0) == model
            assert file.size(handle) == len(model)
            assert file.read(handle, len(data), position) == model[position : position + len(data)]
        file.flush(handle)
        assert os.pread(handle, 1000, 0) == model
