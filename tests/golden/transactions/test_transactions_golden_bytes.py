"""The bytes of commands and snapshots of transactions, version 1: in the log for ever."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from georelay.ids import RegionNumber, StreamKey
from region.transactions.book_core import TransactionBook, put_command, remove_command
from region.transactions.transaction_core import State, Transaction

GOLDEN = Path(__file__).parent / "transactions.txt"
EMPTY = Transaction(transactional_id="orders-é\n", producer_id=(2 << 48) | 5, producer_epoch=0, timeout_ms=60_000)
ONGOING = Transaction(
    transactional_id="orders-é\n",
    producer_id=(2 << 48) | 5,
    producer_epoch=0,
    timeout_ms=60_000,
    state=State.ONGOING,
    partitions=frozenset({StreamKey(bytes(range(16)), RegionNumber(3), 11), StreamKey(bytes(16), RegionNumber(0), 2)}),
    groups=frozenset({"billing", "audit"}),
    number=1,
    version=2,
)
OTHER = Transaction(
    transactional_id="b", producer_id=9, producer_epoch=32_767, last_producer_epoch=3, timeout_ms=1, version=1
)

OWNED = replace(OTHER, transactional_id="c", principal="User:alice")


def snapshot() -> bytes:
    book = TransactionBook()
    for row, append_us in ((EMPTY, 1_700_000_000_000_000), (ONGOING, 1_700_000_000_000_001), (OTHER, 5)):
        book.apply(put_command(row), append_us=append_us)
    return book.snapshot()


def owned() -> bytes:
    """Return a snapshot in which somebody owns an id."""
    book = TransactionBook()
    book.apply(put_command(OWNED), append_us=5)
    return book.snapshot()


ROWS = {
    "put": put_command(ONGOING),
    "remove": remove_command(OTHER),
    "snapshot": snapshot(),
    "put-owned": put_command(OWNED),
    "snapshot-owned": owned(),
}


def golden() -> dict[str, bytes]:
    return {name: bytes.fromhex(raw) for name, raw in (line.split() for line in GOLDEN.read_text().splitlines())}


def test_the_bytes_are_those_of_version_1(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--rewrite"):
        GOLDEN.write_text("".join(f"{name} {raw.hex()}\n" for name, raw in ROWS.items()))
    assert golden() == ROWS


def test_a_snapshot_of_version_1_is_restored_to_the_same_transactions() -> None:
    book = TransactionBook()
    book.restore(golden()["snapshot"])
    found = {row.transactional_id: row for row in book}
    assert found["orders-é\n"].partitions == ONGOING.partitions
    assert found["orders-é\n"].groups == ONGOING.groups
    assert found["orders-é\n"].started_us == 1_700_000_000_000_001
    assert found["b"].producer_epoch == 32_767
    assert book.snapshot() == golden()["snapshot"]


def test_a_snapshot_that_says_whose_an_id_is_is_restored_with_it() -> None:
    book = TransactionBook()
    book.restore(golden()["snapshot-owned"])
    assert [row.principal for row in book] == ["User:alice"]
    assert (book.ids.held_by("User:alice"), book.snapshot()) == (1, golden()["snapshot-owned"])
