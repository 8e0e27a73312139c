"""A transaction that nobody knows any more, for its coordinator's record was lost with a region: how readers go on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from georelay.errors import InvalidTransactionState


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_restarted_producer_of_the_same_id_frees_the_readers_and_shows_nothing_of_what_was_lost(
    make_bench: Any,
) -> None:
    bench = make_bench().ready()
    bench.confirm()
    bench.publish_in_transaction()
    await settled()
    bench.log.commit()
    assert bench.stream.last_stable_offset == 0
    # The coordinator's new home knows the id and its producer, but no open transaction: it gives out the next epoch.
    with pytest.raises(InvalidTransactionState, match="begins when it is ended"):
        await bench.publish_in_transaction(epoch=1)
    # The producer, or its timeout, aborts that second transaction; the marker goes to every partition in it.
    bench.mark(epoch=1, is_commit=False, number=1)
    bench.log.commit()
    assert bench.stream.last_stable_offset == bench.stream.high_watermark == 2
    assert [(row.first_offset, row.last_offset) for row in bench.stream.aborted_between(0, 2)] == [(0, 1)]
