"""Which failures that members of a pool were told are false."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

from loadtest.campaign.gossip import Change, Pool


async def test_a_failure_is_false_unless_the_member_was_killed_and_is_not_back() -> None:
    pool = Pool("lan", Path())

    async def kill() -> None:
        part.is_running = False

    part = SimpleNamespace(names=["m1", "m2"], is_running=True, kill=kill)
    pool.parts.append(part)  # type: ignore[arg-type]
    began = time.monotonic()
    await pool.killed("m1")
    pool.whole_at = began + 20.0
    for seconds, name in ((10.0, "m1"), (15.0, "m2")):
        pool.changes.append(Change(began + seconds, "m0", "failed", name))
    assert (pool.false_failures(), pool.parts) == (0, [])
    for seconds, name in ((-1.0, "m1"), (21.0, "m2"), (10.0, "m3")):
        pool.changes.append(Change(began + seconds, "m0", "failed", name))
    pool.changes.append(Change(began + 21.0, "m0", "joined", "m2"))
    assert pool.false_failures() == 3, "one before it was killed, one when it was back, one that nobody killed"
