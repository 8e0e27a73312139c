"""Room left on the disk: what it forbids, and that a level does not flutter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from georelay.errors import DiskFull, Outcome, Retry
from region.log.disk_space import DiskLevel, DiskSpace, level_of
from region.log.filesystem import OsFileSystem

if TYPE_CHECKING:
    from tests.unit.log.conftest import CrashFileSystem


@pytest.mark.parametrize(
    ("free_bytes", "before", "level"),
    [
        (1000, DiskLevel.OK, DiskLevel.OK),
        (999, DiskLevel.OK, DiskLevel.LOW),
        (250, DiskLevel.OK, DiskLevel.LOW),
        (249, DiskLevel.OK, DiskLevel.FULL),
        (249, DiskLevel.LOW, DiskLevel.FULL),
        (300, DiskLevel.FULL, DiskLevel.FULL),
        (313, DiskLevel.FULL, DiskLevel.LOW),
        (1249, DiskLevel.LOW, DiskLevel.LOW),
        (1250, DiskLevel.LOW, DiskLevel.OK),
        (1249, DiskLevel.FULL, DiskLevel.LOW),
        (1250, DiskLevel.FULL, DiskLevel.OK),
    ],
)
def test_a_level_is_left_upwards_only_with_more_room(free_bytes: int, before: DiskLevel, level: DiskLevel) -> None:
    assert level_of(free_bytes, 1000, before) is level


def test_publishes_are_refused_below_the_reserve_and_taken_again_above_it(
    crash_fs: Callable[[int], CrashFileSystem],
) -> None:
    fs = crash_fs(0)
    fs.free = 2000
    space = DiskSpace(fs, Path("/data"), reserve_bytes=1000)
    space.admit()
    fs.free = 900
    space.admit()  # not measured yet
    assert space.check() is DiskLevel.LOW and not space.writable
    with pytest.raises(DiskFull, match="has 900 bytes left, 1000 are its reserve"):
        space.admit()
    fs.free = 2000
    space.check()
    space.admit()


def test_a_full_disk_may_be_tried_again_and_nothing_was_stored() -> None:
    assert (DiskFull.retry, DiskFull.outcome, DiskFull.http_status) == (Retry.LATER, Outcome.NOT_STORED, 507)


def test_without_a_reserve_nothing_is_refused(crash_fs: Callable[[int], CrashFileSystem]) -> None:
    fs = crash_fs(0)
    fs.free = 0
    assert DiskSpace(fs, Path("/data"), reserve_bytes=0).writable


def test_the_operating_system_tells_the_room(tmp_path: Path) -> None:
    assert DiskSpace(OsFileSystem(), tmp_path, reserve_bytes=1).free_bytes > 0
