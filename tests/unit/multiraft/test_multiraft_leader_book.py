"""Hints are kept by term, hidden while their leader is out of reach, and refused when they are no rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from georelay.ids import BrokerId, GroupId, Term
from georelay.limits import GROUPS_PER_BROKER_MAX
from region.multiraft.leader_book import LeaderBook, decode_hints, encode_hints

GROUP, ONE, TWO = GroupId(1), BrokerId(1001), BrokerId(1002)


def test_an_unknown_leader_is_minus_one() -> None:
    assert LeaderBook().leader(GROUP) == -1


def test_a_newer_term_replaces_an_older_one_and_never_the_reverse() -> None:
    book = LeaderBook()
    book.learn(GROUP, Term(2), ONE)
    book.learn(GROUP, Term(1), TWO)
    assert book.leader(GROUP) == ONE
    book.learn(GROUP, Term(3), TWO)
    assert book.leader(GROUP) == TWO


def test_the_version_moves_with_every_change_and_only_then() -> None:
    book = LeaderBook()
    versions = [book.version]
    changes: list[Callable[[], None]] = [
        partial(book.learn, GROUP, Term(2), ONE),
        partial(book.lost, ONE),
        partial(book.found, ONE),
        partial(book.forget, GROUP),
    ]
    for change in changes:
        change()
        change()  # the same again is no news
        versions.append(book.version)
    assert versions == [0, 1, 2, 3, 4]


def test_a_leader_that_was_only_silent_leads_again_when_it_is_heard() -> None:
    book = LeaderBook()
    book.learn(GROUP, Term(2), ONE)
    book.lost(ONE)
    assert book.leader(GROUP) == -1
    book.found(ONE)
    assert book.leader(GROUP) == ONE


def test_a_successor_is_known_although_the_old_leader_is_out_of_reach() -> None:
    book = LeaderBook()
    book.learn(GROUP, Term(2), ONE)
    book.lost(ONE)
    book.learn(GROUP, Term(3), TWO)
    assert book.leader(GROUP) == TWO


def test_a_removed_group_has_no_leader() -> None:
    book = LeaderBook()
    book.learn(GROUP, Term(2), ONE)
    book.forget(GROUP)
    assert book.leader(GROUP) == -1


@given(
    st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)), max_size=20)
)
def test_hints_come_back_as_they_went(rows: list[tuple[GroupId, Term, BrokerId]]) -> None:
    assert decode_hints(memoryview(encode_hints(rows))) == rows


def test_hints_that_are_no_whole_rows_or_too_many_are_refused() -> None:
    for wrong in (bytes(15), bytes(16 * (GROUPS_PER_BROKER_MAX + 1))):
        with pytest.raises(ValueError, match="hints"):
            decode_hints(wrong)
