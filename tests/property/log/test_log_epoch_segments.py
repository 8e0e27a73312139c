"""Epochs that begin where an entry does are read like a list, whichever of them open a segment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from georelay.ids import Offset, RaftIndex
from region.log.entry import Entry
from region.log.filesystem import OsFileSystem
from region.log.group_log import GroupLog
from region.log.segment_reader import valid_branch

if TYPE_CHECKING:
    from tests.unit.log.conftest import EntryMaker

ALL = 10**9
steps = st.lists(
    st.one_of(
        st.tuples(st.just("data"), st.integers(1, 3)),
        st.tuples(st.just("noop"), st.just(0)),
        st.tuples(st.just("epoch"), st.integers(0, 3)),
    ),
    min_size=1,
    max_size=9,
)


def entry_of(make: EntryMaker, model: list[Entry], kind: str, number: int) -> Entry:
    if kind == "data":
        return make.data(bytes(500), records=number)
    if kind == "noop":
        return make.control()
    starts = [int(make.next_offset), *(int(entry.base_offset) for entry in reversed(valid_branch(model)))]
    return make.begin_epoch(make.epoch + 1, starts[min(number, len(starts) - 1)])


@settings(derandomize=True, suppress_health_check=list(HealthCheck))
@given(steps=steps)
def test_every_offset_is_found_at_every_commit_index(
    entry_maker: Callable[[], EntryMaker], steps: list[tuple[str, int]]
) -> None:
    make, model = entry_maker(), list[Entry]()
    with TemporaryDirectory() as folder:
        log = GroupLog.open(Path(folder) / "1", OsFileSystem(), segment_bytes_max=2000, index_interval_bytes=300)
        for kind, number in steps:
            model.append(entry_of(make, model, kind, number))
            log.append(model[-1:])
        log.sync()
        log.close()
        for opened in (log, GroupLog.open(Path(folder) / "1", OsFileSystem(), index_interval_bytes=300)):
            for commit in range(1, len(model) + 1):
                branch = valid_branch(model[:commit])
                for offset in range(int(make.next_offset) + 2):
                    found = opened.read_from_offset(Offset(offset), ALL, up_to_index=RaftIndex(commit))
                    assert [e.index for e in found] == [e.index for e in branch if e.next_offset > offset]
