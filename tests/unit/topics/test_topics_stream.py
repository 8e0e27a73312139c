"""A stream decides against its log end, answers at the commit and shows committed records only."""

from __future__ import annotations

from typing import Any

import pytest

from georelay.errors import (
    Busy,
    DiskFull,
    Fenced,
    NotHome,
    NotLeader,
    OutcomeUnknown,
    OutOfOrderSequence,
    ProducerFenced,
    UnknownProducer,
)
from georelay.ids import Epoch, Offset, RaftIndex, Term
from georelay.wire.batch import RecordDraft, build_batch, iterate_records, stamp_time, validate
from mesh.replication.publish import Publish
from mesh.replication.stream_header import EntryType, first_digest
from region.log.entry import EntryDraft, seal_entry
from region.multiraft.machine import InvariantBroken


async def test_a_publish_is_answered_when_its_entry_is_committed_and_not_before(make_bench: Any) -> None:
    bench = make_bench().ready()
    answer = bench.publish()
    assert not answer.done()
    bench.log.commit()
    assert (answer.result().epoch, answer.result().base_offset) == (1, 0)


async def test_offsets_count_records_and_pipelined_batches_follow_the_log_end(make_bench: Any) -> None:
    bench = make_bench().ready()
    answers = [bench.publish(count=3), bench.publish(count=2), bench.publish()]
    bench.log.commit()
    assert [answer.result().base_offset for answer in answers] == [0, 3, 5]
    assert (bench.stream.high_watermark, bench.stream.next_offset) == (6, 6)


async def test_readers_see_nothing_that_is_not_committed(make_bench: Any) -> None:
    bench = make_bench().ready()
    bench.publish()
    assert (bench.stream.high_watermark, bench.stream.tail.newest) == (0, None)


async def test_only_a_leader_whose_own_first_entry_is_committed_accepts(make_bench: Any) -> None:
    bench = make_bench()
    bench.log.leads = True  # elected, but the machine was not told yet
    with pytest.raises(NotLeader):
        bench.publish()


async def test_a_mirror_region_refuses_and_names_the_home(make_bench: Any) -> None:
    bench = make_bench(home=2).ready()
    with pytest.raises(NotHome) as refused:
        bench.publish()
    assert (refused.value.home, refused.value.epoch) == (2, 1)


async def test_a_duplicate_of_an_uncommitted_batch_waits_for_the_original(make_bench: Any) -> None:
    bench = make_bench().ready()
    first = bench.publish(producer=7, epoch=0, sequence=0)
    bench.publish(producer=7, epoch=0, sequence=1)
    again = bench.publish(producer=7, epoch=0, sequence=0)
    assert len(bench.log.entries) == 4  # noop, EPOCH and the two batches
    assert not again.done()
    bench.log.commit(up_to=3)
    assert first.done()
    assert again.result() == first.result()


async def test_a_duplicate_of_a_committed_batch_is_answered_at_once(make_bench: Any) -> None:
    bench = make_bench().ready()
    first = bench.publish(producer=7, epoch=0, sequence=0)
    bench.log.commit()
    bench.clock.now_ns += 10**9
    again = bench.publish(producer=7, epoch=0, sequence=0)
    assert again.result() == first.result()


async def test_a_gap_in_the_sequence_and_an_older_producer_epoch_are_refused(make_bench: Any) -> None:
    bench = make_bench().ready()
    bench.publish(producer=7, epoch=1, sequence=0)
    with pytest.raises(OutOfOrderSequence):
        bench.publish(producer=7, epoch=1, sequence=2)
    with pytest.raises(ProducerFenced):
        bench.publish(producer=7, epoch=0, sequence=1)
    assert bench.stream.next_offset == 1


