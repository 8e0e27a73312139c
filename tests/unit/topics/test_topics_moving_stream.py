"""The home of a stream moves: who may publish, what a fence holds back, what a cut takes out of the log."""

from __future__ import annotations

from typing import Any

import pytest

from georelay.errors import (
    BadRequest,
    Busy,
    Fenced,
    NotHome,
    NotLeader,
    OffsetOutOfRange,
    OutcomeUnknown,
    OutOfOrderSequence,
    Unavailable,
    UnknownProducer,
)
from georelay.ids import Epoch, Offset, RaftIndex, RegionNumber
from georelay.wire.batch import RecordDraft, build_batch, validate
from mesh.home.home_row import MoveKind, Moving
from mesh.replication.ports import SkipPoint
from mesh.replication.stream_header import EntryType, first_digest
from region.log.entry import EntryDraft
from region.multiraft.machine import InvariantBroken
from region.topics.skip_core import encode_shipped_producers

FIRST = ((Epoch(1), Offset(0)),)


def begin_seal(bench: Any, *, new_epoch: int = 2) -> Any:
    return bench.stream.seal(epoch=Epoch(1), new_epoch=Epoch(new_epoch), move_id="m1")


async def seal(bench: Any, *, new_epoch: int = 2) -> Any:
    return await bench.answered(begin_seal(bench, new_epoch=new_epoch))


async def promise(bench: Any, epoch: int, table: Any = FIRST) -> Any:
    return await bench.answered(bench.stream.promise(new_epoch=Epoch(epoch), table=table))


# --- sealing --------------------------------------------------------------------------------------


async def test_a_sealed_home_says_where_its_epoch_ends_and_publishes_nothing_more(make_moving: Any) -> None:
    bench = make_moving().ready()
    bench.publish(count=3)
    end = await seal(bench)
    assert (end.offset, end.digest) == (3, bench.digest_at(3))
    with pytest.raises(NotHome) as refused:
        bench.publish()
    assert refused.value.epoch == 2
    assert bench.stream.next_offset == 3


async def test_a_publish_is_refused_from_the_append_of_the_seal_on(make_moving: Any) -> None:
    bench = make_moving().ready()
    before = bench.publish()
    coroutine = begin_seal(bench)
    coroutine.send(None)  # the entry is appended, and not committed
    with pytest.raises(NotHome):
        bench.publish()
    bench.store()
    assert before.result().base_offset == 0
    coroutine.close()


@pytest.mark.parametrize("from_state", [False, True])
async def test_a_seal_outlives_its_leader_and_a_restart(make_moving: Any, from_state: bool) -> None:
    bench = make_moving().ready()
    bench.publish()
    await seal(bench)
    bench.restart(from_state=from_state)
    bench.log.lead()
    bench.store()
    with pytest.raises(NotHome):
        bench.publish()
    assert (await seal(bench)).offset == 1


async def test_a_seal_that_was_truncated_never_was(make_moving: Any) -> None:
    bench = make_moving().ready()
    coroutine = begin_seal(bench)
    coroutine.send(None)
    bench.log.truncate(len(bench.log.entries))
    bench.publish()
    assert bench.stream.next_offset == 1
    with pytest.raises(OutcomeUnknown):
        coroutine.send(None)


async def test_sealing_again_gives_the_same_answer_and_appends_nothing(make_moving: Any) -> None:
    bench = make_moving().ready()
    bench.publish()
    first = await seal(bench)
    count = len(bench.log.entries)
    assert await seal(bench) == first
    assert len(bench.log.entries) == count


async def test_the_refusal_of_a_sealed_home_names_the_region_that_is_to_follow(make_moving: Any) -> None:
    bench = make_moving().ready()
    moving = Moving(move_id="m1", kind=MoveKind.PLANNED, epoch=Epoch(2), target=RegionNumber(2))
    bench.stream.follow_home(bench.row(1, 1, 0, moving=moving))
    await seal(bench)
    with pytest.raises(NotHome) as refused:
        bench.publish()
    assert (refused.value.home, refused.value.epoch) == (2, 2)


async def test_a_record_behind_a_seal_stops_the_group(make_moving: Any) -> None:
    bench = make_moving().ready()
    bench.publish()
    entry = bench.log.entries[-1]
    bench.store()
    await seal(bench)
    other = make_moving(region=2)
    other.log.leads = True
    for known in [row for row in bench.log.entries if row.type in (EntryType.EPOCH, EntryType.SEAL)]:
        other.log.append(EntryDraft(header=known.header(), payload=bytes(known.payload)))
    other.log.append(EntryDraft(header=entry.header(), payload=bytes(entry.payload)))
    with pytest.raises(InvariantBroken, match="sealed"):
        other.log.commit()


