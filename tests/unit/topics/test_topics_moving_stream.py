"""The home of a stream moves: who may publish, what a fence holds back, what a new home needs before it begins."""

from __future__ import annotations

from typing import Any

import pytest

from georelay.errors import BadRequest, Busy, Fenced, NotHome, NotLeader, OutcomeUnknown, Unavailable
from georelay.ids import Epoch, Offset, RegionNumber
from georelay.wire.batch import RecordDraft, build_batch
from mesh.home.home_row import MoveKind, Moving
from mesh.replication.publish import Publish
from mesh.replication.stream_header import EntryType, first_digest
from region.log.entry import EntryDraft
from region.multiraft.machine import InvariantBroken
from tests.unit.topics.home_moves import begin_seal, copied, promise, seal

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


async def test_what_is_published_after_a_move_is_said_to_be_in_the_new_home(make_moving: Any) -> None:
    home = make_moving().ready()
    before = home.publish()
    home.store()
    assert before.result().regions == (1,)
    new = await copied(make_moving, home, records=1)
    new.stream.follow_home(home.row(2, 2, 1))
    await new.until(lambda: new.stream.epoch == 2)
    after = new.publish()
    new.store()
    assert after.result().regions == (2,)


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


# --- leases ---------------------------------------------------------------------------------------


async def test_without_its_lease_a_home_acknowledges_nothing_of_its_own_region(make_moving: Any) -> None:
    bench = make_moving().ready()
    bench.store()
    holds = True
    bench.stream.lease = lambda: holds
    waiting = bench.publish()
    for_more_regions = bench.stream.publish(published(b"g")._replace(needs_lease=False))
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


def published(value: bytes) -> Publish:
    return Publish.built(build_batch([RecordDraft(value)], timestamps_ms=1), received_ns=1, entry_region=1)


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
