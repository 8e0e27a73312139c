"""Every record accounted for: the equation of each stream and reader, and what makes it not add up."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sla.judging.accounts import account_name, accounts_of
from sla.judging.completeness import Completeness
from sla.judging.facts import AccountFacts, Facts, InputFacts, PeriodFacts
from sla.judging.integrity import integrity_section, subjects_of
from sla.judging.judge import judge
from sla.judging.offset_sets import OffsetSet
from sla.judging.verdict import Verdict
from sla.report.measured_tables import accounts_table
from sla.report.model import Account
from sla.targets import IntegrityTarget
from sla.targets_file import load_targets
from tests.sla import judging_facts as build
from tests.sla.judging_facts import reader

WHOLE = Completeness(())
Ranges = tuple[tuple[int, int], ...]


def facts(kind: str, region: str, *ranges: tuple[int, int], records: int = 0, **changes: Any) -> AccountFacts:
    values: dict[str, Any] = {
        "kind": kind, "topic": "orders", "origin": "", "partition": 0, "region": region, "group": "",
        "is_inside": True, "records": records or sum(end - first for first, end in ranges), "is_whole": True,
        "ranges": ranges,
    }  # fmt: skip
    return AccountFacts(**values | changes)


def account(*items: AccountFacts, completeness: Completeness = WHOLE, lost: int = 0) -> Account:
    readers = [reader(dest="eu", lost=lost)] if lost else []
    (row,) = accounts_of(items, completeness, readers=readers)
    return row


def parts(row: Account) -> dict[str, int]:
    names = ("delivered", "pending", "lost", "untraced", "aborted", "expired", "not_asked")
    return {name: value for name in names if (value := getattr(row, name))}


def missing(region: str) -> Completeness:
    return Completeness(
        (
            InputFacts(
                kind="ledger", region=region, files=1, bytes=1, rows=99, quarantined_files=0, missing_rows=1,
                dropped_rows=0, gone_rows=1, writers=("x",), writer_hours=1, silent_writer_hours=0,
            ),
        )
    )  # fmt: skip


def test_what_everybody_got_is_delivered_and_adds_up() -> None:
    row = account(facts("commit", "us", (0, 100)), facts("delivered", "eu", (0, 100)))
    assert (row.home, row.dest, row.published, row.adds_up) == ("us", "eu", 100, True)
    assert parts(row) == {"delivered": 100}
    assert account_name(row) == "orders/0 in eu"


def test_every_record_has_one_name() -> None:
    row = account(
        facts("commit", "us", (0, 100)),
        facts("aborted", "us", (20, 25), (24, 26)),
        facts("expired", "eu", (25, 28)),
        facts("delivered", "eu", (10, 20), (30, 90)),
        lost=2,
    )
    assert parts(row) == {"not_asked": 10, "delivered": 70, "aborted": 6, "expired": 2, "lost": 2, "pending": 10}
    assert (row.published, row.adds_up) == (100, True)


def test_two_readers_of_a_region_are_one_and_groups_are_apart() -> None:
    rows = accounts_of(
        [
            facts("commit", "us", (0, 10)),
            facts("delivered", "eu", (0, 6)),
            facts("delivered", "eu", (5, 10)),
            facts("delivered", "eu", (0, 4), group="billing"),
        ],
        WHOLE,
    )
    assert [(row.group, row.delivered, row.pending) for row in rows[:1]] == [("", 10, 0)]
    assert [(row.group, row.delivered, row.pending) for row in rows[-1:]] == [("billing", 4, 6)]


def test_a_commit_row_that_is_gone_makes_it_not_add_up() -> None:
    whole = [facts("commit", "us", (0, 100)), facts("delivered", "eu", (0, 100))]
    assert account(*whole).adds_up is True
    row = account(facts("commit", "us", (0, 40), (45, 100)), *whole[1:])
    assert (row.published, row.delivered, row.unnamed, row.adds_up) == (95, 100, 5, False)


def test_a_commit_row_that_is_gone_is_noticed_by_the_mirror_when_nobody_was_handed_its_records() -> None:
    row = account(
        facts("commit", "us", (0, 90)), facts("replicated", "eu", (0, 100)), facts("delivered", "eu", (0, 50))
    )
    assert (row.unnamed, row.pending, row.adds_up) == (10, 50, False)


def test_a_delivered_row_that_is_gone_is_a_loss_or_pending() -> None:
    commits = facts("commit", "us", (0, 100))
    hole = facts("delivered", "eu", (0, 40), (45, 100))
    assert parts(account(commits, hole, lost=5)) == {"delivered": 95, "lost": 5}
    assert parts(account(commits, facts("delivered", "eu", (0, 95)))) == {"delivered": 95, "pending": 5}


def test_what_no_session_jumped_over_is_untraced_and_not_lost() -> None:
    hole = [facts("commit", "us", (0, 100)), facts("delivered", "eu", (0, 40), (45, 50), (53, 100))]
    assert parts(account(*hole)) == {"delivered": 92, "untraced": 8}
    assert parts(account(*hole, lost=3)) == {"delivered": 92, "lost": 3, "untraced": 5}


def test_records_of_the_hours_around_the_period_are_no_surplus() -> None:
    row = account(
        facts("commit", "us", (50, 100)),
        facts("commit", "us", (0, 50), (100, 120), is_inside=False),
        facts("replicated", "eu", (49, 103)),
        facts("delivered", "eu", (20, 101)),
    )
    assert (row.published, row.delivered, row.unnamed, row.adds_up) == (50, 50, 0, True)


def test_history_that_was_read_was_published_long_before() -> None:
    row = account(facts("commit", "us", (500, 600)), facts("delivered", "eu", (0, 600)))
    assert (row.published, parts(row), row.adds_up) == (100, {"delivered": 100}, True)


def test_refused_and_undecided_records_stand_beside_the_equation() -> None:
    row = account(
        facts("commit", "us", (0, 10)),
        facts("delivered", "eu", (0, 10)),
        facts("refused", "us", records=3),
        facts("refused", "eu", records=4),
        facts("undecided", "eu", records=2),
    )
    assert (row.published, row.refused, row.undecided, row.adds_up) == (10, 7, 2, True)


def test_a_stream_without_a_reader_has_its_account() -> None:
    row = account(facts("commit", "us", (0, 10)), facts("refused", "us", records=3))
    assert (row.dest, row.published, row.pending, row.refused) == ("", 10, 10, 3)
    assert account_name(row) == "orders/0"


def test_a_home_that_moved_is_named_with_both_regions() -> None:
    row = account(facts("commit", "us", (0, 10)), facts("commit", "eu", (10, 20)), facts("delivered", "ap", (0, 20)))
    assert (row.home, row.published, row.adds_up) == ("eu, us", 20, True)


@pytest.mark.parametrize("region", ["us", "eu"])
def test_with_rows_of_a_ledger_missing_nothing_is_said(region: str) -> None:
    whole = [facts("commit", "us", (0, 100)), facts("delivered", "eu", (0, 100))]
    assert account(*whole, completeness=missing(region)).adds_up is None
    assert account(*whole, completeness=missing("ap")).adds_up is True


@pytest.mark.parametrize("region", ["us", "eu"])
def test_what_no_home_names_is_no_answer_while_rows_of_the_homes_ledger_are_missing(region: str) -> None:
    surplus = [facts("commit", "us", (0, 40), (45, 100)), facts("delivered", "eu", (0, 100))]
    row = account(*surplus, completeness=missing(region))
    assert (row.unnamed, row.adds_up) == (5, None)
    assert account(*surplus, completeness=missing("ap")).adds_up is False


def test_without_any_row_of_a_home_missing_rows_of_anybody_may_be_the_homes() -> None:
    rows = [facts("commit", "us", (0, 1), is_inside=False), facts("delivered", "eu", (0, 100))]
    assert account(*rows, completeness=missing("ap")).adds_up is None
    assert account(*rows).adds_up is False


def test_of_too_many_ranges_nothing_is_said_but_how_many_records_there_are() -> None:
    # Of ranges that are too many only their hull is there.
    rows = [
        facts("commit", "us", (0, 50_000)),
        facts("delivered", "eu", (0, 49_990), records=40_000, is_whole=False),
    ]
    row = account(*rows, lost=5)
    assert (row.published, row.adds_up) == (50_000, None)
    names = ("delivered", "pending", "lost", "untraced", "aborted", "expired", "not_asked", "unnamed")
    assert [getattr(row, name) for name in names] == [None] * 8
    many = account(facts("commit", "us", (0, 9_000), records=7, is_whole=False), facts("delivered", "eu", (0, 7)))
    assert (many.published, many.delivered, many.adds_up) == (7, None, None)
    cells = dict(zip([name for name, _ in accounts_table([row]).columns], accounts_table([row]).rows[0], strict=True))
    assert (cells["delivered"], cells["pending"]) == ("unknown", "unknown")
    assert cells["adds up"] == "unknown: too many holes"


@pytest.mark.parametrize("group", ["", "billing"])
def test_an_account_with_too_many_holes_to_be_added_up_is_a_doubt(group: str) -> None:
    def verdict(*items: AccountFacts) -> tuple[Verdict, str]:
        period = build.period(integrity=(reader(group=group),), accounts=items)
        (subject,) = subjects_of(IntegrityTarget(name="integrity"), period, completeness=WHOLE)
        return subject.verdict, subject.reason

    commit, handed = facts("commit", "us", (0, 50_000)), facts("delivered", "eu", (0, 50_000), group=group)
    assert verdict(commit, handed) == (Verdict.PASS, "")
    other = facts("delivered", "ap", (0, 49_990), records=9, is_whole=False)  # another reader of the stream
    doubt = Verdict.INCONCLUSIVE, "the ledgers name its stream with too many holes to be added up"
    assert verdict(commit, handed, other) == doubt


def pending(items: tuple[AccountFacts, ...], **columns: Any) -> tuple[int, int]:
    """Return what is pending of one reader at the period's end, by its row and in all."""
    period = build.period(accounts=items, integrity=(reader(dest="eu", **columns),))
    section = integrity_section(period, targets=(), completeness=WHOLE)
    return section.readers[0].pending, section.totals.pending


