"""An old home that went on deleting while others went on: it promises, it is cut, it skips to where the home begins."""

from __future__ import annotations

from typing import Any

import pytest

from georelay.errors import OffsetOutOfRange
from georelay.ids import Epoch, Offset, RaftIndex
from mesh.replication.ports import SkipPoint
from region.topics.skip_core import encode_shipped_producers
from tests.unit.topics.home_moves import promise

OTHERS_WENT_ON = ((Epoch(1), Offset(0)), (Epoch(2), Offset(1)))


async def isolated(make_moving: Any) -> Any:
    """Return a home with offsets 0..3, of which it deleted 0..2, that did not hear that epoch 2 began at 1."""
    bench = make_moving().ready()
    for _ in range(4):
        bench.publish()
    bench.store()
    await bench.answered(bench.stream.move_start(Offset(3), first_index=RaftIndex(1)))
    assert bench.stream.log_start == 3
    return bench


async def test_who_deleted_all_it_agrees_to_promises_and_says_so(make_moving: Any) -> None:
    bench = await isolated(make_moving)
    with pytest.raises(OffsetOutOfRange):
        await promise(bench, 3, table=OTHERS_WENT_ON)
    assert bench.stream.promised == 3
    with pytest.raises(OffsetOutOfRange):
        await promise(bench, 3, table=OTHERS_WENT_ON)


async def test_who_agrees_up_to_its_end_or_its_beginning_reports_that(make_moving: Any) -> None:
    bench = await isolated(make_moving)
    digest = bench.digest_at(3)
    assert (await promise(bench, 3)).offset == 4
    end = await promise(bench, 4, table=((Epoch(1), Offset(0)), (Epoch(2), Offset(3))))
    assert (end.offset, end.digest) == (3, digest)


async def test_a_branch_whose_beginning_was_deleted_is_cut_off_before_a_skip(make_moving: Any) -> None:
    bench = await isolated(make_moving)
    table = (*OTHERS_WENT_ON, (Epoch(3), Offset(9)))
    bench.stream.follow_home(bench.row(2, 3, 9, digest=b"e" * 16, before=bench.row(2, 2, 1)))
    point = SkipPoint(last=Offset(11), digest=b"s" * 16, table=table, producers=encode_shipped_producers([]))
    await bench.answered(bench.stream.append_skip(point))
    assert (bench.stream.log_start, bench.stream.next_offset) == (12, 12)
    assert [(branch.first, branch.following) for branch in bench.stream.orphans()] == [(1, 4)]
