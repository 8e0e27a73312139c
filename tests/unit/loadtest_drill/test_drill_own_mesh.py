"""The mesh that a drill starts for itself: in a test bed as its user, or on loopback, where nobody signs in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtest.drill.drill_run import DrillPlan, _opened
from loadtest.mesh_process import MeshProcess
from loadtest.wan.wan_mesh import WanMesh


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[MeshProcess]:
    meshes: list[MeshProcess] = []

    async def start(mesh: MeshProcess) -> MeshProcess:
        (mesh.directory / "endpoints.json").write_text(json.dumps({"regions": {"us": {}}, "mesh": "m"}))
        meshes.append(mesh)
        return mesh

    monkeypatch.setattr(MeshProcess, "__aenter__", start)
    return meshes


@pytest.mark.parametrize("is_loopback", [False, True])
async def test_a_drill_can_break_the_mesh_that_it_starts(
    is_loopback: bool, started: list[MeshProcess], tmp_path: Path
) -> None:
    plan = DrillPlan(kind="region-loss", pairs="us-eu=70ms,us-ap=150ms", is_loopback=is_loopback, data=tmp_path)
    async with _opened(plan) as mesh:
        (own,) = started
        assert isinstance(own, WanMesh) is not is_loopback
        assert "--restart" in own._arguments
        assert (mesh.can_kill, mesh.can_cut) == (True, not is_loopback)
        assert mesh.access.run_directory == tmp_path / "mesh" / "run"
        assert mesh.access.user == (own.credentials if isinstance(own, WanMesh) else "")