async def test_only_the_home_in_the_epoch_that_ends_seals(make_moving: Any) -> None:
    mirror = make_moving(region=2).ready()
    with pytest.raises(NotHome):
        await begin_seal(mirror)
    bench = make_moving().ready()
    with pytest.raises(Busy):
        await bench.stream.seal(epoch=Epoch(2), new_epoch=Epoch(3), move_id="m")
    with pytest.raises(Fenced):
        await bench.stream.seal(epoch=Epoch(1), new_epoch=Epoch(1), move_id="m")
    with pytest.raises(BadRequest):
        await bench.stream.seal(epoch=Epoch(1), new_epoch=Epoch(2), move_id="m" * 65)
    bench.level = 3
    with pytest.raises(Unavailable):
        await begin_seal(bench)
    bench.log.step_down()
    with pytest.raises(NotLeader):
        await begin_seal(bench)


async def test_an_attempt_that_ended_at_the_same_home_opens_it_again(make_moving: Any) -> None:
    bench = make_moving().ready()
    bench.publish()
    await seal(bench)
    bench.stream.follow_home(bench.row(1, 2, 1))
    await bench.until(lambda: bench.stream.epoch == 2)
    answer = bench.publish()
    bench.store()
    assert (answer.result().epoch, answer.result().base_offset) == (2, 1)
    assert not bench.stream.sealed


# --- promising ------------------------------------------------------------------------------------


async def test_a_promise_reports_the_length_at_its_entry_uncommitted_records_included(make_moving: Any) -> None:
    bench = make_moving().ready()
    bench.publish(count=2)
    bench.store()
    bench.publish()
    end = await promise(bench, 2)
    assert (end.offset, end.digest) == (3, bench.digest_at(3))
    assert bench.stream.high_watermark == 3


async def test_a_home_that_promised_publishes_nothing_more(make_moving: Any) -> None:
    bench = make_moving().ready()
    await promise(bench, 2)
    with pytest.raises(NotHome):
        bench.publish()
    bench.restart(from_state=True)
    bench.log.lead()
    bench.store()
    assert bench.stream.promised == 2
    with pytest.raises(NotHome):
        bench.publish()


async def test_a_promise_is_repeated_with_the_same_answer_and_a_lower_one_is_refused(make_moving: Any) -> None:
    bench = make_moving().ready()
    bench.publish()
    first = await promise(bench, 5)
    assert await promise(bench, 5) == first
    with pytest.raises(Fenced):
        await promise(bench, 4)
    assert (await promise(bench, 6)).offset == 1
    with pytest.raises(BadRequest):
        await promise(bench, 7, table=())


async def test_only_records_in_the_epoch_that_the_table_gives_count(make_moving: Any) -> None:
    bench = make_moving().ready()
    bench.publish(count=2)
    bench.store()
    digest = bench.digest_at(2)
    bench.stream.follow_home(bench.row(1, 2, 2))
    await bench.until(lambda: bench.stream.epoch == 2)
    bench.publish(count=3)
    bench.store()
    # The mesh knows nothing of epoch 2: records of it do not count, and 3 began where 1 ended.
    end = await promise(bench, 4, table=((Epoch(1), Offset(0)), (Epoch(3), Offset(2))))
    assert (end.offset, end.digest) == (2, digest)


async def test_an_epoch_below_the_promise_is_not_begun_unless_a_newer_one_is_decided(make_moving: Any) -> None:
    bench = make_moving(region=2).ready()
    await promise(bench, 3)
    with pytest.raises(Fenced):
        await bench.stream.append_epoch(
            Epoch(2), start=Offset(0), digest=first_digest(bench.stream.key), control_index=1, proven=Epoch(2)
        )
    await bench.answered(
        bench.stream.append_epoch(
            Epoch(2), start=Offset(0), digest=first_digest(bench.stream.key), control_index=1, proven=Epoch(3)
        )
    )
    assert (bench.stream.epoch, bench.stream.promised) == (2, 3)


# --- the new home ---------------------------------------------------------------------------------


async def copied(make_moving: Any, home: Any, *, records: int, region: int = 2) -> Any:
    """Return a mirror with the first records of a home."""
    mirror = make_moving(region=region).ready()
    for entry in home.log.entries:
        if entry.record_count and entry.next_offset <= records:
            mirror.mirror(entry)
    mirror.store()
    return mirror


async def test_a_new_home_publishes_once_its_epoch_is_committed_and_not_before(make_moving: Any) -> None:
    home = make_moving().ready()
    home.publish(count=2)
    home.store()
    new = await copied(make_moving, home, records=2)
    new.stream.follow_home(home.row(2, 2, 2))
    assert new.stream.is_home
    with pytest.raises(NotLeader):
        new.publish()
    await new.until(lambda: new.stream.epoch == 2)
    answer = new.publish()
    new.store()
    assert (answer.result().epoch, answer.result().base_offset) == (2, 2)
    assert not new.stream.is_mirroring


