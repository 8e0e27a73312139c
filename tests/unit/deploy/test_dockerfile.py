"""The image's recipe, read as text: `make image` builds it where a builder and a base image are."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[3]
BUILD: Final = ROOT / "deploy/docker/build.sh"


def stages() -> dict[str, list[str]]:
    """Return the instructions of each stage, continued lines joined."""
    text = re.sub(r"\\\n\s*", " ", (ROOT / "deploy/docker/Dockerfile").read_text())
    found: dict[str, list[str]] = {"": []}
    stage = ""
    for line in text.splitlines():
        if started := re.fullmatch(r"FROM (\S+) AS (\w+)", line):
            stage = started[2]
            found[stage] = [line]
        elif line and not line.startswith("#"):
            found[stage].append(line)
    return found


@pytest.mark.parametrize("target", ["broker", "gateway"])
def test_a_target_runs_a_command_of_the_wheel_without_a_shell_and_not_as_root(target: str) -> None:
    rows = stages()
    (entry,) = [json.loads(row.removeprefix("ENTRYPOINT ")) for row in rows[target] if row.startswith("ENTRYPOINT")]
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert entry == [f"georelay-{target}"] and entry[0] in scripts
    assert rows[target][0] == f"FROM process AS {target}" and "USER 10001:10001" in rows["process"]
    assert not any(row.startswith(("USER", "RUN")) for row in rows[target])


def test_only_the_release_is_installed_and_only_with_its_hashes() -> None:
    everything = [row for rows in stages().values() for row in rows]
    assert [row for row in everything if row.startswith("ADD")] == ["ADD georelay-${VERSION}.tar.gz /opt/"]
    assert [row for row in everything if row.startswith("COPY")] == [
        "COPY --from=installed /opt/georelay /opt/georelay"
    ]
    (install,) = [row for row in everything if "pip install" in row]
    assert all(word in install for word in ("--no-index", "--isolated", "--require-hashes", "sha256sum --check"))


def test_healthy_means_ready() -> None:
    rows = stages()
    (check,) = [row for row in rows["process"] if row.startswith("HEALTHCHECK")]
    assert json.loads(check[check.index("[") :])[:3] == ["python", "-I", "-c"] and "GEORELAY_READY_URL" in check
    for target in ("broker", "gateway"):
        assert any(re.fullmatch(r"ENV GEORELAY_READY_URL=http://127\.0\.0\.1:\d+/readyz", row) for row in rows[target])


def test_the_base_image_is_an_argument() -> None:
    assert stages()[""] == ["ARG BASE=docker.io/library/debian:bookworm-slim"]
    assert stages()["python"][0] == "FROM ${BASE} AS python"


@pytest.mark.parametrize(
    ("release", "path", "said"),
    [(False, os.environ["PATH"], "Run: make release"), (True, "", "it needs buildah, podman or docker")],
)
def test_what_is_missing_for_an_image_is_one_line(tmp_path: Path, release: bool, path: str, said: str) -> None:
    script = tmp_path / "deploy/docker/build.sh"
    script.parent.mkdir(parents=True)
    script.write_text(BUILD.read_text())
    (tmp_path / "pyproject.toml").write_text('version = "1.0"\n')
    (tmp_path / "dist").mkdir()
    if release:
        (tmp_path / "dist/georelay-1.0.tar.gz").touch()
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("dirname", "sed"):
        (tools / name).symlink_to(f"/usr/bin/{name}")
    ran = subprocess.run(
        ["/bin/bash", str(script)], env={"PATH": f"{tools}:{path}"}, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1 and ran.stderr.count("\n") == 1 and said in ran.stderr
