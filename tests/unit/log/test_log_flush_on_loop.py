"""Flush cycles that the event loop does itself: only what waits for one small sync, and as durable as in the thread."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from georelay.ids import BrokerId, GroupId, RaftIndex, Term
from region.log import flusher as flusher_module
from region.log.entry_journal import ROW_BYTES_MAX
from region.log.flusher import GroupWrite
from region.log.hard_state import HardState
from tests.unit.log.test_log_entry_journal import DATA, Broker

if TYPE_CHECKING:
    from tests.unit.log.conftest import CrashFileSystem, EntryMaker, RecordingFileSystem


@pytest.fixture
def broker(tmp_path: Path, recording_fs: RecordingFileSystem, entry_maker: Callable[[], EntryMaker]) -> Broker:
    broker = Broker(recording_fs, entry_maker, tmp_path)
    quick(broker)
    return broker


def quick(broker: Broker) -> None:
    broker.flusher._place.is_on_loop = True


def test_appends_of_many_logs_are_done_there_until_the_disk_is_slow(broker: Broker) -> None:
    assert broker.flusher.fits_on_loop([broker.write(group) for group in range(8)])
    broker.flusher._place.is_on_loop = False
    assert not broker.flusher.is_quick and not broker.flusher.fits_on_loop([broker.write(1)])


@pytest.mark.parametrize(
    "more",
    [
        {"hard_state": HardState(Term(2), BrokerId(1))},
        {"truncate_from": RaftIndex(1)},
        {"seal": True},
        {"advance_start": RaftIndex(2)},
        {"forget": True},
    ],
)
def test_what_does_more_than_append_is_the_threads(broker: Broker, more: dict[str, Any]) -> None:
    assert not broker.flusher.fits_on_loop([broker.write(1), broker.write(2, **more)])


def test_the_end_of_a_log_and_large_writes_are_the_threads(broker: Broker) -> None:
    assert not broker.flusher.fits_on_loop([GroupWrite(group_id=GroupId(1), log=None, token=0)])
    half = ROW_BYTES_MAX // 2
    assert not broker.flusher.fits_on_loop([broker.write(1, size=half), broker.write(2, size=half)])


def test_without_a_journal_to_take_them_writes_are_the_threads(broker: Broker) -> None:
    """Each log would be synced itself."""
    broker.directory.entries.is_wanted = lambda: False
    assert not broker.flusher.is_quick


def test_a_journal_whose_other_file_is_not_free_yet_takes_nothing_that_would_turn_it_over(
    tmp_path: Path, recording_fs: RecordingFileSystem, entry_maker: Callable[[], EntryMaker]
) -> None:
    broker = Broker(recording_fs, entry_maker, tmp_path, size_bytes=8 << 10)
    broker.directory.entries.run_aside = lambda _work: Future()  # never done
    while broker.directory.entries._syncing is None:
        broker.append(1, size=1_000)
    broker.append_often(1, 30)
    quick(broker)
    assert not broker.flusher.fits_on_loop([broker.write(1, size=1_500)])


def test_a_record_is_durable_before_its_token_is_returned(
    crash_fs: Callable[[int], CrashFileSystem], entry_maker: Callable[[], EntryMaker]
) -> None:
    fs = crash_fs(1)
    fs.make_durable_directory(DATA.parent)
    broker = Broker(fs, entry_maker)
    for _ in range(3):
        assert broker.flusher.flush_on_loop([broker.write(1), broker.write(2)]) == [0, 0]
    assert broker.flusher.stats.cycles_on_loop == 3
    fs.crash()
    broker.logs.clear()
    broker.kill()
    assert broker.holds(1) and broker.holds(2)


def test_a_failed_sync_there_is_told_once_and_no_token_follows(broker: Broker) -> None:
    broker.fs.fault = lambda kind, _path: OSError(errno.EIO, "I/O error") if kind == "sync" else None
    assert broker.flusher.flush_on_loop([broker.write(1)]) == []
    broker.fs.fault = None
    assert broker.flusher.flush_on_loop([broker.write(1)]) == []
    assert broker.flusher.failed and len(broker.failures) == 1


def test_marks_of_the_loops_cycles_are_synced_though_the_thread_sleeps(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flusher_module, "MARKS_SYNC_MS", 1)
    synced = threading.Event()
    monkeypatch.setattr(broker.directory.marks, "sync", synced.set)
    posted: list[object] = []
    monkeypatch.setattr(broker.flusher, "_post", posted.extend)
    broker.flusher.start()
    for _ in range(2):
        synced.clear()
        broker.flusher.flush_on_loop([broker.write(1)])
        assert synced.wait(10)
    broker.flusher.stop()
    assert posted == []


def test_no_token_follows_marks_that_fail_beside_the_loop(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.append(1)
    note = broker.directory.marks.note

    def fail_beside(marks: Any) -> None:
        note(marks)
        broker.fs.fault = lambda kind, _path: OSError(errno.EIO, "I/O error") if kind == "sync" else None
        broker.flusher.sync_marks()

    monkeypatch.setattr(broker.directory.marks, "note", fail_beside)
    assert broker.flusher.flush_on_loop([broker.write(1)]) == []
    assert len(broker.failures) == 1
