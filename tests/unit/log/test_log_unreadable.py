"""Bytes that a disk does not give back: damage to whoever reads them, and no reason to cut or remove anything."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from georelay.errors import StorageFailed
from georelay.ids import BrokerId, GroupId, RaftIndex
from region.log.data_directory import DataDirectory
from region.log.entry import Entry
from region.log.errors import LogCorrupt, LogUnreadable, OpenNotDurable
from region.log.filesystem import UNREADABLE_ERRNOS
from region.log.flusher import Flusher, GroupWrite
from region.log.group_folder import begin_install
from region.log.group_log import GroupLog
from region.log.manifest import Manifest
from region.log.scrubber import Scrubber

if TYPE_CHECKING:
    from tests.unit.log.conftest import EntryMaker, RecordingFileSystem

GROUP = GroupId(1)
ALL = 10**9


def manifest_of(entry: Entry) -> Manifest:
    return Manifest(
        index=entry.index, term=entry.term, chain=entry.chain, stream_part=entry.stream_part, state=b"state" * 20
    )


class Replica:
    """Sixteen entries in four segments of one data directory; manifests at 4 and 10."""

    def __init__(self, fs: RecordingFileSystem, make: EntryMaker, path: Path, *, start: int = 1) -> None:
        self.fs, self.path = fs, path
        self.open_directory()
        self.log = self.directory.open_group(GROUP)
        self.log.limit_segments(800)
        self.entries = [make.data(bytes([n + 1]) * 60) for n in range(16)]
        self.write(entries=self.entries)
        for n in (4, 10):
            self.write(manifest=manifest_of(self.entries[n - 1]))
        if start > 1:
            self.write(advance_start=RaftIndex(start))
        self.folder = self.directory.group_path(GROUP)

    def open_directory(self) -> None:
        self.directory = DataDirectory.open(self.path, mesh_id="test", broker_id=BrokerId(1001), fs=self.fs)
        journal = self.directory.open_hard_states()
        self.flusher = Flusher(
            journal, post=lambda _: None, on_failure=lambda _: None, marks=self.directory.marks, sync_all=None
        )

    def write(self, **fields: object) -> None:
        self.flusher.run_cycle([GroupWrite(group_id=GROUP, log=self.log, token=0, **fields)])  # type: ignore[arg-type]

    def end(self) -> None:
        self.log.close()
        self.directory.close()

    def reopen(self) -> GroupLog:
        self.open_directory()
        try:
            self.log = self.directory.open_group(GROUP)
        finally:
            self.directory.close()
        return self.log

    def segments(self) -> list[Path]:
        return sorted(self.folder.glob("*.log"))

    def content(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.folder.iterdir() if path.suffix != ".index"}

    def is_whole(self) -> bool:
        found = self.log.read_entries(RaftIndex(1), RaftIndex(17), ALL)
        return [entry.frame for entry in found] == [entry.frame for entry in self.entries]

    def refuse(self, kind: str, is_meant: Callable[[Path], bool], number: int = errno.EIO) -> None:
        """Let every operation of a kind on such files fail."""
        self.fs.fault = lambda done, path: OSError(number, "refused") if done == kind and is_meant(path) else None

    def works(self) -> None:
        self.fs.fault = lambda _kind, _path: None


@pytest.fixture
def replica(recording_fs: RecordingFileSystem, make: EntryMaker, tmp_path: Path) -> Replica:
    return Replica(recording_fs, make, tmp_path / "data")


READS: dict[str, Callable[[GroupLog], object]] = {
    "entries": lambda log: log.read_entries(RaftIndex(1), RaftIndex(3), ALL),
    "bytes": lambda log: log.read_segment_bytes(1, 0, 100),
    "verify": lambda log: log.verify_segment(1),
}


@pytest.mark.parametrize("number", sorted(UNREADABLE_ERRNOS))
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_segment_that_the_disk_does_not_give_back_is_damaged(
    replica: Replica, read: Callable[[GroupLog], object], number: int
) -> None:
    first = replica.segments()[0]
    replica.refuse("read", lambda path: path == first, number)
    with pytest.raises(LogUnreadable, match=f"{first.name} cannot be read at byte 0"):
        read(replica.log)
    assert replica.log.corrupt_segments() == [1]
    replica.works()
    with pytest.raises(LogCorrupt):
        replica.log.read_entries(RaftIndex(1), RaftIndex(3), ALL)  # it is not read again until it is replaced
    assert len(replica.log.read_entries(RaftIndex(9), RaftIndex(10), ALL)) == 1


def test_an_unreadable_segment_is_replaced_without_being_read(replica: Replica) -> None:
    first = replica.segments()[0]
    replica.refuse("read", lambda path: path == first)
    with pytest.raises(LogUnreadable):
        replica.log.verify_segment(1)
    info = replica.log.sealed_segments()[0]
    staged = replica.log.stage_segment(1)
    staged.write(0, b"".join(entry.frame for entry in replica.entries[: info.last_index]))
    staged.verify(info.previous_chain)
    replica.write(replace=[staged])
    replica.works()  # the bad sectors belonged to the old file
    assert replica.log.corrupt_segments() == []
    assert replica.is_whole()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM])
def test_what_else_the_operating_system_refuses_marks_nothing(replica: Replica, number: int) -> None:
    replica.refuse("read", lambda _: True, number)
    with pytest.raises(StorageFailed):
        replica.log.read_entries(RaftIndex(1), RaftIndex(3), ALL)
    assert replica.log.corrupt_segments() == []


def test_the_scrubber_finds_a_segment_that_the_disk_does_not_give_back(replica: Replica) -> None:
    second = replica.segments()[1]
    replica.refuse("read", lambda path: path == second)
    found: list[int] = []
    scrubber = Scrubber(lambda: {GROUP: replica.log}, on_corrupt=lambda _group, first, _error: found.append(first))
    for _ in range(20):
        scrubber.step()
    assert found == [int(second.stem)] == replica.log.corrupt_segments()


def test_a_manifest_that_the_disk_does_not_give_back_counts_as_missing(replica: Replica) -> None:
    boundary = replica.log.sealed_segments()[0].last_index
    replica.write(manifest=manifest_of(replica.entries[11]))
    assert replica.log.read_manifest(boundary) is not None
    replica.refuse("read", lambda path: path.suffix == ".manifest")
    assert replica.log.read_manifest(boundary) is None
    assert replica.log.verify_manifests() == [boundary, 12]
    replica.write(advance_start=RaftIndex(12))  # as far as a readable manifest allows; and the broker goes on
    assert replica.log.first_index == 1


# -- opening ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [-1, -2], ids=["last segment", "sealed above the newest manifest"])
def test_a_log_that_is_not_given_back_is_left_as_it_is_and_opens_once_it_is(replica: Replica, at: int) -> None:
    bad = replica.segments()[at]
    replica.end()
    before = replica.content()
    replica.refuse("read", lambda path: path == bad)
    for _ in range(2):
        with pytest.raises(LogUnreadable):
            replica.reopen().read_entries(RaftIndex(11), RaftIndex(17), ALL)  # as whoever opens it does
        assert replica.content() == before
    replica.works()
    log = replica.reopen()
    assert log.lost is None and not log.is_damaged
    assert replica.is_whole()


def test_a_sealed_segment_below_the_newest_manifest_is_only_marked(replica: Replica) -> None:
    bad = replica.segments()[0]
    replica.end()
    replica.refuse("read", lambda path: path == bad)
    log = replica.reopen()
    assert log.corrupt_segments() == [1] and log.lost is None and log.last_index == 16


def test_an_index_that_is_not_given_back_is_made_again(replica: Replica) -> None:
    replica.end()
    replica.refuse("read", lambda path: path.suffix == ".index")
    log = replica.reopen()
    assert replica.is_whole() and log.lost is None


def test_a_log_whose_manifests_are_not_given_back_is_not_put_aside(
    recording_fs: RecordingFileSystem, make: EntryMaker, tmp_path: Path
) -> None:
    replica = Replica(recording_fs, make, tmp_path / "data", start=5)
    assert replica.log.first_index == 5
    replica.end()
    before = replica.content()
    replica.refuse("read", lambda path: path.suffix == ".manifest")
    with pytest.raises(LogUnreadable):
        replica.reopen()
    assert replica.content() == before
    replica.works()
    log = replica.reopen()
    assert (log.first_index, log.last_index, log.lost) == (5, 16, None)


def test_an_installation_whose_manifest_is_not_given_back_is_not_undone(replica: Replica) -> None:
    replica.end()
    ahead = replace(manifest_of(replica.entries[-1]), index=RaftIndex(20))
    begin_install(replica.fs, replica.folder, ahead)
    before = replica.content()
    replica.refuse("read", lambda path: path.suffix == ".install")
    with pytest.raises(LogUnreadable):
        replica.reopen()
    assert replica.content() == before
    replica.works()
    assert replica.reopen().first_index == 21


@pytest.mark.parametrize("kind", ["sync", "write", "sync_directory"])
def test_a_write_or_sync_that_fails_while_a_log_is_opened_ends_the_data_directory(replica: Replica, kind: str) -> None:
    (replica.folder / f"{1:020d}.index").unlink()  # it is written again
    replica.end()
    replica.refuse(kind, lambda path: replica.folder in (path, path.parent))
    with pytest.raises(OpenNotDurable, match="a write or sync failed"):
        replica.reopen()


def test_no_room_for_what_an_opened_log_writes_is_no_failed_write(replica: Replica) -> None:
    (replica.folder / f"{1:020d}.index").unlink()
    replica.end()
    replica.refuse("write", lambda path: path.parent == replica.folder, errno.ENOSPC)
    with pytest.raises(Exception, match=r"cannot be used: .*refused") as found:
        replica.reopen()
    assert not isinstance(found.value, StorageFailed | LogCorrupt)
