"""What a drill calls lost, orphaned, doubled and late."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadtest.drill.drill_core import SECOND_NS, broken_promises, judge
from loadtest.drill.values import Branch, Fate, Observed, Reading, RecordName, Sent, StoredRecord
from loadtest.wan.heals_core import Delivery

FAULT_NS = 100 * SECOND_NS


def sent(
    number: int, *, at_s: float = 1.0, epoch: int = 1, asked: int = 1, who: str = "p", fate: Fate = Fate.STORED
) -> Sent:
    at_ns = int(at_s * SECOND_NS)
    return Sent(
        name=RecordName(who, number), asked=asked, fate=fate, due_ns=at_ns, at_ns=at_ns, epoch=epoch, offset=number
    )


def stored(offset: int, *, epoch: int = 1, who: str = "p", number: int | None = None) -> StoredRecord:
    return StoredRecord(offset, epoch, RecordName(who, offset if number is None else number))


def branch(*records: StoredRecord, listed: int | None = None) -> Branch:
    return Branch(
        region="us", epoch=2, listed_records=len(records) if listed is None else listed, records=tuple(records)
    )


STREAM = (stored(0), stored(1))
QUIET = Observed(
    sent=[sent(0), sent(1)],
    streams={"us": STREAM, "eu": STREAM, "ap": STREAM},
    branches=[],
    readings=[],
    fault_ns=FAULT_NS,
    old_epoch=1,
    away=frozenset(),
    moves_home=True,
)


def test_a_run_in_which_everything_was_kept_breaks_no_promise() -> None:
    assert broken_promises(judge(QUIET)) == []


def test_a_record_that_two_regions_acknowledged_and_no_log_has_is_lost() -> None:
    found = judge(replace(QUIET, sent=[*QUIET.sent, sent(2, asked=2)]))
    assert (found.geo_lost, found.region_lost) == (1, 0)
    assert broken_promises(found) == ["1 records that several regions acknowledged are lost"]


def test_an_orphan_branch_does_not_excuse_the_loss_of_what_two_regions_acknowledged() -> None:
    found = judge(replace(QUIET, sent=[*QUIET.sent, sent(2, asked=2)], branches=[branch(stored(2))]))
    assert found.geo_lost == 1


def test_another_record_at_its_offset_is_a_loss() -> None:
    others = (stored(0), stored(1, who="q"))
    found = judge(replace(QUIET, streams=dict.fromkeys(QUIET.streams, others)))
    assert found.region_lost == 1


def test_what_the_home_alone_acknowledged_is_counted_in_its_orphan_branch() -> None:
    found = judge(replace(QUIET, sent=[*QUIET.sent, sent(2), sent(3)], branches=[branch(stored(2), stored(3))]))
    assert (found.region_orphaned, found.region_lost, found.orphan_unacknowledged) == (2, 0, 0)
    assert broken_promises(found) == []


@pytest.mark.parametrize(
    "elsewhere", [stored(4, number=2), stored(2, epoch=3), stored(2, who="q")], ids=["offset", "epoch", "publisher"]
)
def test_an_orphan_elsewhere_than_it_was_said_to_be_does_not_count(elsewhere: StoredRecord) -> None:
    found = judge(replace(QUIET, sent=[*QUIET.sent, sent(2)], branches=[branch(elsewhere)]))
    assert (found.region_orphaned, found.region_lost) == (0, 1)


def test_an_orphan_that_nobody_was_told_of_is_no_loss() -> None:
    silent = sent(2, fate=Fate.UNKNOWN)
    found = judge(replace(QUIET, sent=[*QUIET.sent, silent], branches=[branch(stored(2))]))
    assert (found.orphan_unacknowledged, found.orphan_strangers) == (1, 0)
    assert broken_promises(found) == []


def test_an_orphan_that_nobody_sent_breaks_a_promise() -> None:
    found = judge(replace(QUIET, branches=[branch(stored(2, who="stranger"))]))
    assert broken_promises(found) == ["1 records of orphan branches were sent by nobody"]


def test_a_branch_that_lists_more_than_it_has_breaks_a_promise() -> None:
    silent = sent(2, fate=Fate.UNKNOWN)
    found = judge(replace(QUIET, sent=[*QUIET.sent, silent], branches=[branch(stored(2), listed=5)]))
    assert found.orphans_unlisted == 4


def test_an_acknowledged_orphan_that_is_in_the_stream_as_well_breaks_a_promise() -> None:
    stream = (*STREAM, stored(2, who="q"), stored(3, epoch=2, number=2))
    observed = replace(
        QUIET,
        sent=[*QUIET.sent, sent(2)],
        streams=dict.fromkeys(QUIET.streams, stream),
        branches=[branch(stored(2))],
    )
    assert judge(observed).stored_twice == 1


def test_a_record_that_is_stored_twice_is_counted() -> None:
    stream = (*STREAM, stored(2, number=1))
    assert judge(replace(QUIET, streams=dict.fromkeys(QUIET.streams, stream))).duplicated == 1


def test_a_record_behind_a_later_one_of_its_publisher_is_out_of_order() -> None:
    stream = (stored(0, number=1), stored(1, number=0), stored(2, who="q", number=0))
    assert judge(replace(QUIET, sent=[], streams=dict.fromkeys(QUIET.streams, stream))).reordered == 1


def test_the_region_whose_log_is_another_one_is_named() -> None:
    found = judge(replace(QUIET, streams=dict(QUIET.streams) | {"ap": STREAM[:1]}))
    assert found.differing == ("ap was read up to 1 records, in others up to 2",)


def test_the_oldest_lost_record_says_how_much_time_was_lost() -> None:
    lost = [sent(2, at_s=97), sent(3, at_s=99), sent(4, at_s=101)]
    found = judge(replace(QUIET, sent=[*QUIET.sent, *lost], branches=[branch(stored(2), stored(3), stored(4))]))
    assert found.rpo_s == 3.0
    assert (found.orphaned_by, found.orphaned_after_fault) == ({"p": 3}, 1)


def test_a_publisher_is_served_again_with_the_first_record_of_the_new_epoch() -> None:
    rows = [sent(0, at_s=99), sent(1, at_s=101), sent(2, at_s=103, epoch=2), sent(3, at_s=104, epoch=2)]
    found = judge(replace(QUIET, sent=rows, away=frozenset({"p"})))
    assert found.rto_s == {"p": 3.0}
    assert found.silence_s == {"p": 2.0}


def test_an_old_home_that_acknowledges_beside_the_new_one_breaks_a_promise() -> None:
    rows = [*QUIET.sent, sent(2, at_s=101), sent(3, at_s=103, epoch=2, who="q"), sent(4, at_s=104)]
    stream = (*STREAM, StoredRecord(3, 2, RecordName("q", 3)))
    orphans = branch(stored(2), stored(4))
    found = judge(replace(QUIET, sent=rows, streams=dict.fromkeys(QUIET.streams, stream), branches=[orphans]))
    assert (found.old_home_s, found.overlap_s) == (4.0, 1.0)
    assert broken_promises(found) == ["the old home acknowledged 1.00 s after the new one had begun to"]


def test_a_kept_record_that_is_acknowledged_again_under_its_old_epoch_is_no_overlap() -> None:
    rows = [sent(0), sent(1, at_s=105), sent(2, at_s=103, epoch=2)]
    stream = (*STREAM, stored(2, epoch=2))
    found = judge(replace(QUIET, sent=rows, streams=dict.fromkeys(QUIET.streams, stream)))
    assert (found.old_home_s, found.overlap_s, broken_promises(found)) == (0.0, None, [])


def test_where_no_home_moves_the_old_epoch_serves_again() -> None:
    rows = [sent(0, at_s=99), sent(1, at_s=101)]
    found = judge(replace(QUIET, sent=rows, away=frozenset({"p"}), moves_home=False))
    assert found.rto_s == {"p": 1.0}


def test_a_publisher_that_was_never_served_again_breaks_a_promise() -> None:
    found = judge(replace(QUIET, away=frozenset({"p"})))
    assert broken_promises(found) == ["p was never answered again"]


def reading(*offsets: int, in_flight: int = 0, moved_to: str = "") -> Reading:
    rows = [Delivery(offset, 0, 0) for offset in offsets]
    return Reading(region="us", deliveries=rows, in_flight=in_flight, moved_to=moved_to)


def test_a_reader_may_get_again_what_it_had_in_flight_when_it_moved() -> None:
    found = judge(replace(QUIET, readings=[reading(0, 1, 1, in_flight=1, moved_to="ap")]))
    assert broken_promises(found) == []
    assert found.readers[0].reordered == 0


def test_a_reader_that_gets_more_again_breaks_a_promise() -> None:
    found = judge(replace(QUIET, readings=[reading(0, 1, 0, 1, in_flight=1, moved_to="ap")]))
    assert broken_promises(found) == ["the reader in us, then ap, got 1 records twice beyond the 1 in flight"]


def test_a_reader_that_misses_a_record_or_gets_it_late_breaks_a_promise() -> None:
    found = judge(replace(QUIET, readings=[reading(1), reading(1, 0)]))
    assert [(row.missing, row.reordered) for row in found.readers] == [(1, 0), (0, 1)]
