"""Transactions in one stream: what opens and ends them, where readers of decided records stop, what comes too late."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from georelay.errors import (
    BadRequest,
    Busy,
    InvalidTransactionState,
    NotHome,
    NotLeader,
    OutcomeUnknown,
    OutOfOrderSequence,
    ProducerFenced,
    Unavailable,
    UnknownProducer,
)
from georelay.ids import Offset, RaftIndex
from georelay.wire.control_batch import parse_marker
from georelay.wire.header import parse_header
from mesh.replication.stream_header import EntryType, next_digest
from region.topics.log_start_core import LogStart
from region.topics.producer_rows import encode_producers
from region.topics.skip_core import encode_skip
from region.topics.transaction_lanes import LANE_BATCHES_MAX


async def settled() -> None:
    """Let the tasks of this loop run until nothing is ready."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_the_first_batch_is_stored_when_the_coordinator_has_confirmed_its_transaction(make_bench: Any) -> None:
    bench = make_bench().ready()
    verifier = bench.confirm()
    verifier.gate.clear()
    answer = bench.publish_in_transaction()
    await settled()
    assert (bench.stream.next_offset, verifier.asked) == (0, [("t", 7, 0)])
    verifier.gate.set()
    await settled()
    bench.log.commit()
    assert (await answer).base_offset == 0
    assert bench.stream.last_stable_offset == 0


async def test_batches_behind_the_first_wait_and_are_stored_in_order(make_bench: Any) -> None:
    bench = make_bench().ready()
    verifier = bench.confirm()
    verifier.gate.clear()
    answers = [bench.publish_in_transaction(sequence=row) for row in range(3)]
    verifier.gate.set()
    await settled()
    bench.log.commit()
    assert [(await answer).base_offset for answer in answers] == [0, 1, 2]
    assert len(verifier.asked) == 1


