"""The steps of a move, as tests of streams take them: seal, promise, a copy that becomes home, a home that is cut."""

from __future__ import annotations

from typing import Any

from georelay.ids import Epoch, Offset

FIRST = ((Epoch(1), Offset(0)),)


def begin_seal(bench: Any, *, new_epoch: int = 2) -> Any:
    return bench.stream.seal(epoch=Epoch(1), new_epoch=Epoch(new_epoch), move_id="m1")


async def seal(bench: Any, *, new_epoch: int = 2) -> Any:
    return await bench.answered(begin_seal(bench, new_epoch=new_epoch))


async def promise(bench: Any, epoch: int, table: Any = FIRST) -> Any:
    return await bench.answered(bench.stream.promise(new_epoch=Epoch(epoch), table=table))


async def copied(make_moving: Any, home: Any, *, records: int, region: int = 2) -> Any:
    """Return a mirror with the first records of a home."""
    mirror = make_moving(region=region).ready()
    for entry in home.log.entries:
        if entry.record_count and entry.next_offset <= records:
            mirror.mirror(entry)
    mirror.store()
    return mirror


async def cut_bench(make_moving: Any, *, keep: int = 2, more: int = 2) -> Any:
    """Return an old home that published `keep` + `more` records and heard that epoch 2 began at `keep` elsewhere."""
    bench = make_moving().ready()
    for number in range(keep + more):
        bench.publish(b"%d" % number, timestamp_ms=100 + number)
    bench.store()
    bench.stream.follow_home(bench.row(2, 2, keep))
    await bench.until(lambda: bench.stream.epoch == 2)
    return bench
