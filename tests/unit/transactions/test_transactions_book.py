"""The book of transactional ids: what it forgets and keeps, and bytes that are none of its own."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from georelay.fields import FieldError
from georelay.ids import REGION_NUMBER_MAX, RegionNumber, StreamKey
from region.transactions.book_core import TransactionBook, key_of, put_command, remove_command
from region.transactions.transaction_core import State, Transaction

KEY = StreamKey(bytes(range(16)), RegionNumber(2), 3)
ROW = Transaction(transactional_id="t", producer_id=7, producer_epoch=3, timeout_ms=1_000)


def book_of(*names: str) -> TransactionBook:
    book = TransactionBook()
    for append_us, name in enumerate(names, 1):
        book.apply(put_command(replace(ROW, transactional_id=name)), append_us=append_us)
    return book


def test_a_book_lists_its_ids_and_has_a_snapshot_in_their_order_whatever_came_first() -> None:
    one, other = book_of("b", "a", "c"), TransactionBook()
    assert {row.transactional_id for row in one} == {"a", "b", "c"}
    names = [json.loads(line)["id"] for line in one.snapshot().split(b"\n")[1:]]
    assert names == ["a", "b", "c"]
    other.restore(one.snapshot())
    assert (len(other), other.snapshot()) == (3, one.snapshot())


def test_an_id_that_is_removed_leaves_the_snapshot_and_may_come_again() -> None:
    book = book_of("a", "b", "c")
    before = book.snapshot()
    row = book.get("b")
    assert row is not None
    assert book.apply(remove_command(row), append_us=9) is None
    assert b'"b"' not in book.snapshot()
    assert book.apply(remove_command(row), append_us=9) is None
    book.apply(put_command(row), append_us=2)
    assert book.snapshot() == before


def test_a_book_that_is_restored_from_nothing_is_empty() -> None:
    book = book_of("a")
    book.restore(b"")
    assert (len(book), book.snapshot(), book.get("a")) == (0, TransactionBook().snapshot(), None)


def test_the_second_transaction_of_an_id_begins_when_its_own_first_command_is_appended() -> None:
    book = book_of("t")
    steps = (State.ONGOING, State.PREPARE_COMMIT, State.COMPLETE_COMMIT, State.ONGOING)
    started = []
    for version, state in enumerate(steps, ROW.version + 1):
        row = replace(ROW, state=state, version=version, partitions=frozenset({KEY}))
        written = book.apply(put_command(row), append_us=10 * version)
        assert written is not None
        started.append(written.started_us)
    first, last = 10 * (ROW.version + 1), 10 * (ROW.version + 4)
    assert started == [first, first, first, last]


@pytest.mark.parametrize("lines", [("b", "a"), ("a", "a")])
def test_a_snapshot_whose_ids_are_out_of_order_or_there_twice_is_refused(lines: tuple[str, str]) -> None:
    rows = [book_of(name).snapshot().split(b"\n")[1] for name in lines]
    with pytest.raises(ValueError, match=f"'{lines[1]}' is out of order"):
        TransactionBook().restore(b"\n".join((b"1", *rows)))


def test_a_snapshot_of_another_version_is_refused_with_both_versions() -> None:
    with pytest.raises(ValueError, match=r"version b'2' are unknown, this broker reads version 1"):
        TransactionBook().restore(b"2\n{}")


def changed(**fields: Any) -> bytes:
    """Return the command that puts ROW, with other values in some fields."""
    return json.dumps({"put": json.loads(put_command(ROW))["put"] | fields}).encode()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"partitions": ["x"]}, "'x' is no partition"),
        ({"partitions": [["00" * 16, 0]]}, "is no partition"),
        ({"partitions": [["00", 0, 0]]}, "topic id of 32 hexadecimal digits"),
        ({"partitions": [["zz" * 16, 0, 0]]}, "topic id of 32 hexadecimal digits"),
        ({"partitions": [["00 " * 10 + "00", 0, 0]]}, "topic id of 32 hexadecimal digits"),
        ({"partitions": [["AB" * 16, 0, 0]]}, "topic id of 32 hexadecimal digits"),
        ({"partitions": [["00" * 16, True, 0]]}, "topic id of 32 hexadecimal digits"),
        ({"partitions": [["00" * 16, 0, True]]}, "topic id of 32 hexadecimal digits"),
        ({"partitions": [["00" * 16, -1, 0]]}, "origin -1 or partition 0 is out of range"),
        ({"partitions": [["00" * 16, 0, 2**31]]}, "is out of range"),
        ({"groups": [""]}, "a group id is a text of 1 to 1000 characters"),
        ({"groups": ["g" * 1001]}, "a group id is a text of 1 to 1000 characters"),
        ({"groups": [1]}, "a group id is a text of 1 to 1000 characters"),
        ({"more": 1}, "more"),
        ({"state": "none"}, "state"),
    ],
)
def test_a_command_with_a_malformed_field_is_refused_with_what_is_wrong_about_it(
    fields: dict[str, object], said: str
) -> None:
    book = TransactionBook()
    with pytest.raises(FieldError, match=said):
        book.apply(changed(**fields), append_us=1)
    assert len(book) == 0


def test_a_stream_is_named_by_its_three_values_up_to_their_last() -> None:
    last = StreamKey(b"\xff" * 16, RegionNumber(REGION_NUMBER_MAX), 2**31 - 1)
    assert key_of("ff" * 16, REGION_NUMBER_MAX, 2**31 - 1) == last
    with pytest.raises(FieldError, match="out of range"):
        key_of("ff" * 16, REGION_NUMBER_MAX + 1, 0)