def test_records_committed_after_the_last_delivery_are_pending() -> None:
    # `pending` of the facts is that of the last hour with a delivery: the group was done then, and never came again.
    handed = facts("delivered", "eu", (0, 100))
    assert pending((facts("commit", "us", (0, 1_000_100)), handed)) == (1_000_000, 1_000_000)
    assert pending((facts("commit", "us", (0, 40)), facts("replicated", "eu", (0, 120)), handed)) == (20, 20)
    assert pending((facts("commit", "us", (0, 100)), handed)) == (0, 0)


def test_a_backlog_of_before_the_period_is_pending_also_when_nothing_was_committed_in_it() -> None:
    handed = facts("delivered", "eu", (0, 100))
    assert pending((handed,), pending=7) == (7, 7)
    assert pending((facts("commit", "us", (900, 1_000)), handed), pending=850) == (900, 900)
    assert pending((), pending=7) == (7, 7)


def test_too_many_ranges_still_have_an_end() -> None:
    commits = facts("commit", "us", (0, 500), records=7, is_whole=False)
    assert pending((commits, facts("delivered", "eu", (0, 450), records=3, is_whole=False))) == (50, 50)


RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 8)), max_size=12).map(
    lambda pairs: tuple((first, first + size) for first, size in pairs)
)


