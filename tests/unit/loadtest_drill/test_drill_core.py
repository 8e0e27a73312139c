"""What a drill measures: who was answered again and when, and how much had been promised by then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from loadtest.drill.drill_core import PENDING, SECOND_NS, broken_promises, findings_of
from loadtest.drill.shot import ROLES
from loadtest.history.checker_core import check
from loadtest.history.operation import Kind, Operation, Outcome
from loadtest.load.campaign import Users
from loadtest.load.orphans_core import excused, orphans_of

FAULT_NS = 100 * SECOND_NS
HOME, AWAY, GEO = range(3)
USERS = [Users(kind="native", topics=("t",), durability="geo:2" if row == GEO else "region") for row in range(3)]
KEY = "t/0"


def sent(
    number: int, *, at_s: float = 1.0, epoch: int = 1, row: int = HOME, offset: int | None = None, **more: Any
) -> Operation:
    """Return a record that was acknowledged at its own number; `more`: what is different."""
    at_ns = int(at_s * SECOND_NS)
    plain = Operation(
        process=f"local-{row}-us.0",
        number=number,
        kind=Kind.PRODUCE,
        key=KEY,
        invoked_ns=at_ns,
        completed_ns=at_ns,
        outcome=Outcome.OK,
        value=f"local-{row}-us:{number}",
        offset=number if offset is None else offset,
        note=f"epoch {epoch}",
    )
    return replace(plain, **more)


def stream(*names: str) -> list[Operation]:
    """Return a complete read of two regions."""
    rows = tuple(enumerate(names))
    return [
        Operation(
            process=f"end-complete-{region}",
            number=0,
            kind=Kind.FETCH,
            key=KEY,
            invoked_ns=500 * SECOND_NS,
            completed_ns=501 * SECOND_NS,
            outcome=Outcome.OK,
            site=region,
            position=0,
            records=rows,
            final=True,
        )
        for region in ("us", "eu")
    ]


def branch(*records: tuple[int, int, str], listed: int | None = None) -> dict[str, Any]:
    return {"region": "us", "key": KEY, "listed": len(records) if listed is None else listed, "records": records}


def name(number: int, row: int = HOME) -> str:
    return f"local-{row}-us:{number}"


QUIET = [sent(0), sent(1)]
BOTH = (name(0), name(1))


def found_in(
    sends: Sequence[Operation],
    names: Sequence[str] = BOTH,
    branches: Sequence[dict[str, Any]] = (),
    *,
    away: Sequence[str] = (),
    moves_home: bool = True,
) -> dict[str, Any]:
    operations = [*sends, *stream(*names)]
    orphans = orphans_of(operations, branches, USERS)
    verdict = check(excused(operations, orphans))
    return findings_of(operations, orphans, verdict, USERS, fault_ns=FAULT_NS, away=away, moves_home=moves_home)


def test_a_run_in_which_everything_was_kept_breaks_no_promise() -> None:
    found = found_in(QUIET)
    assert broken_promises(found) == []
    told = (found["sent"], found["region_acknowledged"], found["geo_acknowledged"], found["unanswered"])
    assert told == (2, 2, 0, 0)


def test_what_the_home_and_what_several_regions_acknowledged_is_counted_apart() -> None:
    found = found_in([*QUIET, sent(2, row=GEO), sent(3)])
    assert (found["region_acknowledged"], found["geo_acknowledged"]) == (3, 1)
    assert (found["region_lost"], found["geo_lost"]) == (1, 1)


def test_what_is_in_too_few_regions_is_pending_and_what_was_never_answered_is_not() -> None:
    silent = sent(2, outcome=Outcome.UNKNOWN, offset=None, completed_ns=None, note="")
    few = sent(3, outcome=Outcome.UNKNOWN, note=f"t/0 offset 3 is in us; {PENDING}: resolve it later")
    found = found_in([*QUIET, silent, few])
    assert (found["sent"], found["pending"], found["unanswered"]) == (4, 1, 1)


def test_the_oldest_lost_record_says_how_much_time_was_lost() -> None:
    lost = [sent(2, at_s=97), sent(3, at_s=99), sent(4, at_s=101)]
    found = found_in([*QUIET, *lost], BOTH, [branch(*((number, 1, name(number)) for number in (2, 3, 4)))])
    assert found["rpo_s"] == 3.0
    assert (found["orphaned_by"], found["orphaned_after_fault"], found["region_lost"]) == ({"home": 3}, 1, 0)
    assert found_in([*QUIET, *lost])["rpo_s"] == 3.0, "lost for good is lost as well"


def test_records_that_are_stored_twice_or_behind_a_later_one_are_counted_by_the_checker() -> None:
    assert found_in(QUIET, (*BOTH, name(1)))["duplicated"] == 1
    assert found_in([sent(0, offset=1), sent(1, offset=0)], (name(1), name(0)))["reordered"] == 1


def test_a_publisher_is_served_again_with_the_first_record_of_the_new_epoch() -> None:
    rows = [sent(0, at_s=99), sent(1, at_s=101), sent(2, at_s=103, epoch=2), sent(3, at_s=104, epoch=2)]
    found = found_in(rows, [name(number) for number in range(4)], away=["home"])
    assert found["rto_by_publisher_s"] == {"home": 3.0}
    assert found["silence_s"] == {"home": 2.0}


def test_what_was_acknowledged_before_the_fault_says_which_epoch_is_the_old_one() -> None:
    rows = [sent(0, at_s=99, epoch=4), sent(1, at_s=103, epoch=5), sent(2, at_s=102, epoch=4, row=AWAY)]
    found = found_in(rows, [name(0), name(1), name(2, AWAY)], away=["home", "away-region"])
    assert found["rto_by_publisher_s"] == {"home": 3.0, "away-region": None}
    assert broken_promises(found) == ["away-region was never answered again"]


def test_where_no_home_moves_the_old_epoch_serves_again() -> None:
    rows = [sent(0, at_s=99), sent(1, at_s=101)]
    assert found_in(rows, away=["home"], moves_home=False)["rto_by_publisher_s"] == {"home": 1.0}


def test_an_answer_to_what_was_sent_before_the_fault_does_not_end_it_where_no_home_moves() -> None:
    late = sent(1, at_s=99, completed_ns=FAULT_NS + 1)
    rows = [sent(0), late, sent(2, at_s=107)]
    found = found_in(rows, [name(0), name(1), name(2)], away=["home"], moves_home=False)
    assert found["rto_by_publisher_s"] == {"home": 7.0}


def test_an_old_home_that_acknowledges_beside_the_new_one_breaks_a_promise() -> None:
    rows = [*QUIET, sent(2, at_s=101), sent(3, at_s=103, epoch=2, row=AWAY, offset=2), sent(4, at_s=104)]
    orphans = branch((2, 1, name(2)), (4, 1, name(4)))
    found = found_in(rows, (*BOTH, name(3, AWAY)), [orphans])
    assert (found["old_home_s"], found["overlap_s"]) == (4.0, 1.0)
    assert broken_promises(found) == ["the old home acknowledged 1.00 s after the new one had begun to"]
    assert broken_promises(found | {"overlap_s": 0.25}) == []


def test_a_kept_record_that_is_acknowledged_again_under_its_old_epoch_is_no_overlap() -> None:
    rows = [sent(0), sent(1, at_s=105), sent(2, at_s=103, epoch=2)]
    found = found_in(rows, (*BOTH, name(2)))
    assert (found["old_home_s"], found["overlap_s"], broken_promises(found)) == (0.0, None, [])


def test_rows_of_users_have_the_names_of_the_publishers() -> None:
    assert ROLES == ("home", "away-region", "away-geo")
    found = found_in([*QUIET, sent(2, row=GEO, at_s=103, epoch=2)], away=["away-geo"])
    assert found["rto_by_publisher_s"] == {"away-geo": 3.0}
