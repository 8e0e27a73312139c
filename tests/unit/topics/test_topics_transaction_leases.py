"""A marker is acknowledged as a record is: only by a home that holds its lease."""

from __future__ import annotations

from typing import Any

import pytest

from georelay.errors import OutcomeUnknown, Unavailable


@pytest.fixture
async def leased(make_bench: Any) -> Any:
    """A home that may be moved without being asked, and holds a lease as long as the test says."""
    bench = make_bench().ready()
    bench.holds = True
    bench.stream.lease = lambda: bench.holds
    return bench


async def test_a_home_without_a_lease_writes_no_marker(leased: Any) -> None:
    leased.holds = False
    with pytest.raises(Unavailable, match="lease of orders's home ran out"):
        leased.mark()
    assert leased.stream.next_offset == 0


async def test_a_marker_that_is_committed_after_the_lease_is_not_acknowledged(leased: Any) -> None:
    marker = leased.mark()
    leased.holds = False
    leased.log.commit()
    with pytest.raises(OutcomeUnknown, match="lease"):
        await marker


async def test_a_marker_that_comes_again_is_not_acknowledged_without_a_lease_either(leased: Any) -> None:
    first = leased.mark()
    leased.log.commit()
    assert (await first).base_offset == 0
    leased.holds = False
    with pytest.raises(Unavailable):
        leased.mark()
    leased.holds = True
    again = leased.mark()
    assert again.done()
    assert leased.stream.next_offset == 1


async def test_a_repeated_marker_whose_first_copy_is_not_committed_waits_for_the_lease_too(leased: Any) -> None:
    leased.mark()
    again = leased.mark()
    leased.holds = False
    leased.log.commit()
    with pytest.raises(OutcomeUnknown):
        await again