def members(ranges: Ranges) -> set[int]:
    return {offset for first, end in ranges for offset in range(first, end)}


@given(RANGES, RANGES)
def test_sets_of_offsets_are_sets(one: Ranges, other: Ranges) -> None:
    mine, others = OffsetSet.union([one]), OffsetSet.union([other])
    assert members(mine.ranges) == members(one)
    assert mine.size == len(members(one))
    assert members(mine.without(others).ranges) == members(one) - members(other)
    assert members(mine.between(10, 30).ranges) == members(one) & set(range(10, 30))
    assert all(end < first for (_, end), (first, _) in zip(mine.ranges, mine.ranges[1:], strict=False))


@given(RANGES, RANGES, RANGES, RANGES, RANGES)
def test_the_equation_holds_for_any_ledgers(
    commits: Ranges, copies: Ranges, aborted: Ranges, expired: Ranges, handed: Ranges
) -> None:
    items = [
        facts("commit", "us", *OffsetSet.union([commits]).ranges),
        facts("replicated", "eu", *OffsetSet.union([copies]).ranges),
        facts("aborted", "us", *OffsetSet.union([aborted]).ranges),
        facts("expired", "eu", *OffsetSet.union([expired]).ranges),
        facts("delivered", "eu", *OffsetSet.union([handed]).ranges),
    ]
    row = account(*items)
    assert row.unnamed is not None
    assert row.published + row.unnamed == sum(parts(row).values())
    assert row.adds_up is (row.unnamed == 0)


def test_spark_adds_up_what_the_ledgers_say(ledger: Any) -> None:
    from sla.transforms.accounts import account_sums, accounts_by_hour

    rows = ledger(
        [(0, 10), (10, 25), (20, 30)],
        committed=[(0, 12), (12, 20), (25, 40)],  # five records of no home
        replicated=[(0, 40)],
        extra=[
            {"kind": "refused", "region": "us", "from_offset": 0, "to_offset": 0, "records": 4},
            {"kind": "refused", "region": "us", "from_offset": 0, "to_offset": 0, "records": 3},
        ],
    )
    sums = account_sums(accounts_by_hour(rows, [0]), start_s=0, end_s=3_600)
    found = [
        AccountFacts(**row.asDict() | {"ranges": tuple((item.f, item.t) for item in row.ranges)})
        for row in sums.collect()
    ]
    (row,) = accounts_of(found, WHOLE)
    assert (row.published, row.delivered, row.pending, row.unnamed, row.refused) == (35, 30, 10, 5, 7)
    assert row.adds_up is False


