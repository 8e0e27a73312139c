"""What one replica of mesh control says of itself."""

from __future__ import annotations

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from georelay.clock import SystemClock
from georelay.ids import CONTROLLER_GROUP
from region.control.replica import ControlReplica, ReplicaTools, founder_name
from region.control.state_core import ControlState
from region.log.filesystem import OsFileSystem
from region.log.flusher import Flusher

STARTED_WITHIN_S = 20


def broken() -> None:
    raise RuntimeError("damage")


async def test_a_replica_whose_group_stopped_hears_no_leader_any_more(tmp_path: Path) -> None:
    stopped: list[str] = []
    with ThreadPoolExecutor(1) as executor:
        tools = ReplicaTools(
            mesh_id="mesh",
            data=tmp_path,
            clock=SystemClock(),
            rng=random.Random(1),
            file_system=OsFileSystem(),
            executor=executor,
            make_flusher=Flusher,
            election_ms=100,
            post=lambda _broker, _frame: False,
            link_life=lambda _broker: 0,
            failed=stopped.append,
        )
        replica = ControlReplica(
            founder_name("a" * 32),
            tools=tools,
            state=ControlState(()),
            known=(),
            applied=lambda: None,
            led=lambda _is_leader: None,
            stopped=stopped.append,
        )
        await replica.start()
        try:
            async with asyncio.timeout(STARTED_WITHIN_S):
                await replica.led_once.wait()
            assert replica.hears_leader
            replica.host.guard(replica.host.groups[CONTROLLER_GROUP], broken)
            assert not replica.hears_leader  # its clock stands still: what it heard last stays new for ever
            assert not replica.is_leader
        finally:
            await replica.stop()
    assert stopped == ["RuntimeError('damage')"]
