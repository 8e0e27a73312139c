"""The rows of bindings' copies: commands as bytes, and that a row only ever moves on."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from georelay.fields import INT64_MAX
from georelay.limits import PARTITIONS_PER_TOPIC_MAX
from mesh.home.home_row import EPOCH_MAX
from region.coordination.coordinators import COORDINATION_LEVEL, MOVES_LEVEL
from region.coordination.part import CommandError
from region.routing.copies_core import (
    COPY_MARK,
    FIRST_EPOCH,
    BeginCopies,
    CopyBook,
    CopyCommand,
    CopyKey,
    CopyRow,
    ForgetCopies,
    HandCopies,
    RenewCopies,
    SaveCopies,
    TakeCopies,
    decode_copy_command,
    encode_copy_command,
    needed_level,
)
from tests.tiers import in_one_test

int64 = st.integers(0, INT64_MAX)
keys = st.builds(CopyKey, st.text(min_size=1, max_size=8), int64, st.text(min_size=1, max_size=8))
rows = st.builds(
    CopyRow,
    producer_id=int64,
    cursor=int64,
    sequence=int64,
    partitions=st.integers(1, PARTITIONS_PER_TOPIC_MAX),
    epoch=st.integers(FIRST_EPOCH, EPOCH_MAX),
)
commands: st.SearchStrategy[CopyCommand] = st.one_of(
    st.builds(BeginCopies, key=keys, row=rows),
    st.builds(SaveCopies, key=keys, row=rows),
    st.builds(RenewCopies, key=keys, row=rows, instead_of=int64),
    st.builds(TakeCopies, key=keys, row=rows),
    st.builds(
        HandCopies,
        key=keys,
        producer_id=int64,
        ended=st.integers(FIRST_EPOCH, EPOCH_MAX),
        epoch=st.integers(FIRST_EPOCH + 1, EPOCH_MAX),
    ),
    st.builds(ForgetCopies, binding=st.text(max_size=8), index=int64),
)
# A world so small that commands meet the rows that others made.
ONE = CopyKey("b", 1, "s")
small_keys = st.sampled_from([ONE, CopyKey("b", 2, "s"), CopyKey("other", 1, "s")])
small = st.integers(1, 3)
small_rows = st.builds(CopyRow, producer_id=small, cursor=small, sequence=small, partitions=st.just(1), epoch=small)
small_commands: st.SearchStrategy[CopyCommand] = st.one_of(
    st.builds(BeginCopies, key=small_keys, row=small_rows),
    st.builds(SaveCopies, key=small_keys, row=small_rows),
    st.builds(RenewCopies, key=small_keys, row=small_rows, instead_of=small),
    st.builds(TakeCopies, key=small_keys, row=small_rows),
    st.builds(HandCopies, key=small_keys, producer_id=small, ended=small, epoch=st.integers(2, 4)),
    st.builds(ForgetCopies, binding=st.just("other"), index=small),
)


@given(command=commands, number=int64)
def test_a_command_is_read_back_as_it_was_with_its_number(command: CopyCommand, number: int) -> None:
    raw = encode_copy_command(command, number)
    assert decode_copy_command(raw) == (command, number)
    assert encode_copy_command(*decode_copy_command(raw)) == raw


@given(several=st.lists(small_commands, max_size=20))
def test_a_row_never_goes_back_to_an_earlier_epoch_or_below_what_its_producer_copied(
    several: list[CopyCommand],
) -> None:
    book = CopyBook()
    for command in several:
        before = book.find(ONE)
        book.apply(command)
        after = book.find(ONE)
        if before is None or after is None:
            assert after is None or (isinstance(command, BeginCopies) and after == command.row)
            continue
        assert after.epoch >= before.epoch
        if after.producer_id == before.producer_id and after.epoch == before.epoch:
            is_renewed = isinstance(command, RenewCopies) and after.sequence == 0
            assert after.cursor >= before.cursor or is_renewed
        if isinstance(command, TakeCopies):
            assert after == before or after.cursor <= before.cursor


@given(several=st.lists(small_commands, max_size=20))
def test_a_book_that_followed_any_commands_is_read_back_as_it_was(several: list[CopyCommand]) -> None:
    book, again = CopyBook(), CopyBook()
    for command in several:
        book.apply(command)
    again.restore(book.to_json())
    assert (len(again), again.to_json()) == (len(book), book.to_json())


def row_of(**fields: int) -> CopyRow:
    """Return the row that the book below has, with other values in some fields."""
    kept = {"producer_id": 1, "cursor": 5, "sequence": 4, "partitions": 2, "epoch": 2}
    return CopyRow(**kept | fields)


@in_one_test(
    ("command", "row"),
    [
        (BeginCopies(key=ONE, row=row_of(cursor=9)), row_of()),
        (SaveCopies(key=ONE, row=row_of(cursor=6)), row_of(cursor=6)),
        (SaveCopies(key=ONE, row=row_of(epoch=3)), row_of(epoch=3)),
        (SaveCopies(key=ONE, row=row_of(cursor=4)), row_of()),
        (SaveCopies(key=ONE, row=row_of(cursor=6, producer_id=2)), row_of()),
        (SaveCopies(key=ONE, row=row_of(cursor=6, epoch=1)), row_of()),
        (RenewCopies(key=ONE, row=row_of(producer_id=2, cursor=0), instead_of=1), row_of(producer_id=2, sequence=0)),
        (RenewCopies(key=ONE, row=row_of(producer_id=2), instead_of=3), row_of()),
        (RenewCopies(key=ONE, row=row_of(producer_id=2, epoch=3), instead_of=1), row_of()),
        (TakeCopies(key=ONE, row=row_of(epoch=3, cursor=3)), row_of(epoch=3, cursor=3, sequence=0)),
        (TakeCopies(key=ONE, row=row_of(epoch=3, cursor=8)), row_of(epoch=3, sequence=0)),
        (TakeCopies(key=ONE, row=row_of(producer_id=2, cursor=3)), row_of()),
        (HandCopies(key=ONE, producer_id=1, ended=2, epoch=3), row_of(epoch=3)),
        (HandCopies(key=ONE, producer_id=2, ended=2, epoch=3), row_of()),
        (HandCopies(key=ONE, producer_id=1, ended=1, epoch=3), row_of()),
        (HandCopies(key=ONE, producer_id=1, ended=2, epoch=2), row_of()),
        (ForgetCopies(binding="b", index=0), row_of()),
        (ForgetCopies(binding="other", index=1), row_of()),
        (ForgetCopies(binding="b", index=1), None),
    ],
)
def test_a_row_moves_on_for_its_own_producer_and_epoch_and_for_nobody_else(
    command: CopyCommand, row: CopyRow | None
) -> None:
    book = CopyBook()
    book.apply(BeginCopies(key=ONE, row=row_of()))
    book.apply(command)
    assert book.find(ONE) == row


@pytest.mark.parametrize(
    "command",
    [
        SaveCopies(key=ONE, row=row_of()),
        RenewCopies(key=ONE, row=row_of(), instead_of=1),
        TakeCopies(key=ONE, row=row_of()),
        HandCopies(key=ONE, producer_id=1, ended=1, epoch=2),
        ForgetCopies(binding="b", index=9),
    ],
    ids=lambda value: type(value).__name__,
)
def test_nothing_but_a_beginning_enters_a_row(command: CopyCommand) -> None:
    book = CopyBook()
    book.apply(command)
    assert len(book) == 0


@pytest.mark.parametrize(
    ("command", "level"),
    [
        (BeginCopies(key=ONE, row=row_of(epoch=1)), COORDINATION_LEVEL),
        (SaveCopies(key=ONE, row=row_of(epoch=1)), COORDINATION_LEVEL),
        (RenewCopies(key=ONE, row=row_of(epoch=1), instead_of=1), COORDINATION_LEVEL),
        (ForgetCopies(binding="b", index=1), COORDINATION_LEVEL),
        (BeginCopies(key=ONE, row=row_of()), MOVES_LEVEL),
        (SaveCopies(key=ONE, row=row_of()), MOVES_LEVEL),
        (RenewCopies(key=ONE, row=row_of(), instead_of=1), MOVES_LEVEL),
        (TakeCopies(key=ONE, row=row_of(epoch=1)), MOVES_LEVEL),
        (HandCopies(key=ONE, producer_id=1, ended=1, epoch=2), MOVES_LEVEL),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_names_an_epoch_waits_until_every_broker_understands_homes_that_move(
    command: CopyCommand, level: int
) -> None:
    assert needed_level(command) == level


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"op": "copy"}, "command 'copy' is unknown"),
        ({"more": 1}, "more"),
        ({"partitions": 0}, "partitions"),
        ({"epoch": 0}, "epoch"),
        ({"stream": ""}, "stream"),
    ],
)
def test_a_command_that_this_version_does_not_know_stops_the_replica(change: dict[str, object], said: str) -> None:
    body = json.loads(encode_copy_command(SaveCopies(key=ONE, row=row_of()), 7)[1:])
    with pytest.raises(CommandError, match=said):
        decode_copy_command(COPY_MARK + json.dumps(body | change).encode())
