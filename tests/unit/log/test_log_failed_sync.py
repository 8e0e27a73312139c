"""What recovery does with bytes that a failed sync may have left in memory only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from region.log.entry import Entry
from region.log.flushed_marks import FlushedMark
from region.log.group_log import GroupLog

if TYPE_CHECKING:
    from tests.unit.log.conftest import CrashFileSystem, EntryMaker

FOLDER = Path("/data/groups/1")
SEGMENT = FOLDER / f"{1:020d}.log"


@pytest.fixture
def entries(make: EntryMaker) -> list[Entry]:
    return [make.data(bytes(range(1, 200)) * (n + 1), records=n + 1) for n in range(4)]


def mark_at(entry: Entry) -> FlushedMark:
    return FlushedMark(entry.index, entry.term, entry.chain)


def reopened(fs: CrashFileSystem, entries: Sequence[Entry], mark: FlushedMark | None) -> list[tuple[int, bytes] | str]:
    """Open a log of these entries; return what is written to its segment, and its syncs, in order."""
    fs.make_durable_directory(FOLDER)
    fs.put(SEGMENT, b"".join(entry.frame for entry in entries))
    done: list[tuple[int, bytes] | str] = []
    write, sync = fs.pwritev, fs.fdatasync

    def pwritev(handle: int, buffers: Sequence[Any], position: int) -> int:
        done.append((position, b"".join(buffers)))
        return write(handle, buffers, position)

    def fdatasync(handle: int) -> None:
        done.append("sync")
        sync(handle)

    fs.pwritev, fs.fdatasync = pwritev, fdatasync  # type: ignore[method-assign]
    assert GroupLog.open(FOLDER, fs, mark=mark).last_index == entries[-1].index
    return done


def test_entries_above_the_mark_are_written_again_before_they_are_synced(
    crash_fs: Callable[[int], CrashFileSystem], entries: list[Entry]
) -> None:
    done = reopened(crash_fs(0), entries, mark_at(entries[1]))
    content = b"".join(entry.frame for entry in entries)
    rewritten = [row for row in done if isinstance(row, tuple)]
    assert done[-1] == "sync"
    assert rewritten[0][0] <= entries[0].size + entries[1].size
    assert content[rewritten[0][0] :] == b"".join(data for _, data in rewritten)


def test_entries_without_a_mark_are_all_written_again(
    crash_fs: Callable[[int], CrashFileSystem], entries: list[Entry]
) -> None:
    done = reopened(crash_fs(0), entries, None)
    assert done == [(0, b"".join(entry.frame for entry in entries)), "sync"]


def test_entries_below_the_mark_are_left_alone(
    crash_fs: Callable[[int], CrashFileSystem], entries: list[Entry]
) -> None:
    assert reopened(crash_fs(0), entries, mark_at(entries[-1])) == ["sync"]
