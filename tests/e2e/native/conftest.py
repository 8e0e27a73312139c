"""A real region of three broker processes and a gateway, for clients of the SDK.

All tests of this folder share it: each has topics, groups and queues of its own, and waits until brokers that the one
before killed are back.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator

import pytest

from loadtest.mesh_process import MeshProcess
from tests.e2e.real_mesh import wait_until_whole

READY_S = 90.0  # for a broker that was killed, on a busy machine
NUMBERS = itertools.count(1)


@pytest.fixture(scope="package")
def shared_mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeshProcess]:
    """The region; a broker that is killed is started again."""
    directory = tmp_path_factory.mktemp("native")
    process = MeshProcess(directory, regions="us", brokers_per_region=3, arguments=("--restart",))
    asyncio.run(process.__aenter__())
    try:
        yield process
    finally:
        process.stop()


@pytest.fixture
async def mesh(shared_mesh: MeshProcess) -> MeshProcess:
    """The region with all its brokers."""
    await wait_until_whole(shared_mesh, within_s=READY_S)
    return shared_mesh


@pytest.fixture
def topic() -> str:
    """A name that no other test uses; groups and queues of the test may have it too."""
    return f"orders-{next(NUMBERS)}"
