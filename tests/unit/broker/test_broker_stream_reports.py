"""What operators are shown of streams: producers, with and without a transaction, and bytes by local name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from georelay.ids import StreamKey
from region.broker.stream_reports import producers_of, sizes_of
from region.kafka.operator_views import ProducerInfo, ReplicaSize


def stream(**more: Any) -> Any:
    transactions = SimpleNamespace(committed=SimpleNamespace(ongoing={}, ended={}))
    return SimpleNamespace(transactions=transactions, committed_producers=list, **more)


def state(epoch: int, last_sequence: int, append_us: int) -> Any:
    return SimpleNamespace(epoch=epoch, last_sequence=last_sequence, newest_append_us=append_us)


def test_producers_are_shown_by_id_with_their_newest_batch() -> None:
    shown = stream()
    shown.committed_producers = lambda: [(9, state(1, 41, 5_000_999)), (7, state(0, 3, 4_000_000))]
    assert producers_of(shown) == [
        ProducerInfo(producer_id=7, producer_epoch=0, last_sequence=3, newest_append_ms=4_000),
        ProducerInfo(producer_id=9, producer_epoch=1, last_sequence=41, newest_append_ms=5_000),
    ]


def test_an_open_transaction_is_shown_with_its_first_offset_also_where_no_batch_is_remembered() -> None:
    shown = stream()
    shown.committed_producers = lambda: [(7, state(0, 3, 4_000_000))]
    opened = SimpleNamespace(producer_epoch=2, first_offset=17, append_us=6_000_000)
    shown.transactions.committed.ongoing = {7: opened, 8: opened}
    shown.transactions.committed.ended = {7: SimpleNamespace(number=5)}
    assert producers_of(shown) == [
        ProducerInfo(
            producer_id=7,
            producer_epoch=2,
            last_sequence=3,
            newest_append_ms=4_000,
            transaction_number=5,
            transaction_start=17,
        ),
        ProducerInfo(producer_id=8, producer_epoch=2, last_sequence=-1, newest_append_ms=6_000, transaction_start=17),
    ]


def test_sizes_are_shown_by_the_local_name_in_order() -> None:
    def replica(origin: int, partition: int, size_bytes: int) -> Any:
        key = StreamKey(bytes(16), origin, partition)  # type: ignore[arg-type]
        return stream(key=key, topic="clicks", partition=partition, disk=SimpleNamespace(size_bytes=size_bytes))

    rows = sizes_of(
        [replica(2, 1, 10), replica(1, 0, 30), replica(2, 0, 20)], lambda row, origin: f"{origin}.{row.topic}"
    )
    assert rows == [
        ReplicaSize(topic="1.clicks", partition=0, size_bytes=30),
        ReplicaSize(topic="2.clicks", partition=0, size_bytes=20),
        ReplicaSize(topic="2.clicks", partition=1, size_bytes=10),
    ]