async def test_a_refused_proposal_leaves_no_trace(make_bench: Any) -> None:
    bench = make_bench().ready()
    end = bench.stream.end
    bench.log.busy = True
    with pytest.raises(Busy):
        bench.publish(producer=7, epoch=0, sequence=0)
    bench.log.busy = False
    assert bench.stream.end == end
    bench.publish(producer=7, epoch=0, sequence=0)
    bench.log.commit()
    assert bench.stream.high_watermark == 1


async def test_the_append_time_never_goes_back(make_bench: Any) -> None:
    bench = make_bench().ready()
    first = bench.publish()
    bench.clock.now_ns -= 10**12
    second = bench.publish()
    bench.log.commit()
    assert second.result().append_us == first.result().append_us


async def test_a_truncated_publish_has_an_unknown_outcome_and_leaves_no_trace(make_bench: Any) -> None:
    bench = make_bench().ready()
    kept = bench.publish(producer=7, epoch=0, sequence=0)
    end = bench.stream.end
    lost = bench.publish(producer=7, epoch=0, sequence=1)
    bench.log.truncate(4)
    assert bench.stream.end == end
    with pytest.raises(OutcomeUnknown):
        lost.result()
    bench.publish(producer=7, epoch=0, sequence=1)  # no duplicate: the original is gone
    bench.log.commit()
    assert kept.result().base_offset == 0
    assert bench.stream.high_watermark == 2


