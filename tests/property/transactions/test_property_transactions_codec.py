"""Commands and snapshots of transactional ids as bytes: what was written comes back, other bytes are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from georelay.ids import REGION_NUMBER_MAX, RegionNumber, StreamKey
from region.transactions.book_core import TransactionBook, put_command, remove_command
from region.transactions.transaction_core import EPOCH_LAST, NUMBER_LAST, State, Transaction

keys = st.builds(
    StreamKey,
    st.binary(min_size=16, max_size=16),
    st.integers(0, REGION_NUMBER_MAX).map(RegionNumber),
    st.integers(0, 2**31 - 1),
)
rows = st.builds(
    Transaction,
    transactional_id=st.text(max_size=8),
    producer_id=st.integers(0, 2**63 - 1),
    producer_epoch=st.integers(0, EPOCH_LAST + 1),
    last_producer_epoch=st.integers(-1, EPOCH_LAST + 1),
    timeout_ms=st.integers(1, 2**31 - 1),
    state=st.just(State.EMPTY),
    partitions=st.frozensets(keys, max_size=3),
    groups=st.frozensets(st.text(min_size=1, max_size=8), max_size=3),
    number=st.integers(0, NUMBER_LAST),
    version=st.just(1),
)


@given(several=st.lists(rows, max_size=6, unique_by=lambda row: row.transactional_id), removed=st.integers(0, 6))
def test_a_book_that_followed_any_commands_is_read_back_as_it_was(several: list[Transaction], removed: int) -> None:
    book, again = TransactionBook(), TransactionBook()
    for append_us, row in enumerate(several, 1):
        written = book.apply(put_command(row), append_us=append_us)
        assert written == replace(row, started_us=0, updated_us=append_us)
    for row in several[:removed]:
        book.apply(remove_command(row), append_us=9)
    assert {row.transactional_id for row in book} == {row.transactional_id for row in several[removed:]}
    again.restore(book.snapshot())
    assert again.snapshot() == book.snapshot()
    assert sorted(map(repr, again)) == sorted(map(repr, book))


@given(raw=st.binary(max_size=60))
def test_no_bytes_raise_anything_but_a_value_error(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        TransactionBook().apply(raw, append_us=1)
