"""What a group that is let go leaves behind: a vote that is never given twice."""

from __future__ import annotations

from typing import Any

from georelay.ids import BrokerId, GroupId, Term
from region.log.hard_state import HardState
from region.raft.core import VoteRequest

GROUP = GroupId(7)
ME, OTHER, THIRD = BrokerId(1001), BrokerId(1002), BrokerId(1003)


def ask(candidate: BrokerId) -> Any:
    return VoteRequest(from_=candidate, to=ME, term=Term(5), last_index=0, last_term=Term(0))


async def test_a_vote_that_was_not_on_disk_when_its_group_was_closed_is_on_disk_when_that_is_done(
    memory_region: Any,
) -> None:
    (broker,) = await memory_region.add(1)
    group = await broker.open(GROUP, (ME, OTHER, THIRD))
    group.step(ask(OTHER))
    await broker.host.close_group(GROUP)
    assert broker.journal.load()[GROUP] == HardState(Term(5), OTHER)


async def test_a_group_that_never_voted_leaves_no_vote(memory_region: Any) -> None:
    (broker,) = await memory_region.add(1)
    await broker.open(GROUP, (ME, OTHER, THIRD))
    await broker.host.close_group(GROUP)
    assert GROUP not in broker.journal.load()
