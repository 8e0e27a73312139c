"""What a campaign of transactions says about what readers found."""

from __future__ import annotations

from loadtest.campaign.transactions_verdict_core import Fate, judge_pipeline, judge_transactions, read_journal

TOPICS = ("a", "b")
ONE, TWO = ("w", 1), ("w", 2)


def test_whole_committed_transactions_and_missing_aborted_ones_are_exact() -> None:
    verdict = judge_transactions({ONE: Fate.COMMITTED, TWO: Fate.ABORTED}, {"a": [ONE], "b": [ONE]}, topics=TOPICS)
    assert verdict.is_exact
    assert (verdict.committed, verdict.aborted, verdict.unknown) == (1, 1, 0)


def test_an_unknown_transaction_may_be_there_or_not_but_never_half() -> None:
    unknown = {ONE: Fate.UNKNOWN}
    there = judge_transactions(unknown, {"a": [ONE], "b": [ONE]}, topics=TOPICS)
    absent = judge_transactions(unknown, {}, topics=TOPICS)
    half = judge_transactions(unknown, {"a": [ONE]}, topics=TOPICS)
    assert (there.is_exact, there.resolved) == (True, 1)
    assert (absent.is_exact, absent.resolved) == (True, 0)
    assert half.torn == (ONE,)
    assert not half.is_exact


def test_what_was_told_must_stay_true() -> None:
    fates = {ONE: Fate.COMMITTED, TWO: Fate.ABORTED}
    verdict = judge_transactions(fates, {"a": [TWO], "b": [TWO]}, topics=TOPICS)
    assert (verdict.lost, verdict.raised, verdict.is_exact) == ((ONE,), (TWO,), False)


def test_records_that_are_there_twice_or_belong_to_nobody_are_counted() -> None:
    verdict = judge_transactions({ONE: Fate.COMMITTED}, {"a": [ONE, ONE, TWO], "b": [ONE, TWO]}, topics=TOPICS)
    assert (verdict.repeated, verdict.foreign, verdict.is_exact) == (1, 1, False)


def test_a_pipeline_is_exact_when_each_input_came_out_once() -> None:
    assert judge_pipeline(range(3), [2, 0, 1]).is_exact
    wrong = judge_pipeline(range(3), [0, 0, 9])
    assert (wrong.missing, wrong.repeated, wrong.foreign, wrong.is_exact) == (2, 1, 1, False)


def test_a_journal_that_a_crash_tore_says_what_its_whole_lines_say() -> None:
    journal = read_journal("begin 0\ncommitted 0\nbegin 1\naborted 1\nbegin 2\ncommit")
    assert journal.fates == {0: Fate.COMMITTED, 1: Fate.ABORTED, 2: Fate.UNKNOWN}
    assert journal.following == 3
    assert read_journal("").following == 0
