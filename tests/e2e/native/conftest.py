"""A real region of three broker processes and a gateway, for clients of the SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from loadtest.mesh_process import MeshProcess


@pytest.fixture
async def mesh(tmp_path: Path) -> AsyncIterator[MeshProcess]:
    process = MeshProcess(tmp_path, regions="us", brokers_per_region=3, arguments=("--restart",))
    async with process as running:
        yield running