async def test_a_new_home_that_lacks_records_asks_the_one_before_and_publishes_nothing(make_moving: Any) -> None:
    home = make_moving().ready()
    home.publish(count=2)
    home.publish()
    home.store()
    new = await copied(make_moving, home, records=2)
    new.stream.follow_home(home.row(2, 2, 3))
    assert (new.stream.is_home, new.stream.is_mirroring, new.stream.source) == (True, True, 1)
    with pytest.raises(NotLeader):
        new.publish()
    new.mirror(home.log.entries[-1])
    await new.until(lambda: new.stream.epoch == 2)
    assert (new.stream.is_mirroring, new.stream.high_watermark) == (False, 3)


async def test_a_new_leader_of_the_new_home_begins_the_epoch(make_moving: Any) -> None:
    home = make_moving().ready()
    home.publish()
    home.store()
    new = await copied(make_moving, home, records=1)
    new.log.step_down()
    new.stream.follow_home(home.row(2, 2, 1))
    new.log.lead()
    await new.until(lambda: new.stream.epoch == 2)


async def test_an_older_word_of_control_changes_nothing(make_moving: Any) -> None:
    bench = make_moving().ready()
    first = bench.row(2, 2, 0)
    second = bench.row(3, 3, 0, before=first)
    bench.stream.follow_home(second)
    bench.stream.follow_home(first)
    assert bench.stream.home == 3


async def test_an_epoch_whose_digest_is_another_one_is_never_begun(make_moving: Any) -> None:
    bench = make_moving().ready()
    bench.publish()
    bench.store()
    count = len(bench.log.entries)
    bench.stream.follow_home(bench.row(2, 2, 1, digest=b"x" * 16))
    for _ in range(3):
        await bench.answered(bench.stream.digest_before(Offset(1)))
    assert (bench.stream.epoch, len(bench.log.entries)) == (1, count)


async def test_the_digest_is_computed_with_the_new_epoch(make_moving: Any) -> None:
    home = make_moving().ready()
    home.publish()
    home.store()
    new = await copied(make_moving, home, records=1)
    new.stream.follow_home(home.row(2, 2, 1))
    await new.until(lambda: new.stream.epoch == 2)
    new.publish()
    new.store()
    assert new.log.entries[-1].header().epoch == 2


# --- the old home comes back ----------------------------------------------------------------------


async def cut_bench(make_moving: Any, *, keep: int = 2, more: int = 2) -> Any:
    """Return an old home that published `keep` + `more` records and heard that epoch 2 began at `keep` elsewhere."""
    bench = make_moving().ready()
    for number in range(keep + more):
        bench.publish(b"%d" % number, timestamp_ms=100 + number)
    bench.store()
    bench.stream.follow_home(bench.row(2, 2, keep))
    await bench.until(lambda: bench.stream.epoch == 2)
    return bench


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


# --- leases ---------------------------------------------------------------------------------------


async def test_without_its_lease_a_home_acknowledges_nothing_of_its_own_region(make_moving: Any) -> None:
    bench = make_moving().ready()
    bench.store()
    holds = True
    bench.stream.lease = lambda: holds
    waiting = bench.publish()
    for_more_regions = bench.stream.publish(*published(b"g"), received_ns=1, entry_region=1, needs_lease=False)
    holds = False
    bench.store()
    assert isinstance(waiting.exception(), OutcomeUnknown)
    assert for_more_regions.result().base_offset == 1
    with pytest.raises(Unavailable):
        bench.publish()
    assert bench.stream.next_offset == 2


async def test_acknowledgements_of_a_home_that_is_cut_off_say_so(make_moving: Any) -> None:
    bench = make_moving().ready()
    bench.store()
    bench.stream.isolated = lambda: True
    answer = bench.publish()
    bench.store()
    assert answer.result().is_isolated


def published(value: bytes) -> tuple[Any, Any]:
    raw = bytearray(build_batch([RecordDraft(value)], timestamps_ms=1))
    return validate(raw, from_client=True), raw


# --- ends -----------------------------------------------------------------------------------------


async def test_only_a_home_whose_epoch_is_open_knows_the_end(make_moving: Any) -> None:
    bench = make_moving().ready()
    bench.publish()
    bench.store()
    assert bench.stream.epoch_end(Epoch(1)) == (1, 1)
    await promise(bench, 2)
    assert bench.stream.epoch_end(Epoch(1)) == (1, 2**63 - 1)
    bench.stream.follow_home(bench.row(1, 2, 1))
    assert not bench.stream.knows_end
    await bench.until(lambda: bench.stream.epoch == 2)
    assert (bench.stream.epoch_end(Epoch(1)), bench.stream.epoch_end(Epoch(2))) == ((1, 1), (2, 1))


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


# --- branches that are dropped --------------------------------------------------------------------


async def test_an_operator_drops_a_branch(make_moving: Any) -> None:
    bench = await cut_bench(make_moving)
    assert await bench.answered(bench.stream.drop_orphans(Epoch(1))) == 0
    assert await bench.answered(bench.stream.drop_orphans(Epoch(2))) == 1
    assert bench.stream.orphans() == ()
    bench.restart(from_state=True)
    assert bench.stream.orphans() == ()


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
