"""What is decided for readers that are shown less than what is committed."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from georelay.ids import Epoch, Offset, RaftIndex
from region.topics.closed_transactions_core import ClosedTransactions
from region.topics.epoch_entry_core import EpochCut, StatesBelow
from region.topics.transaction_table_core import Change, Kind, Ongoing, TransactionRows, TransactionTable


class ShownUpTo:
    """Geo acknowledgements that show what the test says."""

    def __init__(self, visible_end: int) -> None:
        self.visible_end = Offset(visible_end)


def closed(*rows: tuple[int, int], **settings: int) -> ClosedTransactions:
    table = ClosedTransactions(**settings)
    for first, marker in rows:
        table.closed(Offset(first), Offset(marker))
    return table


def stable(table: ClosedTransactions, end: int, unstable: int | None = None) -> int:
    return table.stable_before(Offset(end), unstable=None if unstable is None else Offset(unstable))


def test_a_transaction_is_open_up_to_its_marker_and_decided_beyond_it() -> None:
    assert [stable(closed((2, 6)), end) for end in range(9)] == [0, 1, 2, 2, 2, 2, 2, 7, 8]


def test_the_oldest_of_those_that_are_open_counts() -> None:
    assert stable(closed((5, 8), (2, 11), (9, 12)), 7) == 2
    assert stable(closed((5, 8), (9, 12), (3, 14)), 10) == 3
    assert stable(closed((5, 8)), 7, unstable=1) == 1
    assert stable(closed((2, 8)), 7, unstable=5) == 2


def test_what_was_decided_stays_decided_when_more_closed_ones_are_kept_than_may_be() -> None:
    table = closed((0, 1), closed_max=2)
    assert stable(table, 4) == 4
    for first in (4, 6, 8):
        table.closed(Offset(first), Offset(first + 1))
    assert [stable(table, end) for end in (4, 5)] == [4, 4]  # which one is open at 5 is forgotten: readers wait
    assert [stable(table, end) for end in (6, 7, 10)] == [6, 6, 10]
    assert len(table) == 0


def test_below_a_snapshot_nothing_is_decided_until_the_end_has_passed_it() -> None:
    table = ClosedTransactions()
    table.restore(Offset(9))
    assert [stable(table, end) for end in (8, 9)] == [0, 9]


def test_what_is_not_known_after_a_snapshot_is_said_to_be_so_until_the_end_has_passed_it() -> None:
    table = ClosedTransactions()
    table.restore(Offset(9))
    assert [(stable(table, end), table.knows(Offset(end))) for end in (5, 8, 9, 12)] == [
        (0, False), (0, False), (9, True), (12, True),
    ]  # fmt: skip


def test_a_table_that_forgot_for_want_of_room_still_says_what_readers_were_told() -> None:
    table = closed((0, 1), closed_max=1)
    assert stable(table, 4) == 4
    table.closed(Offset(4), Offset(5))
    table.closed(Offset(6), Offset(7))
    assert (stable(table, 5), table.knows(Offset(5))) == (4, True)


async def test_a_home_that_was_restarted_does_not_say_that_everything_is_undecided(make_bench: Any) -> None:
    bench = make_bench().ready()
    bench.confirm()
    bench.publish(count=2)
    bench.publish_in_transaction()
    await turns()
    bench.mark()
    bench.log.commit()
    state = bench.stream.snapshot()
    fresh = make_bench().stream
    fresh.restore(SimpleNamespace(index=bench.stream.commit_index, state=state))
    fresh.geo = ShownUpTo(3)
    assert (fresh.last_stable_offset, fresh.is_last_stable_known) == (0, False)
    fresh.geo.visible_end = Offset(4)
    assert (fresh.last_stable_offset, fresh.is_last_stable_known) == (4, True)


def test_a_cut_takes_back_what_was_decided_by_markers_that_are_gone() -> None:
    table = closed((2, 6))
    assert stable(table, 7) == 7
    table.cut(Offset(4))
    assert [stable(table, end, unstable=2) for end in (3, 4)] == [0, 2]


def test_a_snapshot_without_an_ended_transaction_leaves_nothing_open() -> None:
    table = TransactionTable()
    table.restore(table.rows(log_start=Offset(0), append_us=0), end=Offset(9))
    assert table.stable_before(Offset(5)) == 5
    table.appended(Change(RaftIndex(1), Kind.OPEN, Offset(9), 0, 7, 0, 1))
    table.appended(Change(RaftIndex(2), Kind.COMMIT, Offset(10), 0, 7, 0, 1))
    table.commit(RaftIndex(2), 0)
    table.restore(table.rows(log_start=Offset(0), append_us=0), end=Offset(11))
    assert [table.stable_before(Offset(end)) for end in (10, 11)] == [0, 11]


async def test_a_commit_that_only_the_home_has_is_not_shown(make_bench: Any) -> None:
    bench = make_bench().ready()
    bench.confirm()
    bench.publish(count=2)
    first = bench.publish_in_transaction(count=3)
    await turns()
    bench.mark()
    bench.publish()
    bench.log.commit()
    assert (await first).base_offset == 2
    stream = bench.stream
    assert (stream.high_watermark, stream.last_stable_offset) == (7, 7)
    for end, wanted in ((7, 7), (6, 6), (5, 2), (3, 2), (1, 1)):  # the marker is at 5
        fresh = again(make_bench, bench)
        fresh.geo = ShownUpTo(end)
        assert fresh.last_stable_offset == wanted, end


async def test_an_abort_that_only_the_home_has_hides_its_records_and_names_none(make_bench: Any) -> None:
    bench = make_bench().ready()
    bench.confirm()
    bench.publish_in_transaction(count=3)
    await turns()
    bench.mark(is_commit=False)
    bench.log.commit()
    stream = bench.stream
    stream.geo = ShownUpTo(3)
    assert stream.last_stable_offset == 0
    assert stream.aborted_between(Offset(0), stream.last_stable_offset) == []
    stream.geo.visible_end = Offset(4)
    assert stream.last_stable_offset == 4
    assert [row.first_offset for row in stream.aborted_between(Offset(0), Offset(4))] == [0]


async def test_a_marker_that_a_forced_move_cut_off_was_never_believed(make_bench: Any) -> None:
    bench = make_bench(level=4).ready()
    bench.confirm()
    bench.publish_in_transaction(count=2)
    await turns()
    bench.mark()
    bench.log.commit()
    stream = bench.stream
    stream.geo = ShownUpTo(2)
    assert (stream.high_watermark, stream.last_stable_offset) == (3, 0)
    below = TransactionRows(ongoing=((7, Ongoing(0, Offset(0), 0)),))
    cut = EpochCut(first_index=RaftIndex(1), states=StatesBelow(producers=(), transactions=below))
    stream.open_epoch(Epoch(2), start=Offset(2), digest=bytes(16), control_index=1, cut=cut)  # the marker goes
    bench.log.commit()
    assert (stream.high_watermark, stream.last_stable_offset) == (2, 0)
    bench.mark(is_commit=False, number=2)
    bench.log.commit()
    assert stream.last_stable_offset == 0
    stream.geo.visible_end = Offset(3)
    assert stream.last_stable_offset == 3
    assert [row.first_offset for row in stream.aborted_between(Offset(0), Offset(3))] == [0]


def again(make_bench: Any, bench: Any) -> Any:
    """Return a stream that read the same log from its first entry."""
    fresh = make_bench()
    for entry in bench.log.entries:
        fresh.stream.recovered(entry)
    fresh.stream.applied(bench.log.entries)
    return fresh.stream


async def turns() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def test_a_look_at_a_lower_end_takes_nothing_back_of_what_was_decided_for_a_higher_one() -> None:
    table = closed((2, 6))
    assert [stable(table, end) for end in (8, 4, 8)] == [8, 0, 8]