async def test_a_truncation_deeper_than_the_undo_rebuilds_the_producers_from_the_log(
    make_bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("region.topics.producer_table_core.UNDO_MAX", 2)
    bench = make_bench().ready()
    for sequence in range(6):
        bench.publish(producer=7, epoch=0, sequence=sequence)
    bench.log.truncate(5)  # noop, EPOCH and two batches stay
    rows = bench.stream.producers.snapshot()[7].batches
    assert [batch.base_sequence for batch in rows] == [0, 1]


async def test_the_loss_of_leadership_ends_every_waiting_publish_and_wakes_readers(make_bench: Any) -> None:
    bench = make_bench().ready()
    woken: list[int] = []
    bench.stream.add_waiter(lambda: woken.append(1))
    answer = bench.publish()
    bench.log.step_down()
    with pytest.raises(OutcomeUnknown):
        answer.result()
    assert woken == [1]
    bench.log.commit()  # the new leader commits it after all
    assert bench.stream.high_watermark == 1


async def test_a_closed_stream_acknowledges_nothing_any_more(make_bench: Any) -> None:
    bench = make_bench().ready()
    answer = bench.publish()
    bench.stream.close()
    with pytest.raises(OutcomeUnknown):
        answer.result()
    with pytest.raises(NotLeader):
        bench.publish()
    assert bench.budget.bytes_held == 0


async def test_a_mirror_holds_the_bytes_of_the_home(make_bench: Any) -> None:
    home, mirror = make_bench().ready(), make_bench(home=2).ready()
    home.publish(b"a", producer=7, epoch=0, sequence=0)
    home.publish(b"b", count=4)
    home.log.commit()
    for entry in home.stream.tail.read(Offset(0), 1 << 20):
        mirror.stream.append_mirrored(entry.header(), bytes(entry.payload))
    mirror.log.commit()
    assert mirror.stream.end.digest == home.stream.end.digest
    assert mirror.stream.producers.snapshot().keys() == {7}
    copies = mirror.stream.tail.read(Offset(0), 1 << 20)
    assert [copy.stream_part for copy in copies] == [
        entry.stream_part for entry in home.stream.tail.read(Offset(0), 1 << 20)
    ]


async def test_a_committed_entry_that_leaves_a_hole_stops_the_group(make_bench: Any, make_header: Any) -> None:
    bench = make_bench().ready()
    bench.log.append(EntryDraft(header=make_header(base=5), payload=b""))
    with pytest.raises(InvariantBroken):
        bench.log.commit()


async def test_a_committed_entry_of_an_epoch_that_never_began_stops_the_group(make_bench: Any) -> None:
    other, bench = make_bench().ready(), make_bench()
    other.publish()
    draft = EntryDraft(header=other.log.entries[-1].header(), payload=b"")
    entry = seal_entry(draft, term=Term(1), index=RaftIndex(1), previous_chain=0)
    bench.stream.appended(entry)
    with pytest.raises(InvariantBroken):
        bench.stream.applied([entry])


async def test_the_first_leader_opens_epoch_one_and_only_once(make_bench: Any) -> None:
    bench = make_bench().ready()
    bench.log.step_down()
    bench.log.lead()
    assert [entry.type for entry in bench.log.entries] == [EntryType.NOOP, EntryType.EPOCH, EntryType.NOOP]
    assert bench.stream.epoch == 1


async def test_an_epoch_that_could_not_be_opened_is_opened_by_the_first_publish(make_bench: Any) -> None:
    bench = make_bench()
    bench.log.term, bench.log.leads = 2, True
    bench.log.append(EntryDraft(header=bench.stream.noop_header(), payload=b""))
    bench.log.commit()
    bench.log.busy = True
    bench.stream.led(leader=1001, is_leader=True)
    with pytest.raises(Busy):
        bench.publish()
    bench.log.busy = False
    answer = bench.publish()
    bench.log.commit()
    assert answer.result().epoch == 1


async def test_a_new_epoch_cuts_the_orphan_branch_off_and_moves_the_high_watermark_to_its_start(
    make_bench: Any,
) -> None:
    bench = make_bench().ready()
    bench.publish(b"kept")
    digest = bench.stream.end.digest
    bench.publish(b"orphan")
    bench.log.commit()
    woken: list[int] = []
    bench.stream.add_waiter(lambda: woken.append(bench.stream.high_watermark))
    opened = bench.stream.open_epoch(Epoch(2), start=Offset(1), digest=digest, control_index=9)
    bench.log.commit()
    assert (opened.result().epoch, bench.stream.high_watermark, bench.stream.next_offset) == (2, 1, 1)
    assert bench.stream.end.digest == digest
    assert woken == [1]
    bench.publish(b"new")
    bench.log.commit()
    read = bench.stream.tail.read(Offset(0), 1 << 20)
    assert [(entry.base_offset, entry.header().epoch) for entry in read] == [(0, 1), (1, 2)]


async def test_an_epoch_is_appended_once_however_often_it_is_asked_for(make_bench: Any) -> None:
    bench = make_bench().ready()
    digest = bench.stream.end.digest
    twice = [bench.stream.open_epoch(Epoch(2), start=Offset(0), digest=digest, control_index=9) for _ in range(2)]
    bench.log.commit()
    assert [opened.result().epoch for opened in twice] == [2, 2]
    assert [epoch for epoch, _ in bench.stream.epochs.rows()] == [1, 2]
    with pytest.raises(Fenced):
        bench.stream.open_epoch(Epoch(1), start=Offset(0), digest=digest, control_index=9)


async def test_the_end_of_an_epoch_follows_from_committed_epochs_only(make_bench: Any) -> None:
    bench = make_bench().ready()
    bench.publish()
    bench.log.commit()
    bench.publish()
    digest = bench.stream.end.digest
    bench.stream.open_epoch(Epoch(3), start=Offset(2), digest=digest, control_index=9)
    assert bench.stream.epoch_end(Epoch(1)) == (1, 1)
    bench.log.commit()
    assert bench.stream.epoch_end(Epoch(1)) == (1, 2)
    assert bench.stream.epoch_end(Epoch(2)) == (1, 2)
    assert bench.stream.epoch_end(Epoch(0)) == (-1, -1)


async def test_a_mirror_never_gives_its_own_end_for_an_epoch_without_successor(make_bench: Any) -> None:
    assert make_bench(home=2).stream.epoch_end(Epoch(1)) == (-1, -1)
    assert make_bench(home=2).ready().stream.epoch_end(Epoch(1)) == (1, 2**63 - 1)


async def test_an_empty_log_begins_with_the_digest_of_its_name(make_bench: Any) -> None:
    bench = make_bench()
    assert bench.stream.end.digest == first_digest(bench.stream.key)


async def test_a_follower_sees_what_its_leader_sequenced(make_bench: Any) -> None:
    leader, follower = make_bench().ready(), make_bench()
    leader.publish(producer=7, epoch=0, sequence=0)
    leader.publish(count=3)
    leader.log.commit()
    for entry in leader.log.entries:
        follower.stream.appended(entry)
    assert follower.stream.high_watermark == 0
    follower.stream.applied(leader.log.entries)
    assert (follower.stream.end, follower.stream.high_watermark) == (leader.stream.end, 4)
    assert follower.stream.producers.snapshot() == leader.stream.producers.snapshot()


async def test_after_a_restart_the_end_is_known_at_once_and_the_high_watermark_with_the_commit(
    make_bench: Any,
) -> None:
    before, after = make_bench().ready(), make_bench()
    for _ in range(5):
        before.publish()
    before.log.commit()
    for entry in before.log.entries:
        after.stream.recovered(entry)
    assert (after.stream.next_offset, after.stream.high_watermark) == (5, 0)
    after.stream.applied_until(before.log.entries[4])
    assert after.stream.high_watermark == 3
    after.stream.applied(before.log.entries[5:])
    assert (after.stream.high_watermark, after.stream.epoch) == (5, 1)
    assert [entry.base_offset for entry in after.stream.tail.read(Offset(3), 1 << 20)] == [3, 4]
    assert after.stream.tail.read(Offset(2), 1 << 20) is None


async def test_a_full_disk_refuses_new_batches_and_still_answers_duplicates(make_bench: Any) -> None:
    bench = make_bench().ready()
    first = bench.publish(producer=7, epoch=0, sequence=0)
    bench.log.commit()
    bench.disk_writable = False
    entries = len(bench.log.entries)
    with pytest.raises(DiskFull):
        bench.publish(producer=7, epoch=0, sequence=1)
    assert bench.publish(producer=7, epoch=0, sequence=0).result() == first.result()
    assert len(bench.log.entries) == entries
    bench.disk_writable = True
    bench.publish(producer=7, epoch=0, sequence=1)
    bench.log.commit()
    assert bench.stream.high_watermark == 2


async def test_a_mirror_with_a_full_disk_is_busy(make_bench: Any) -> None:
    home, mirror = make_bench().ready(), make_bench(home=2).ready()
    home.publish()
    mirror.disk_writable = False
    with pytest.raises(Busy):
        mirror.stream.append_mirrored(home.log.entries[-1].header(), bytes(home.log.entries[-1].payload))


async def test_a_producer_that_was_silent_for_a_day_is_unknown_by_the_append_time(make_bench: Any) -> None:
    bench = make_bench().ready()
    bench.publish(producer=7, epoch=0, sequence=0)
    bench.clock.now_ns += 25 * 3_600_000_000_000
    with pytest.raises(UnknownProducer):
        bench.publish(producer=7, epoch=0, sequence=1)
    bench.publish(producer=7, epoch=0, sequence=0)
    bench.log.commit()
    assert bench.stream.high_watermark == 2


async def test_a_state_that_is_none_stops_the_group(make_bench: Any) -> None:
    class Taken:
        index = RaftIndex(3)
        state = b"\x01garbage"

    with pytest.raises(InvariantBroken):
        make_bench().stream.restore(Taken())


async def test_a_truncation_deeper_than_the_undo_rebuilds_from_the_state_that_was_restored(
    make_bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = make_bench().ready(), make_bench()
    for sequence in range(4):
        before.publish(producer=7, epoch=0, sequence=sequence)
    before.log.commit()

    class Taken:
        index = RaftIndex(len(before.log.entries))
        state = before.stream.snapshot()

    monkeypatch.setattr("region.topics.producer_table_core.UNDO_MAX", 1)
    after.stream.restore(Taken())
    after.log.entries = list(before.log.entries)
    for sequence in range(4, 8):
        before.publish(producer=7, epoch=0, sequence=sequence)
        after.log.entries.append(before.log.entries[-1])
        after.stream.appended(before.log.entries[-1])
    after.log.applied = len(before.log.entries) - 4
    after.log.entries = after.log.entries[: after.log.applied + 4]
    del after.log.entries[: after.log.applied]  # the disk holds nothing below the state
    after.stream.truncated(RaftIndex(after.log.applied + 2), after.log.entries[0])
    rows = after.stream.producers.snapshot()[7].batches
    assert [batch.base_sequence for batch in rows] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("uncommitted", [2, 5])
async def test_a_state_holds_no_batch_above_the_commit_however_many_there_are(
    make_bench: Any, monkeypatch: pytest.MonkeyPatch, uncommitted: int
) -> None:
    monkeypatch.setattr("region.topics.producer_table_core.UNDO_MAX", 3)
    bench = make_bench().ready()
    for sequence in range(3):
        bench.publish(producer=7, epoch=0, sequence=sequence)
        bench.log.commit()
    at_commit = bench.stream.snapshot()
    committed = len(bench.log.entries)
    for sequence in range(3, 3 + uncommitted):
        bench.publish(producer=7, epoch=0, sequence=sequence)
    assert bench.stream.snapshot() == at_commit
    bench.log.truncate(committed + 1)
    again = bench.publish(producer=7, epoch=0, sequence=3)
    assert not again.done()  # no duplicate of what was cut off
    bench.log.commit()
    assert again.result().base_offset == 3


async def test_a_truncation_of_everything_above_a_restored_state_leads_back_to_that_state(make_bench: Any) -> None:
    before, after = make_bench().ready(), make_bench()
    before.publish(producer=7, epoch=0, sequence=0)
    before.log.commit()

    class Taken:
        index = RaftIndex(len(before.log.entries))
        state = before.stream.snapshot()

    after.stream.restore(Taken())
    before.publish(producer=7, epoch=0, sequence=1)
    after.stream.appended(before.log.entries[-1])
    after.stream.truncated(RaftIndex(Taken.index + 1), None)  # the log holds nothing below the state
    assert after.stream.snapshot() == Taken.state
    assert (after.stream.end, after.stream.next_offset) == (before.stream.applied_end, 1)
    assert not after.stream.producers.truncated(Taken.index)  # what the state holds is never taken back


async def test_with_the_time_of_the_append_a_batch_is_stamped_and_a_duplicate_is_still_one(make_bench: Any) -> None:
    bench = make_bench().ready()
    bench.stream.uses_append_time = True
    first = bench.publish(producer=7, epoch=0, sequence=0, count=2)
    append_ms = bench.stream.end.append_us // 1000
    bench.clock.now_ns += 10**12
    again = bench.publish(producer=7, epoch=0, sequence=0, count=2)
    bench.log.commit()
    assert again.result() == first.result()
    (entry,) = (entry for entry in bench.log.entries if entry.record_count == 2)
    header = validate(bytes(entry.payload), from_client=False)  # the checksum is that of the stamped bytes
    assert (header.is_log_append_time, header.max_timestamp_ms) == (True, append_ms)
    assert entry.header().max_timestamp_ms == append_ms
    assert bench.stream.bounds.newest.timestamp_ms == append_ms


async def test_a_client_does_not_choose_that_its_time_is_the_time_of_the_append(make_bench: Any) -> None:
    bench = make_bench().ready()
    raw = bytearray(build_batch([RecordDraft(b"v")], timestamps_ms=5))
    forged = stamp_time(raw, validate(raw, from_client=True), append_ms=999)
    bench.stream.publish(Publish(forged, raw, 1, 1))
    bench.log.commit()
    stored = bench.log.entries[-1].payload
    assert [record.timestamp_ms for record in iterate_records(bytes(stored))] == [5]