async def test_a_defect_while_a_batch_is_stored_leaves_nobody_waiting(
    make_bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_bench().ready()
    verifier = bench.confirm()
    verifier.gate.clear()
    answers = [bench.publish_in_transaction(sequence=row) for row in range(3)]

    def broken(*_: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(bench.stream.lanes, "_admit", broken)
    verifier.gate.set()
    await settled()
    assert [type(answer.exception()) for answer in answers] == [OutcomeUnknown] * 3


async def test_later_batches_of_an_open_transaction_are_not_confirmed_again(make_bench: Any) -> None:
    bench = make_bench().ready()
    verifier = bench.confirm()
    bench.publish_in_transaction()
    await settled()
    bench.publish_in_transaction(sequence=1)
    assert (bench.stream.next_offset, len(verifier.asked)) == (2, 1)


async def test_a_batch_whose_transaction_was_ended_while_it_was_confirmed_is_refused(make_bench: Any) -> None:
    bench = make_bench().ready()
    verifier = bench.confirm()
    verifier.gate.clear()
    answer = bench.publish_in_transaction()
    bench.mark(is_commit=False)
    verifier.gate.set()  # the coordinator had said yes before it decided
    with pytest.raises(InvalidTransactionState):
        await answer
    bench.log.commit()
    assert bench.stream.last_stable_offset == bench.stream.high_watermark == 1


async def test_a_coordinator_that_was_deposed_confirms_nothing_that_has_ended(make_bench: Any) -> None:
    bench = make_bench().ready()
    bench.confirm({7: 4})  # it still believes that number 4 is open
    bench.mark(number=4)
    with pytest.raises(InvalidTransactionState):
        await bench.publish_in_transaction()


@pytest.mark.parametrize("error", [InvalidTransactionState("no"), ProducerFenced("no")])
async def test_what_the_coordinator_refuses_is_not_stored(make_bench: Any, error: Exception) -> None:
    bench = make_bench().ready()
    bench.confirm().error = error
    answers = [bench.publish_in_transaction(), bench.publish_in_transaction(sequence=1)]
    for answer in answers:
        with pytest.raises(type(error)):
            await answer
    assert bench.stream.next_offset == 0


async def test_a_coordinator_that_cannot_be_asked_makes_the_client_come_again(make_bench: Any) -> None:
    bench = make_bench().ready()
    bench.confirm().error = Unavailable("no leader")
    with pytest.raises(Busy):
        await bench.publish_in_transaction()
    assert bench.stream.next_offset == 0


async def test_too_many_batches_behind_one_question_are_refused(make_bench: Any) -> None:
    bench = make_bench().ready()
    bench.confirm().gate.clear()
    waiting = [bench.publish_in_transaction(sequence=row) for row in range(LANE_BATCHES_MAX)]
    with pytest.raises(Busy):
        bench.publish_in_transaction(sequence=LANE_BATCHES_MAX)
    bench.stream.close()
    assert [isinstance(answer.exception(), NotLeader) for answer in waiting] == [True] * LANE_BATCHES_MAX


async def test_what_waits_when_the_leader_changes_is_refused_and_not_stored(make_bench: Any) -> None:
    bench = make_bench().ready()
    verifier = bench.confirm()
    verifier.gate.clear()
    answer = bench.publish_in_transaction()
    bench.log.step_down()
    verifier.gate.set()
    with pytest.raises(NotLeader):
        await answer
    assert bench.stream.next_offset == 0


async def test_a_retry_of_a_stored_batch_is_answered_after_its_transaction_has_ended(make_bench: Any) -> None:
    bench = make_bench().ready()
    verifier = bench.confirm()
    first = bench.publish_in_transaction()
    await settled()
    bench.mark()
    bench.log.commit()
    again = bench.publish_in_transaction()
    assert again.result() == await first
    assert len(verifier.asked) == 1


async def test_the_last_stable_offset_is_the_first_record_of_the_oldest_open_transaction(make_bench: Any) -> None:
    bench = make_bench().ready()
    bench.confirm()
    bench.publish()
    bench.publish_in_transaction(producer=7)
    await settled()
    bench.publish_in_transaction(producer=8)
    await settled()
    bench.log.commit()
    assert (bench.stream.last_stable_offset, bench.stream.high_watermark) == (1, 3)
    bench.mark(producer=7)
    bench.log.commit()
    assert bench.stream.last_stable_offset == 2
    bench.mark(producer=8)
    bench.log.commit()
    assert bench.stream.last_stable_offset == bench.stream.high_watermark == 5


async def test_a_marker_counts_for_readers_when_it_is_committed_and_wakes_them(make_bench: Any) -> None:
    bench = make_bench().ready()
    bench.confirm()
    bench.publish_in_transaction()
    await settled()
    bench.log.commit()
    seen: list[int] = []
    bench.stream.add_waiter(lambda: seen.append(bench.stream.last_stable_offset))
    done = bench.mark()
    assert (bench.stream.last_stable_offset, done.done()) == (0, False)
    bench.log.commit()
    assert (seen, done.done()) == ([2], True)


async def test_an_aborted_transaction_is_told_to_readers_from_its_first_record_to_its_marker(make_bench: Any) -> None:
    bench = make_bench().ready()
    bench.confirm()
    bench.publish()
    bench.publish_in_transaction(count=2)
    await settled()
    bench.publish()
    bench.mark(is_commit=False)
    bench.log.commit()
    (row,) = bench.stream.aborted_between(Offset(0), Offset(5))
    assert (row.producer_id, row.first_offset, row.last_offset) == (7, 1, 4)
    assert bench.stream.aborted_between(Offset(5), Offset(9)) == []
    assert bench.stream.aborted_between(Offset(0), Offset(1)) == []
    assert [row.producer_id for row in bench.stream.aborted_between(Offset(4), Offset(5))] == [7]


async def test_a_committed_transaction_is_not_told_as_aborted(make_bench: Any) -> None:
    bench = make_bench().ready()
    bench.confirm()
    bench.publish_in_transaction()
    await settled()
    bench.mark()
    bench.log.commit()
    assert bench.stream.aborted_between(Offset(0), Offset(9)) == []


async def test_a_marker_is_an_entry_of_its_own_type_that_owns_one_offset_and_continues_the_digest(
    make_bench: Any,
) -> None:
    bench = make_bench().ready()
    bench.confirm()
    bench.publish_in_transaction(count=3)
    await settled()
    before = bench.stream.end
    bench.mark(number=9, is_commit=False)
    entry = bench.log.entries[-1]
    header = entry.header()
    assert (header.type, header.base_offset, header.record_count) == (EntryType.TXN_MARKER, 3, 1)
    assert (header.producer_id, header.base_sequence, header.max_timestamp_ms) == (-1, -1, -1)
    batch = parse_header(entry.payload)
    assert (batch.base_offset, batch.epoch, batch.is_control, batch.is_transactional) == (3, 1, True, True)
    marker = parse_marker(entry.payload)
    assert (marker.producer_id, marker.is_commit, marker.coordinator_epoch) == (7, False, 9)
    digest = next_digest(before.digest, epoch=header.epoch, first=Offset(3), last=Offset(3), batch=entry.payload)
    assert bench.stream.end.digest == header.digest == digest


async def test_a_marker_that_comes_twice_is_written_once_and_answered_twice(make_bench: Any) -> None:
    bench = make_bench().ready()
    bench.confirm()
    bench.publish_in_transaction()
    await settled()
    first, again = bench.mark(), bench.mark()
    assert (len(bench.log.entries), first.done(), again.done()) == (4, False, False)
    bench.log.commit()
    assert (first.done(), again.done(), bench.mark().done()) == (True, True, True)
    assert len(bench.log.entries) == 4


async def test_a_late_marker_of_the_transaction_before_does_not_end_this_one(make_bench: Any) -> None:
    bench = make_bench().ready()
    numbers = {7: 1}
    bench.confirm(numbers)
    bench.publish_in_transaction()
    await settled()
    bench.mark(number=1)
    numbers[7] = 2
    bench.publish_in_transaction(sequence=1)
    await settled()
    bench.mark(number=1)  # sent by a coordinator that knows nothing of number 2
    bench.log.commit()
    assert bench.stream.last_stable_offset == 2 < bench.stream.high_watermark


async def test_a_marker_without_records_is_written_and_fences_what_is_still_on_its_way(make_bench: Any) -> None:
    bench = make_bench().ready()
    bench.confirm()
    bench.mark(epoch=4)
    bench.log.commit()
    assert bench.stream.high_watermark == 1
    with pytest.raises(ProducerFenced):
        bench.publish_in_transaction(epoch=3)
    with pytest.raises(ProducerFenced):
        bench.publish(producer=7, epoch=3, sequence=0)


async def test_a_marker_of_an_older_epoch_is_refused(make_bench: Any) -> None:
    bench = make_bench().ready()
    bench.mark(epoch=4)
    with pytest.raises(ProducerFenced):
        bench.mark(epoch=3, number=2)


async def test_a_producer_goes_on_with_its_sequence_in_the_next_transaction_of_its_epoch(make_bench: Any) -> None:
    bench = make_bench().ready()
    numbers = {7: 1}
    bench.confirm(numbers)
    bench.publish_in_transaction()
    await settled()
    bench.mark()
    numbers[7] = 2
    with pytest.raises(OutOfOrderSequence):
        bench.publish_in_transaction(sequence=5)
    answer = bench.publish_in_transaction(sequence=1)
    await settled()
    bench.log.commit()
    assert (await answer).base_offset == 2


async def test_after_a_marker_of_a_newer_epoch_that_epoch_begins_with_sequence_0(make_bench: Any) -> None:
    bench = make_bench().ready()
    numbers = {7: 1}
    bench.confirm(numbers)
    bench.publish_in_transaction()
    await settled()
    bench.mark(epoch=1, is_commit=False)
    numbers[7] = 2
    with pytest.raises(OutOfOrderSequence):
        bench.publish_in_transaction(epoch=1, sequence=1)
    bench.publish_in_transaction(epoch=1, sequence=0)
    await settled()
    assert bench.stream.next_offset == 3


async def test_a_plain_batch_of_a_producer_with_an_open_transaction_is_refused(make_bench: Any) -> None:
    bench = make_bench().ready()
    bench.confirm()
    bench.publish_in_transaction()
    await settled()
    with pytest.raises(InvalidTransactionState):
        bench.publish(producer=7, epoch=0, sequence=1)


async def test_a_transactional_batch_needs_a_transactional_id_and_a_producer(make_bench: Any) -> None:
    bench = make_bench().ready()
    bench.confirm()
    with pytest.raises(BadRequest):
        bench.publish_in_transaction(transactional_id=None)


async def test_nothing_transactional_is_stored_while_a_broker_of_the_region_does_not_know_it(make_bench: Any) -> None:
    bench = make_bench(level=2).ready()
    bench.confirm()
    with pytest.raises(Unavailable):
        bench.publish_in_transaction()
    with pytest.raises(Unavailable):
        bench.mark()
    assert bench.stream.next_offset == 0


async def test_a_mirror_region_writes_no_marker(make_bench: Any) -> None:
    bench = make_bench(home=2).ready()
    with pytest.raises(NotHome):
        bench.mark()


async def test_a_marker_is_written_although_the_disk_has_no_room_for_records(make_bench: Any) -> None:
    bench = make_bench().ready()
    bench.confirm()
    bench.publish_in_transaction()
    await settled()
    bench.disk_writable = False
    bench.mark()
    bench.log.commit()
    assert bench.stream.last_stable_offset == bench.stream.high_watermark == 2


async def test_a_truncation_takes_back_what_it_takes_out_of_the_log(make_bench: Any) -> None:
    bench = make_bench().ready()
    verifier = bench.confirm()
    bench.publish_in_transaction()
    await settled()
    bench.log.commit()
    bench.mark(is_commit=False)
    bench.log.truncate(len(bench.log.entries))
    bench.log.commit()
    assert bench.stream.last_stable_offset == 0
    bench.publish_in_transaction(sequence=1)  # still open: nobody is asked
    assert (bench.stream.next_offset, len(verifier.asked)) == (2, 1)
    bench.mark(is_commit=True)
    bench.log.commit()
    assert (bench.stream.last_stable_offset, bench.stream.aborted_between(Offset(0), Offset(9))) == (3, [])


async def test_a_truncated_first_batch_has_opened_nothing(make_bench: Any) -> None:
    bench = make_bench().ready()
    verifier = bench.confirm()
    bench.publish_in_transaction()
    await settled()
    bench.log.truncate(len(bench.log.entries))
    bench.publish_in_transaction()
    await settled()
    assert len(verifier.asked) == 2


async def test_an_open_transaction_never_keeps_the_log_start_from_moving(make_bench: Any) -> None:
    bench = make_bench().ready()
    bench.confirm()
    bench.publish_in_transaction()
    await settled()
    bench.publish(count=4)
    bench.log.commit()
    start = LogStart(first_index=RaftIndex(1), offset=Offset(3), boundary=Offset(1), digest=bytes(16))
    bench.stream.propose_start(start)
    bench.log.commit()
    assert (bench.stream.log_start, bench.stream.last_stable_offset, bench.stream.high_watermark) == (3, 3, 5)


async def test_aborted_transactions_below_the_log_start_are_forgotten(make_bench: Any) -> None:
    bench = make_bench().ready()
    bench.confirm()
    for producer in (7, 8):
        bench.publish_in_transaction(producer=producer)
        await settled()
        bench.mark(producer=producer, is_commit=False)
    bench.log.commit()
    start = LogStart(first_index=RaftIndex(1), offset=Offset(3), boundary=Offset(3), digest=bytes(16))
    bench.stream.propose_start(start)
    bench.log.commit()
    assert [row.producer_id for row in bench.stream.transactions.committed.aborted] == [8]


async def test_a_mirror_computes_the_same_from_the_same_entries(make_bench: Any) -> None:
    home = make_bench().ready()
    home.confirm()
    for producer in (7, 8):
        home.publish_in_transaction(producer=producer)
        await settled()
    home.mark(producer=8, is_commit=False)
    home.log.commit()
    mirror = make_bench(home=2).ready()
    for entry in home.log.entries:
        if entry.record_count:
            mirror.stream.append_mirrored(entry.header(), bytes(entry.payload))
    mirror.log.commit()
    assert mirror.stream.last_stable_offset == home.stream.last_stable_offset == 0
    assert mirror.stream.transactions.committed.aborted == home.stream.transactions.committed.aborted


async def test_a_mirror_that_skips_forgets_and_shows_no_record_that_is_not_decided(make_bench: Any) -> None:
    home = make_bench().ready()
    home.confirm()
    home.publish_in_transaction()
    await settled()
    home.publish(count=3)
    home.publish_in_transaction(sequence=1)
    home.log.commit()
    mirror = make_bench(home=2).ready()
    payload = encode_skip(epochs=home.stream.epochs.rows(), producers=encode_producers(()))
    digest = home.log.entries[3].header().digest
    mirror.stream.propose_skip(Offset(4), digest=digest, epoch=home.stream.epochs.rows()[-1][0], payload=payload)
    mirror.log.commit()
    last = home.log.entries[-1]
    mirror.stream.append_mirrored(last.header(), bytes(last.payload))
    mirror.log.commit()
    assert (mirror.stream.last_stable_offset, mirror.stream.high_watermark) == (4, 5)
    home.mark(is_commit=False)
    home.log.commit()
    marker = home.log.entries[-1]
    mirror.stream.append_mirrored(marker.header(), bytes(marker.payload))
    mirror.log.commit()
    (row,) = mirror.stream.aborted_between(Offset(4), Offset(6))
    assert (row.first_offset, row.last_offset, mirror.stream.last_stable_offset) == (4, 5, 6)


async def test_when_too_many_were_aborted_no_transaction_is_opened_and_open_ones_go_on(
    make_bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_bench().ready()
    bench.confirm()
    bench.stream.transactions._aborted_max = 2
    bench.publish_in_transaction(producer=7)
    await settled()
    bench.publish_in_transaction(producer=8)
    await settled()
    with pytest.raises(Busy):
        bench.publish_in_transaction(producer=9)
    bench.publish_in_transaction(producer=7, sequence=1)
    assert bench.stream.next_offset == 3


async def test_transactions_that_are_confirmed_together_open_no_more_than_there_is_room_for(make_bench: Any) -> None:
    bench = make_bench().ready()
    verifier = bench.confirm()
    bench.stream.transactions._aborted_max = 2
    verifier.gate.clear()
    answers = [bench.publish_in_transaction(producer=producer) for producer in (7, 8, 9)]
    verifier.gate.set()
    await settled()
    assert bench.stream.next_offset == 2
    with pytest.raises(Busy):
        await answers[2]


async def test_a_question_that_breaks_leaves_nobody_waiting(make_bench: Any) -> None:
    bench = make_bench().ready()

    async def broken(*_: Any, **__: Any) -> int:
        raise RuntimeError("a defect")

    bench.stream.lanes.verifier = broken
    with pytest.raises(Busy):
        await bench.publish_in_transaction()
    bench.confirm()
    bench.publish_in_transaction()
    await settled()
    assert bench.stream.next_offset == 1


async def test_an_open_transaction_outlives_what_is_remembered_of_its_producer(make_bench: Any) -> None:
    bench = make_bench().ready()
    bench.confirm()
    bench.publish_in_transaction()
    await settled()
    bench.log.commit()
    bench.clock.now_ns += 30 * 3_600 * 10**9
    bench.publish()
    bench.log.commit()
    assert (len(bench.stream.producers), bench.stream.last_stable_offset) == (0, 0)
    with pytest.raises(UnknownProducer):
        bench.publish_in_transaction(sequence=1)
    bench.mark(is_commit=False)
    bench.log.commit()
    assert [row.producer_id for row in bench.stream.aborted_between(Offset(0), Offset(9))] == [7]
    assert bench.stream.last_stable_offset == bench.stream.high_watermark


async def test_transactions_are_open_from_their_first_record_in_the_log_to_the_marker_committed_or_not(
    make_bench: Any,
) -> None:
    bench = make_bench().ready()
    bench.confirm()
    bench.publish()
    assert not bench.stream.has_open_transactions
    bench.publish_in_transaction(producer=7)
    await settled()
    assert bench.stream.has_open_transactions
    bench.log.commit()
    assert bench.stream.has_open_transactions
    bench.mark(producer=7)
    assert not bench.stream.has_open_transactions
