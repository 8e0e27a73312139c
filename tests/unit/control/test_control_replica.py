"""What one replica of mesh control says of itself."""

from __future__ import annotations

import asyncio
import errno
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from georelay.clock import SystemClock
from georelay.ids import CONTROLLER_GROUP, BrokerId
from region.control.replica import ControlReplica, ReplicaTools, founder_name
from region.control.state_core import ControlState
from region.log.data_directory import DataDirectory
from region.log.errors import OpenNotDurable
from region.log.filesystem import OsFileSystem
from region.log.flusher import Flusher

STARTED_WITHIN_S = 20


def broken() -> None:
    raise RuntimeError("damage")


def tools_of(data: Path, executor: ThreadPoolExecutor, failed: list[str]) -> ReplicaTools:
    return ReplicaTools(
        mesh_id="mesh",
        data=data,
        clock=SystemClock(),
        rng=random.Random(1),
        file_system=OsFileSystem(),
        executor=executor,
        make_flusher=Flusher,
        election_ms=100,
        post=lambda _broker, _frame: False,
        link_life=lambda _broker: 0,
        failed=failed.append,
    )


async def test_a_replica_whose_group_stopped_hears_no_leader_any_more(tmp_path: Path) -> None:
    stopped: list[str] = []
    with ThreadPoolExecutor(1) as executor:
        tools = tools_of(tmp_path, executor, stopped)
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


class BrokenDisk(OsFileSystem):
    """Whose directories do not become durable."""

    def fsync_directory(self, path: Path) -> None:
        raise OSError(errno.EIO, f"input/output error: {path.name}")


async def test_a_replica_whose_folder_may_not_be_durable_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(OpenNotDurable, match="a write or sync failed"):
        DataDirectory.open(tmp_path / "data", mesh_id="mesh", broker_id=BrokerId(1), fs=BrokenDisk())
    (tmp_path / "control").mkdir()
    with ThreadPoolExecutor(1) as executor, pytest.raises(OpenNotDurable, match="a write or sync failed"):
        ControlReplica(
            founder_name("a" * 32),
            tools=replace(tools_of(tmp_path, executor, []), file_system=BrokenDisk()),
            state=ControlState(()),
            known=(),
            applied=lambda: None,
            led=lambda _is_leader: None,
            stopped=lambda _reason: None,
        )