@pytest.mark.slow
def test_what_a_next_leader_names_again_changes_no_figure_and_what_nobody_had_named_is_added(ledger: Any) -> None:
    from sla.transforms.accounts import accounts_by_hour
    from sla.transforms.streams import mirrors_by_hour, streams_by_hour

    def row(kind: str, first: int, end: int, at_s: int, broker: str) -> dict[str, Any]:
        region = "us" if kind == "commit" else "eu"
        at_ns = at_s * 10**9
        return {
            "kind": kind, "region": region, "broker": broker, "from_offset": first, "to_offset": end,
            "first_ns": at_ns, "last_ns": at_ns,
        }  # fmt: skip

    def figures(rows: list[dict[str, Any]]) -> list[Any]:
        table = ledger(extra=rows)
        made = (
            streams_by_hour(table, [0]),
            mirrors_by_hour(table, None, [0], settle_s=900),
            accounts_by_hour(table, [0]),
        )
        return [sorted(str(row.asDict(recursive=True)) for row in part.collect()) for part in made]

    named = [row(kind, first, first + 10, 100 + first, "1") for kind in ("commit", "replicated") for first in (0, 10)]
    again = [row(kind, *offsets, 99, "2") for kind in ("commit", "replicated") for offsets in ((3, 10), (8, 20))]
    assert figures(named + again) == figures(named)
    late = row("commit", 15, 25, 119, "2")
    assert figures([*named, late]) == figures([*named, row("commit", 20, 25, 119, "1")])


@pytest.mark.slow
def test_of_more_ranges_than_are_added_up_their_hull_is_left(ledger: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from sla.transforms import accounts

    monkeypatch.setattr(accounts, "RANGES_MAX", 2)
    rows = ledger([(5, 6), (7, 8), (9, 12)], committed=[(0, 4), (6, 40)])
    sums = accounts.account_sums(accounts.accounts_by_hour(rows, [0]), start_s=0, end_s=3_600).collect()
    found = {row.kind: (row.records, row.is_whole, [(item.f, item.t) for item in row.ranges]) for row in sums}
    assert found == {"delivered": (5, False, [(5, 12)]), "commit": (38, True, [(0, 4), (6, 40)])}


def test_the_report_says_whether_the_equation_adds_up_and_warns_when_it_does_not() -> None:
    holed = [facts("commit", "us", (0, 6), (8, 10)), facts("delivered", "eu", (0, 10))]
    rows = [
        account(facts("commit", "us", (0, 10)), facts("delivered", "eu", (0, 10))),
        account(*holed, facts("refused", "us", records=4)),
        account(facts("commit", "us", (0, 10)), facts("delivered", "eu", (0, 10)), completeness=missing("us")),
        account(facts("commit", "us", (0, 10))),
    ]
    table = accounts_table(rows)
    names = [name for name, _ in table.columns]
    cells = [dict(zip(names, row, strict=True)) for row in table.rows]
    assert [row["adds up"] for row in cells] == [
        "yes", "no: 2 records more than any home committed", "unknown: rows are missing", "yes",
    ]  # fmt: skip
    assert (cells[1]["published"], cells[1]["delivered"], cells[1]["refused"]) == ("8", "10", "4")
    assert cells[3]["region"] == "nobody reads it"


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_row_that_is_removed_is_a_warning_of_the_report(is_whole: bool) -> None:
    commits = [(0, 100)] if is_whole else [(0, 40), (45, 100)]
    period = build.period(accounts=(facts("commit", "us", *commits), facts("delivered", "eu", (0, 100))))
    nothing = PeriodFacts(span=build.HOUR.previous)
    report = judge(Facts(now=period, before=nothing), load_targets(), made=build.MADE, hours=build.HOURS)
    notes = [note.text for note in report.notes if note.code == "ACCOUNT_OPEN"]
    text = "records were delivered or replicated that no home's ledger names as committed: orders/0 in eu (5)"
    assert notes == ([] if is_whole else [text])
    assert [row.adds_up for row in report.integrity.accounts] == [is_whole]


@pytest.mark.parametrize(
    ("delivered", "group", "doubt"),
    [
        ([(0, 100)], "", ""),
        ([(0, 104)], "", "4 records were delivered or replicated that no home's ledger names as committed"),
        ([(0, 40), (45, 100)], "bills", "5 records between two sessions of the group: nobody says that they were"),
        ([(0, 40), (45, 100)], "", ""),  # who reads without a group begins where it likes
    ],
)
def test_what_an_account_cannot_explain_is_a_doubt_of_its_reader(
    delivered: list[tuple[int, int]], group: str, doubt: str
) -> None:
    rows = (facts("commit", "us", (0, 100)), facts("delivered", "eu", *delivered, group=group))
    reader = build.reader(topic="orders", origin="", partition=0, dest="eu", group=group)
    period = build.period(accounts=rows, integrity=(reader,))
    subject = next(iter(subjects_of(IntegrityTarget(name="i"), period, completeness=WHOLE)))
    assert subject.verdict is (Verdict.INCONCLUSIVE if doubt else Verdict.PASS)
    assert doubt in subject.reason
