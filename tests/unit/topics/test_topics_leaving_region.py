"""A region on its way out of the mesh takes no records into streams that began there."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from georelay.errors import PolicyViolation
from georelay.ids import RegionNumber


@pytest.fixture
async def leaving(make_bench: Any) -> Any:
    """The stream of a topic with many homes, in a region that may be on its way out."""
    bench = make_bench()
    bench.stream.key = replace(bench.stream.key, origin=RegionNumber(1))
    bench.is_leaving = False
    bench.stream.is_leaving = lambda: bench.is_leaving
    return bench.ready()


async def test_a_region_that_drains_refuses_records_and_says_where_to_go(leaving: Any) -> None:
    before = leaving.publish()
    leaving.is_leaving = True
    with pytest.raises(PolicyViolation, match="publish to orders in another region"):
        leaving.publish()
    leaving.log.commit()
    assert (await before).base_offset == 0  # what was taken in before is acknowledged
    assert leaving.stream.next_offset == 1


async def test_a_region_that_is_kept_after_all_takes_records_again(leaving: Any) -> None:
    leaving.is_leaving = True
    with pytest.raises(PolicyViolation):
        leaving.publish()
    leaving.is_leaving = False
    answer = leaving.publish()
    leaving.log.commit()
    assert (await answer).base_offset == 0


async def test_transactions_that_are_open_can_be_ended(leaving: Any) -> None:
    leaving.is_leaving = True
    with pytest.raises(PolicyViolation):
        leaving.publish_in_transaction()
    marker = leaving.stream.write_marker(producer_id=7, producer_epoch=0, is_commit=False, number=1)
    leaving.log.commit()
    assert (await marker).base_offset == 0


async def test_a_batch_that_was_stored_before_is_answered_when_it_comes_again(leaving: Any) -> None:
    leaving.publish(producer=7, epoch=0, sequence=0)
    leaving.log.commit()
    leaving.is_leaving = True
    assert (await leaving.publish(producer=7, epoch=0, sequence=0)).base_offset == 0
    with pytest.raises(PolicyViolation):
        leaving.publish(producer=7, epoch=0, sequence=1)
    assert leaving.stream.next_offset == 1


async def test_a_batch_of_a_transaction_that_was_stored_before_is_answered_too(leaving: Any) -> None:
    leaving.confirm()
    first = leaving.publish_in_transaction(sequence=0)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    leaving.log.commit()
    assert (await first).base_offset == 0
    leaving.is_leaving = True
    assert (await leaving.publish_in_transaction(sequence=0)).base_offset == 0
    with pytest.raises(PolicyViolation):
        leaving.publish_in_transaction(sequence=1)


async def test_a_batch_that_waited_for_its_coordinator_is_not_stored_once_the_region_leaves(leaving: Any) -> None:
    verifier = leaving.confirm()
    verifier.gate.clear()
    waiting = leaving.publish_in_transaction()
    leaving.is_leaving = True
    verifier.gate.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert isinstance(waiting.exception(), PolicyViolation)
    assert leaving.stream.next_offset == 0


async def test_a_stream_with_one_home_is_not_meant_its_home_moves_away_before_the_region_drains(
    make_bench: Any,
) -> None:
    bench = make_bench().ready()
    bench.stream.is_leaving = lambda: True
    answer = bench.publish()
    bench.log.commit()
    assert (await answer).base_offset == 0
