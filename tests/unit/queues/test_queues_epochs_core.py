"""What a queue believes of a log that may be behind control's table of home epochs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from georelay.ids import Epoch, Offset
from region.queues.epochs_core import are_gaps_sure, is_cut_off

TABLE = [(Epoch(1), Offset(0)), (Epoch(2), Offset(8)), (Epoch(3), Offset(30))]


@pytest.mark.parametrize(
    ("begun", "following", "is_sure"),
    [(1, 8, True), (1, 9, False), (1, 20, False), (2, 30, True), (2, 31, False), (3, 31, True), (3, 900, True)],
)
def test_offsets_without_a_record_are_believed_up_to_the_first_epoch_that_the_log_may_lack(
    begun: int, following: int, is_sure: bool
) -> None:
    """A log of epoch 1 that heard neither of epoch 2 nor of epoch 3 is a branch from offset 8 on, not from 30 on."""
    assert are_gaps_sure(TABLE, [], following, begun=begun) is is_sure


def test_a_record_of_an_epoch_proves_that_it_has_begun_in_the_log() -> None:
    assert are_gaps_sure(TABLE, [(2, 9)], 25)
    assert not are_gaps_sure(TABLE, [(1, 3)], 25)


def test_without_a_table_there_is_one_history() -> None:
    assert are_gaps_sure([], [], 1000)


@given(st.data())
def test_a_record_is_cut_off_exactly_if_a_later_epoch_began_at_it_or_below(data: st.DataObject) -> None:
    """Whatever the history of the homes was, its table says of every offset of every epoch what became of it."""
    table = [(Epoch(1), Offset(0))]
    history: list[tuple[int, str]] = []  # (epoch, name) by offset
    names: list[tuple[int, int, str]] = []  # every record that ever was: (epoch in which it was seen, offset, name)
    for epoch in range(1, data.draw(st.integers(1, 6)) + 1):
        if epoch > 1:
            start = data.draw(st.integers(0, len(history)))
            del history[start:]
            table = [row for row in table if row[1] < start]
            table.append((Epoch(epoch), Offset(start)))
        for _ in range(data.draw(st.integers(0, 3))):
            history.append((epoch, f"{epoch}.{len(names)}.{len(history)}"))
        names += [(epoch, offset, name) for offset, (_, name) in enumerate(history)]
    kept = {name for _, name in history}
    for seen_in, offset, name in names:
        assert is_cut_off(table, offset, known=seen_in) is (name not in kept), (table, seen_in, offset)
