"""A topic that was just made elects its leaders, which takes a fraction of a second: who made it is answered with them.

Clients that read "no leader" ask again after a while only, and some that publish idempotently never do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from region.kafka.ports import NO_LEADER, Cluster

FIRST_LEADERS_WAIT_S: Final = 2.0  # an election or two, also on a busy machine; a region without a quorum elects nobody
POLL_S: Final = 0.01


async def first_leaders(cluster: Cluster, names: Iterable[str], *, wait_s: float = FIRST_LEADERS_WAIT_S) -> None:
    """Return once every partition of these topics has a leader, or when `wait_s` is over."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + min(wait_s, FIRST_LEADERS_WAIT_S)
    waiting = [name for name in names if _lacks_leader(cluster, name)]
    while waiting and loop.time() < until_s:
        await asyncio.sleep(POLL_S)
        waiting = [name for name in waiting if _lacks_leader(cluster, name)]


def _lacks_leader(cluster: Cluster, name: str) -> bool:
    view = cluster.topic(name)
    return view is not None and any(
        cluster.leader_of(name, partition) == NO_LEADER for partition in range(view.partitions)
    )
