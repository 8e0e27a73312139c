"""A broker that does not know control's newest word yet: what its log says must hold it back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from georelay.errors import Busy, Fenced, NotHome, NotLeader, OutcomeUnknown, Unavailable
from georelay.ids import Epoch, Offset
from georelay.wire.batch import RecordDraft, build_batch
from mesh.replication.frames import Hello, Skip
from mesh.replication.hello_answer import answer_hello
from mesh.replication.ports import SkipPoint
from mesh.replication.publish import Publish
from mesh.replication.receiver_core import MirrorEnd, Verdict, judge_skip
from mesh.replication.stream_header import EntryType
from region.topics.skip_core import encode_shipped_producers


async def moved_away(make_moving: Any) -> Any:
    """Return the old home in epoch 2 of region 2, with one record."""
    bench = make_moving().ready()
    bench.publish()
    bench.store()
    bench.stream.follow_home(bench.row(2, 2, 1))
    await bench.until(lambda: bench.stream.epoch == 2)
    return bench


# --- who does not know who is home ----------------------------------------------------------------


@pytest.mark.parametrize("from_state", [False, True])
async def test_a_leader_that_has_not_heard_who_is_home_in_its_epoch_sequences_nothing(
    make_moving: Any, from_state: bool
) -> None:
    bench = await moved_away(make_moving)
    row = bench.stream.home_row
    bench.restart(from_state=from_state)  # the broker's copy of control's words is older than its log
    bench.log.lead()
    assert bench.stream.home_row is None and bench.stream.is_home
    with pytest.raises(NotLeader):
        bench.publish()
    with pytest.raises(NotLeader):
        await bench.stream.delete_records(Offset(1))
    assert bench.stream.next_offset == 1
    bench.stream.follow_home(row)
    with pytest.raises(NotHome):
        bench.publish()


async def test_a_leader_with_an_older_word_than_its_log_sequences_nothing(make_moving: Any) -> None:
    bench = make_moving().ready()
    first = bench.row(1, 2, 0)
    bench.stream.follow_home(first)
    await bench.until(lambda: bench.stream.epoch == 2)
    bench.publish()
    bench.store()
    bench.stream.follow_home(bench.row(2, 3, 1, before=first))
    await bench.until(lambda: bench.stream.epoch == 3)
    bench.restart()
    bench.stream.follow_home(first)
    bench.log.lead()
    with pytest.raises(NotLeader):
        bench.publish()


async def test_a_region_that_has_not_heard_who_is_home_does_not_say_where_the_epoch_ends(make_moving: Any) -> None:
    bench = await moved_away(make_moving)
    bench.restart()
    bench.log.lead()
    assert not bench.stream.knows_end
    assert bench.stream.epoch_end(Epoch(2)) == (2, 2**63 - 1)


# --- whom mirrors hear ----------------------------------------------------------------------------


async def test_a_home_serves_no_mirror_before_its_epoch_has_begun(make_moving: Any) -> None:
    bench = await moved_away(make_moving)
    assert bench.stream.is_serving  # of what it sequenced itself others may need the end
    bench.stream.follow_home(bench.row(1, 3, 5, digest=b"d" * 16, before=bench.stream.home_row))
    assert bench.stream.is_mirroring
    assert not bench.stream.is_serving


async def test_a_mirror_takes_nothing_of_an_epoch_beyond_where_control_says_it_ended(make_moving: Any) -> None:
    home = make_moving().ready()
    for _ in range(3):
        home.publish()
        home.store()
    records = [entry for entry in home.log.entries if entry.type is EntryType.DATA]
    mirror = make_moving(region=3).ready()
    mirror.mirror(records[0])
    mirror.store()
    second = home.row(2, 2, 2)
    third = home.row(1, 3, 3, before=second)
    mirror.stream.follow_home(third)
    mirror.mirror(records[1])
    with pytest.raises(Busy, match="control"):
        mirror.mirror(records[2])  # of the branch of region 1
    assert mirror.stream.next_offset == 2


async def test_a_mirror_takes_nothing_while_an_epoch_entry_is_on_its_way(make_moving: Any) -> None:
    home = make_moving().ready()
    home.publish()
    home.publish()
    home.store()
    records = [entry for entry in home.log.entries if entry.type is EntryType.DATA]
    mirror = make_moving(region=3).ready()
    mirror.mirror(records[0])
    mirror.store()
    mirror.stream.open_epoch(Epoch(2), start=Offset(1), digest=home.digest_at(1), control_index=1)
    with pytest.raises(Busy):
        mirror.mirror(records[1])
    mirror.store()
    assert mirror.stream.high_watermark == 1


# --- leases ---------------------------------------------------------------------------------------


async def test_the_retry_of_a_batch_is_not_acknowledged_without_a_lease_either(make_moving: Any) -> None:
    bench = make_moving().ready()
    bench.store()
    holds = True
    bench.stream.lease = lambda: holds
    first = bench.publish(producer=7, epoch=0, sequence=0)
    again = bench.publish(producer=7, epoch=0, sequence=0)
    raw = bytearray(build_batch([RecordDraft(b"v")], timestamps_ms=1, producer_id=7, producer_epoch=0, base_sequence=0))
    again_for_more = Publish.built(raw, received_ns=1, entry_region=1)._replace(needs_lease=False)
    for_more_regions = bench.stream.publish(again_for_more)
    holds = False
    bench.store()
    assert isinstance(first.exception(), OutcomeUnknown)
    assert isinstance(again.exception(), OutcomeUnknown)
    assert for_more_regions.result().base_offset == 0


# --- mixed versions -------------------------------------------------------------------------------


async def test_nothing_is_cut_while_a_broker_of_the_region_could_not_read_that(make_moving: Any) -> None:
    bench = make_moving(level=3).ready()
    bench.publish()
    bench.publish()
    bench.store()
    count = len(bench.log.entries)
    with pytest.raises(Unavailable):
        await bench.answered(
            bench.stream.append_epoch(Epoch(2), start=Offset(1), digest=bench.digest_at(1), control_index=3)
        )
    assert len(bench.log.entries) == count
    bench.level = 4
    await bench.answered(
        bench.stream.append_epoch(Epoch(2), start=Offset(1), digest=bench.digest_at(1), control_index=3)
    )
    assert (bench.stream.epoch, bench.stream.high_watermark) == (2, 1)


async def test_an_epoch_that_cuts_nothing_begins_at_every_level(make_moving: Any) -> None:
    bench = make_moving(level=1).ready()
    bench.publish()
    bench.store()
    await bench.answered(
        bench.stream.append_epoch(Epoch(2), start=Offset(1), digest=bench.digest_at(1), control_index=3)
    )
    assert bench.stream.epoch == 2


# --- a long branch, and a home that has deleted what both share -----------------------------------


async def test_a_mirror_whose_branch_is_longer_than_what_the_home_deleted_is_told_to_skip(make_moving: Any) -> None:
    home = make_moving().ready()
    home.publish()
    home.store()
    home.stream.follow_home(home.row(1, 2, 1))
    await home.until(lambda: home.stream.epoch == 2)
    for _ in range(3):
        home.publish()
    home.store()
    await home.answered(home.stream.delete_records(Offset(3)))
    hello = Hello(7, home.stream.key, Epoch(1), Offset(5), b"o" * 16)  # four records of its own beyond offset 1
    answer = await answer_hello(hello, home.stream, leader=1001)
    assert isinstance(answer, Skip)
    end = MirrorEnd(epoch=Epoch(1), next_offset=Offset(5), digest=b"o" * 16)
    assert judge_skip(end, session_epoch=Epoch(1), table=answer.table, last=answer.last) is Verdict.ACCEPT


async def test_a_branch_is_cut_off_and_listed_before_what_the_home_deleted_is_skipped(make_moving: Any) -> None:
    mirror = make_moving().ready()
    for _ in range(5):
        mirror.publish()
    mirror.store()
    mirror.stream.home_row = None
    point = SkipPoint(
        last=Offset(2),
        digest=b"s" * 16,
        table=((Epoch(1), Offset(0)), (Epoch(2), Offset(1))),
        producers=encode_shipped_producers(()),
    )
    await mirror.answered(mirror.stream.append_skip(point))
    (branch,) = mirror.stream.orphans()
    assert (branch.first, branch.last, branch.epoch) == (1, 4, 2)
    assert (mirror.stream.epoch, mirror.stream.log_start, mirror.stream.next_offset) == (2, 3, 3)
    assert mirror.stream.end_digest == b"s" * 16
    assert [entry.base_offset for entry in await mirror.stream.read_orphans(branch, Offset(1), 1 << 20)] == [1, 2, 3, 4]


# --- what a promise says, and when ----------------------------------------------------------------

FIRST = ((Epoch(1), Offset(0)),)


async def test_a_promise_is_not_told_before_it_is_committed(make_moving: Any) -> None:
    bench = make_moving().ready()
    bench.publish()
    bench.store()
    asked = asyncio.ensure_future(bench.stream.promise(new_epoch=Epoch(2), table=FIRST))
    for _ in range(5):
        await asyncio.sleep(0)
    assert bench.stream.promised == 2
    assert not asked.done()
    bench.store()
    assert (await asked).offset == 1


async def test_a_promise_that_is_asked_for_again_says_the_length_of_then(make_moving: Any) -> None:
    home = make_moving().ready()
    home.publish()
    home.publish()
    home.store()
    records = [entry for entry in home.log.entries if entry.type is EntryType.DATA]
    mirror = make_moving(region=3).ready()
    mirror.mirror(records[0])
    first = await mirror.answered(mirror.stream.promise(new_epoch=Epoch(2), table=FIRST))
    mirror.mirror(records[1])  # of a home whose table has epoch 2, at or beyond offset 2
    mirror.store()
    again = await mirror.answered(mirror.stream.promise(new_epoch=Epoch(2), table=FIRST))
    assert (first.offset, again) == (1, first)


async def test_a_promise_is_over_with_its_epoch(make_moving: Any) -> None:
    bench = make_moving().ready()
    await bench.answered(bench.stream.promise(new_epoch=Epoch(2), table=FIRST))
    bench.stream.follow_home(bench.row(1, 2, 0))
    await bench.until(lambda: bench.stream.epoch == 2)
    with pytest.raises(Fenced):
        await bench.answered(bench.stream.promise(new_epoch=Epoch(2), table=FIRST))
