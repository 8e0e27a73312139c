"""What is never copied: markers, and records of transactions that are not decided yet."""

from __future__ import annotations

from georelay.wire.batch import build_batch
from georelay.wire.control_batch import build_marker
from region.routing.binding import Binding
from region.routing.copy_core import copy_of


def test_neither_markers_nor_transactional_batches_are_copied() -> None:
    binding = Binding(name="b", source="s", target="t")
    marker = build_marker(producer_id=7, producer_epoch=0, is_commit=True, coordinator_epoch=1, timestamp_ms=0)
    open_one = build_batch(
        [(b"v", None, ())], timestamps_ms=1, producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True
    )
    assert [copy_of(raw, binding, producer_id=5, sequence=0) for raw in (marker, open_one)] == [None, None]
