"""A benchmark that compares with another checkout measures that checkout's code."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.mesh_process import MeshProcess

PYTHON = """#!/bin/sh
for argument; do
    [ "$last" != --endpoints ] || file="$argument"
    last="$argument"
done
printf '{"path": "%s"}' "$PYTHONPATH" > "$file.new"
mv "$file.new" "$file"
"""


async def test_a_checkout_runs_its_own_code_whatever_is_imported_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/this/checkout")
    python = tmp_path / "old" / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON)
    python.chmod(0o755)
    async with MeshProcess(tmp_path, regions="us", brokers_per_region=1, checkout=tmp_path / "old") as mesh:
        assert mesh.endpoints["path"] == f"{tmp_path}/old:{tmp_path}/old/sdk"
