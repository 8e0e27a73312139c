"""An old home comes back: what a cut takes out of the log, what its producers may do, what becomes of the branch."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from georelay.errors import NotHome, OffsetOutOfRange, OutOfOrderSequence, UnknownProducer
from georelay.ids import Epoch, Offset, RaftIndex
from mesh.replication.ports import SkipPoint
from region.topics.retention import StreamRetention
from region.topics.retention_core import RetentionLimits
from region.topics.skip_core import encode_shipped_producers
from tests.unit.topics.home_moves import copied, cut_bench, seal

# --- the old home comes back ----------------------------------------------------------------------


async def test_records_beyond_the_new_epoch_leave_every_reader_and_are_listed(make_moving: Any) -> None:
    bench = await cut_bench(make_moving)
    stream = bench.stream
    assert (stream.high_watermark, stream.next_offset, stream.is_home) == (2, 2, False)
    assert await bench.records() == [b"0", b"1"]
    assert stream.read(Offset(2), 1 << 20) == []
    in_memory = stream.read(Offset(0), 1 << 20)
    assert in_memory is not None
    assert [entry.base_offset for entry in in_memory] == [0, 1]
    assert await stream.offset_for_timestamp(102) is None
    assert await stream.max_timestamp() == (1, 101)
    (branch,) = stream.orphans()
    assert (branch.epoch, branch.first, branch.last, branch.records) == (2, 2, 3, 2)
    assert branch.epochs == ((1, 2),)
    entries = await stream.read_orphans(branch, branch.first, 1 << 20)
    assert [entry.base_offset for entry in entries] == [2, 3]


@pytest.mark.parametrize("from_state", [False, True])
async def test_the_cut_and_the_branch_are_the_same_after_a_restart(make_moving: Any, from_state: bool) -> None:
    bench = await cut_bench(make_moving)
    state, branches = bench.stream.snapshot(), bench.stream.orphans()
    bench.restart(from_state=from_state)
    assert bench.stream.snapshot() == state
    assert bench.stream.orphans() == branches
    assert await bench.records() == [b"0", b"1"]


async def test_an_old_home_goes_on_as_a_mirror_without_a_rebuild(make_moving: Any) -> None:
    bench = await cut_bench(make_moving)
    new = await copied(make_moving, bench, records=2)
    new.stream.follow_home(bench.row(2, 2, 2))
    await new.until(lambda: new.stream.epoch == 2)
    new.publish(b"new", count=3)
    new.store()
    bench.mirror(new.log.entries[-1])
    bench.store()
    assert await bench.records() == [b"0", b"1", b"new", b"new", b"new"]
    assert bench.stream.end.digest == new.stream.end.digest
    (branch,) = bench.stream.orphans()
    assert [entry.base_offset for entry in await bench.stream.read_orphans(branch, Offset(2), 1 << 20)] == [2, 3]


async def test_a_publish_that_lies_beyond_the_new_epoch_is_answered_not_stored(make_moving: Any) -> None:
    bench = make_moving().ready()
    kept = bench.publish()
    lost = bench.publish()
    bench.stream.follow_home(bench.row(2, 2, 1))
    assert isinstance(lost.exception(), NotHome)
    await bench.until(lambda: bench.stream.epoch == 2)
    assert kept.result().base_offset == 0


async def test_a_publish_beyond_the_older_of_two_new_epochs_is_answered_not_stored(make_moving: Any) -> None:
    bench = make_moving().ready()
    kept, lost = bench.publish(), bench.publish()
    second = bench.row(2, 2, 1)
    bench.stream.follow_home(bench.row(3, 3, 5, before=second, digest=bytes(16)))
    assert isinstance(lost.exception(), NotHome)
    assert not kept.done()


async def test_a_log_start_that_an_older_home_told_deletes_nothing_of_a_new_epoch(make_moving: Any) -> None:
    """It had deleted more than the new home ever had: those offsets are other records now."""
    home = make_moving(region=1).ready()
    for _ in range(12):
        home.publish()
    home.store()
    mirror = await copied(make_moving, home, records=12, region=3)
    mirror.stream.home_start_moved(Offset(10))
    mirror.stream.follow_home(home.row(2, 2, 9))
    await mirror.until(lambda: mirror.stream.epoch == 2)
    new = await copied(make_moving, home, records=9)
    new.stream.follow_home(home.row(2, 2, 9))
    await new.until(lambda: new.stream.epoch == 2)
    for _ in range(4):
        new.publish()
        new.store()
        mirror.mirror(new.log.entries[-1])
    mirror.store()
    await mirror.answered(StreamRetention(mirror.stream).look(RetentionLimits(), now_ms=1, mirrors=[]))
    assert (mirror.stream.log_start, mirror.stream.high_watermark) == (0, 13)


async def test_an_old_home_serves_its_end_to_others(make_moving: Any) -> None:
    bench = make_moving().ready()
    bench.publish()
    await seal(bench)
    bench.stream.follow_home(bench.row(2, 2, 1))
    assert (bench.stream.is_home, bench.stream.is_serving) == (False, True)
    assert bench.stream.source == 2


async def test_an_epoch_that_began_below_another_hides_it(make_moving: Any) -> None:
    bench = await cut_bench(make_moving, keep=4, more=0)
    bench.stream.follow_home(bench.row(3, 3, 2, before=bench.stream.home_row))
    await bench.until(lambda: bench.stream.epoch == 3)
    assert bench.stream.epoch_table() == [(1, 0), (3, 2)]
    assert bench.stream.epoch_end(Epoch(2)) == (1, 2)
    assert [branch.epochs for branch in bench.stream.orphans()] == [((1, 2), (2, 4))]


async def test_a_log_start_above_the_new_epoch_moves_back_with_the_end(make_moving: Any) -> None:
    bench = make_moving().ready()
    for _ in range(4):
        bench.publish()
    bench.store()
    digest = bench.digest_at(2)
    await bench.answered(bench.stream.delete_records(Offset(3)))
    bench.stream.follow_home(bench.row(2, 2, 2, digest=digest))
    await bench.until(lambda: bench.stream.epoch == 2)
    assert (bench.stream.log_start, bench.stream.high_watermark) == (2, 2)
    assert await bench.stream.digest_before(Offset(2)) == digest
    bench.restart(from_state=True)
    assert bench.stream.log_start == 2


async def test_transactions_of_the_branch_are_open_again_below_it(make_moving: Any) -> None:
    bench = make_moving().ready()
    table = bench.stream.transactions
    bench.publish()
    bench.store()
    bench.stream.write_marker(producer_id=7, producer_epoch=0, is_commit=True, number=4)
    bench.store()
    assert table.end.is_late(7, 4)
    bench.stream.follow_home(bench.row(2, 2, 1))
    await bench.until(lambda: bench.stream.epoch == 2)
    assert not bench.stream.transactions.end.is_late(7, 4)


# --- producers ------------------------------------------------------------------------------------


async def test_a_cut_forgets_what_the_branch_taught_and_remembers_what_was_below(make_moving: Any) -> None:
    bench = make_moving().ready()
    for sequence in range(3):
        bench.publish(producer=7, epoch=0, sequence=sequence)
    bench.store()
    bench.write_manifest()
    known = bench.stream.committed_producers()
    for sequence in range(3, 12):  # more batches than a producer's state remembers
        bench.publish(producer=7, epoch=0, sequence=sequence)
    bench.publish(producer=8, epoch=0, sequence=0)
    bench.store()
    bench.stream.follow_home(bench.row(2, 2, 3))
    await bench.until(lambda: bench.stream.epoch == 2)
    assert bench.stream.committed_producers() == known
    # It becomes home again: the retry of what is stored is a duplicate, what was lost may be published again.
    bench.stream.follow_home(bench.row(1, 3, 3, before=bench.stream.home_row))
    await bench.until(lambda: bench.stream.epoch == 3)
    assert bench.publish(producer=7, epoch=0, sequence=2).result().base_offset == 2
    bench.publish(producer=7, epoch=0, sequence=3)
    bench.publish(producer=8, epoch=0, sequence=0)
    bench.store()
    assert bench.stream.high_watermark == 5


async def test_an_epoch_entry_without_states_keeps_the_batches_below_the_cut(make_moving: Any) -> None:
    bench = make_moving().ready()
    for sequence in range(4):
        bench.publish(producer=7, epoch=0, sequence=sequence)
    bench.publish(producer=8, epoch=0, sequence=0)
    bench.store()
    bench.stream.open_epoch(Epoch(2), start=Offset(2), digest=bench.digest_at(2), control_index=1)
    bench.store()
    ((producer, state),) = bench.stream.committed_producers()
    assert (producer, state.last_sequence) == (7, 1)


async def test_a_cut_that_is_truncated_leaves_the_table_as_it_was(make_moving: Any) -> None:
    bench = make_moving().ready()
    for sequence in range(4):
        bench.publish(producer=7, epoch=0, sequence=sequence)
    bench.store()
    known = bench.stream.committed_producers()
    bench.stream.open_epoch(Epoch(2), start=Offset(2), digest=bench.digest_at(2), control_index=1)
    bench.log.truncate(len(bench.log.entries))
    assert bench.stream.producers.rows_at(bench.stream.commit_index, 0) == known
    assert (bench.stream.next_offset, bench.stream.orphans()) == (4, ())
    bench.publish(producer=7, epoch=0, sequence=4)
    bench.store()
    assert bench.stream.orphans() == ()
    bench.stream.open_epoch(Epoch(3), start=Offset(5), digest=bench.digest_at(5), control_index=1)
    bench.store()
    assert bench.stream.epoch_table() == [(1, 0), (3, 5)]


async def test_after_a_loss_every_producer_of_before_may_jump_forward_once(make_moving: Any) -> None:
    bench = make_moving(region=2).ready()
    home = make_moving().ready()
    for producer in (7, 8):
        home.publish(producer=producer, epoch=0, sequence=0)
    home.store()
    for entry in home.log.entries[-2:]:
        bench.mirror(entry)
    bench.store()
    bench.stream.follow_home(home.row(2, 2, 2, accept_loss=True))
    await bench.until(lambda: bench.stream.epoch == 2)
    assert bench.publish(producer=7, epoch=0, sequence=0).result().base_offset == 0  # still a duplicate
    bench.publish(producer=7, epoch=0, sequence=9)
    with pytest.raises(OutOfOrderSequence):
        bench.publish(producer=7, epoch=0, sequence=20)
    bench.publish(producer=8, epoch=0, sequence=1)  # it lost nothing
    bench.store()
    with pytest.raises(UnknownProducer):
        bench.publish(producer=9, epoch=0, sequence=3)
    assert bench.stream.forward_jumps == 1


async def test_without_a_loss_nobody_may_jump(make_moving: Any) -> None:
    bench = make_moving().ready()
    bench.publish(producer=7, epoch=0, sequence=0)
    bench.store()
    bench.stream.follow_home(bench.row(1, 2, 1))
    await bench.until(lambda: bench.stream.epoch == 2)
    with pytest.raises(OutOfOrderSequence):
        bench.publish(producer=7, epoch=0, sequence=5)


# --- branches that are kept and dropped -----------------------------------------------------------


async def test_a_branch_outlives_a_skip_of_what_the_new_home_deleted(make_moving: Any) -> None:
    bench = await cut_bench(make_moving)
    point = SkipPoint(
        last=Offset(9),
        digest=b"s" * 16,
        table=((Epoch(1), Offset(0)), (Epoch(2), Offset(2))),
        producers=encode_shipped_producers(()),
    )
    await bench.answered(bench.stream.append_skip(point))
    (branch,) = bench.stream.orphans()
    assert [entry.base_offset for entry in await bench.stream.read_orphans(branch, Offset(2), 1 << 20)] == [2, 3]
    assert (bench.stream.log_start, bench.stream.start.first_index) == (10, 1)
    bench.restart(from_state=True)
    assert bench.stream.orphans() == (branch,)


async def test_an_operator_drops_a_branch(make_moving: Any) -> None:
    bench = await cut_bench(make_moving)
    assert await bench.answered(bench.stream.drop_orphans(Epoch(1))) == 0
    assert await bench.answered(bench.stream.drop_orphans(Epoch(2))) == 1
    assert bench.stream.orphans() == ()
    bench.restart(from_state=True)
    assert bench.stream.orphans() == ()


async def test_a_log_start_that_was_decided_before_the_cut_takes_no_branch_off_the_list(make_moving: Any) -> None:
    bench = make_moving().ready()
    for _ in range(4):
        bench.publish()
    bench.store()
    start = await bench.stream._start_at(Offset(3), RaftIndex(6))
    bench.stream.follow_home(bench.row(2, 2, 2))
    while bench.stream.epochs.newest() != 2:  # appended, not committed
        bench.store(commit=False)
        await asyncio.sleep(0)
    await bench.answered(bench.stream.propose_start(start))
    assert bench.stream.log_start == 0
    assert [branch.first for branch in bench.stream.orphans()] == [2]


async def test_a_branch_whose_first_entry_is_gone_is_not_listed(make_moving: Any) -> None:
    bench = await cut_bench(make_moving)
    (branch,) = bench.stream.orphans()
    await bench.answered(bench.stream.move_start(Offset(0), first_index=branch.first_index))
    assert bench.stream.orphans() == (branch,)
    await bench.answered(bench.stream.move_start(Offset(0), first_index=RaftIndex(branch.first_index + 1)))
    assert bench.stream.orphans() == ()


async def test_reading_below_the_log_start_is_still_refused(make_moving: Any) -> None:
    bench = await cut_bench(make_moving)
    await bench.answered(bench.stream.move_start(Offset(1), first_index=RaftIndex(1)))
    with pytest.raises(OffsetOutOfRange):
        bench.stream.read(Offset(0), 1)
