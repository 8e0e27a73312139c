"""What is called lost, orphaned and doubled when the home of a topic moved by force."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from loadtest.history.checker_core import check
from loadtest.history.operation import Operation, Outcome
from loadtest.load.orphans_core import Orphans, epoch_of, excused, orphans_of
from loadtest.load.verdict_core import judge_orphans
from tests.unit.loadtest_drill.test_drill_core import AWAY, BOTH, GEO, QUIET, USERS, branch, name, sent, stream


def judged(sends: list[Operation], *branches: dict[str, Any], names: tuple[str, ...] = BOTH) -> Orphans:
    return orphans_of([*sends, *stream(*names)], branches, USERS)


def test_where_everything_is_in_the_stream_nothing_is_broken() -> None:
    found = judged(QUIET)
    assert (found.broken(), found.records, found.unacknowledged) == ([], 0, 0)
    assert judge_orphans(found).is_kept


def test_a_record_that_two_regions_acknowledged_and_no_log_has_is_lost() -> None:
    found = judged([*QUIET, sent(2, row=GEO)])
    assert found.broken() == ["1 records that several regions acknowledged are lost"]
    assert not judge_orphans(found).is_kept


def test_an_orphan_branch_does_not_excuse_the_loss_of_what_two_regions_acknowledged() -> None:
    found = judged([*QUIET, sent(2, row=GEO)], branch((2, 1, name(2, GEO))))
    assert (len(found.geo_lost), found.orphaned) == (1, ())


def test_another_record_at_its_offset_is_a_loss() -> None:
    assert len(judged(QUIET, names=(name(0), name(1, AWAY))).region_lost) == 1


def test_what_was_acknowledged_without_an_offset_is_there_wherever_it_is() -> None:
    untold = replace(sent(2), offset=None, note="")
    assert judged([untold], names=(name(0), name(1), name(2))).region_lost == ()
    assert judged([untold]).region_lost == (untold,)


def test_an_orphan_of_a_later_epoch_counts_where_it_was_acknowledged_in_that() -> None:
    assert judged([*QUIET, sent(2, epoch=3)], branch((2, 3, name(2)))).region_lost == ()


def test_what_the_home_alone_acknowledged_is_counted_in_its_orphan_branch() -> None:
    found = judged([*QUIET, sent(2), sent(3)], branch((2, 1, name(2)), (3, 1, name(3))))
    assert (len(found.orphaned), found.region_lost, found.unacknowledged, found.broken()) == (2, (), 0, [])


@pytest.mark.parametrize(
    "elsewhere",
    [(4, 1, name(2)), (2, 3, name(2)), (2, 1, name(2, AWAY))],
    ids=["offset", "epoch", "publisher"],
)
def test_an_orphan_elsewhere_than_it_was_said_to_be_does_not_count(elsewhere: tuple[int, int, str]) -> None:
    found = judged([*QUIET, sent(2)], branch(elsewhere))
    assert (found.orphaned, len(found.region_lost)) == ((), 1)


def test_an_orphan_of_another_partition_does_not_count() -> None:
    found = judged([*QUIET, sent(2)], branch((2, 1, name(2))) | {"key": "t/1"})
    assert len(found.region_lost) == 1


def test_an_orphan_that_nobody_was_told_of_is_no_loss() -> None:
    found = judged([*QUIET, sent(2, outcome=Outcome.UNKNOWN)], branch((2, 1, name(2))))
    assert (found.unacknowledged, found.strangers, found.broken()) == (1, 0, [])


def test_an_orphan_that_nobody_sent_breaks_a_promise() -> None:
    found = judged(QUIET, branch((2, 1, "stranger-0-us:2")))
    assert found.broken() == ["1 records of orphan branches were sent by nobody"]


def test_a_branch_that_lists_more_than_it_has_breaks_a_promise() -> None:
    found = judged([*QUIET, sent(2, outcome=Outcome.UNKNOWN)], branch((2, 1, name(2)), listed=5))
    assert found.unlisted == 4
    assert len(found.broken()) == 1


def test_an_acknowledged_orphan_that_is_in_the_stream_as_well_breaks_a_promise() -> None:
    names = (*BOTH, name(9, AWAY), name(2))
    found = judged([*QUIET, sent(2)], branch((2, 1, name(2))), names=names)
    assert (found.stored_twice, len(found.broken())) == (1, 1)


def test_the_checker_takes_an_orphan_for_a_record_of_which_nobody_knows_and_no_other() -> None:
    sends = [*QUIET, sent(2), sent(3)]
    operations = [*sends, *stream(*BOTH)]
    orphans = orphans_of(operations, [branch((2, 1, name(2)))], USERS)
    verdict = check(excused(operations, orphans))
    assert {finding.operations[0].value for finding in verdict.findings} == {name(3)}
    assert not check(operations).is_valid
    both = orphans_of(operations, [branch((2, 1, name(2)), (3, 1, name(3)))], USERS)
    assert check(excused(operations, both)).is_valid


def test_an_epoch_is_read_from_the_note_of_an_acknowledgement() -> None:
    assert (epoch_of(sent(0, epoch=7)), epoch_of(sent(0, note=""))) == (7, 0)
