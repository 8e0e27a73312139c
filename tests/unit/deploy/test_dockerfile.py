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

from gateway.config import load_config as load_gateway
from region.config import load_config as load_broker

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
    assert [row for row in everything if row.startswith("ADD")] == [
        "ADD georelay-${VERSION}.tar.gz /opt/",
        "ADD georelay-sla-${VERSION}.tar.gz /opt/",
    ]
    assert [row for row in everything if row.startswith("COPY")] == [
        "COPY --from=installed /opt/georelay /opt/georelay",
        "COPY --from=installed_sla /opt/georelay /opt/georelay",
    ]
    installs = [row for row in everything if "pip install" in row]
    assert len(installs) == 2
    for install in installs:
        assert all(word in install for word in ("--no-index", "--isolated", "--require-hashes", "sha256sum --check"))


def test_the_report_has_java_and_its_own_set_and_brokers_have_neither() -> None:
    rows = stages()
    assert any("openjdk-17-jre-headless" in row for row in rows["sla"])
    assert "COPY --from=installed_sla /opt/georelay /opt/georelay" in rows["sla"]
    assert any("-r requirements-sla.txt" in row for row in rows["installed_sla"])
    assert 'ENTRYPOINT ["georelay-sla"]' in rows["sla"] and "USER 10001:10001" in rows["sla"]
    assert rows["process"][0] == "FROM python AS process"
    assert not any("jre" in row for name in ("python", "process", "broker", "gateway") for row in rows[name])


def test_healthy_means_ready() -> None:
    rows = stages()
    (check,) = [row for row in rows["process"] if row.startswith("HEALTHCHECK")]
    assert json.loads(check[check.index("[") :])[:3] == ["python", "-I", "-c"] and "GEORELAY_READY_URL" in check
    for target in ("broker", "gateway"):
        assert any(re.fullmatch(r"ENV GEORELAY_READY_URL=http://127\.0\.0\.1:\d+/readyz", row) for row in rows[target])


def test_the_base_image_is_an_argument() -> None:
    assert stages()[""] == ["ARG BASE=docker.io/library/debian:bookworm-slim"]
    assert stages()["python"][0] == "FROM ${BASE} AS python"


def test_no_target_runs_as_root_and_all_that_run_are_built() -> None:
    rows = stages()
    built = BUILD.read_text()
    for target in ("broker", "gateway", "prometheus", "sla"):
        base = rows[target][0].split()[1]
        assert "USER 10001:10001" in rows[target] or "USER 10001:10001" in rows[base], target
        assert any(row.startswith("ENTRYPOINT [") for row in rows[target])
        assert re.search(rf"targets\+?=\([a-z ]*\b{target}\b", built), target


COMPOSE: Final = ROOT / "deploy/docker/compose.yaml"
REGIONS: Final = ("us", "eu", "ap")


def test_the_containers_of_the_mesh_are_shut_in_and_have_what_was_built() -> None:
    text = COMPOSE.read_text()
    for word in ("read_only: true", "cap_drop: [ALL]", "security_opt: [no-new-privileges]"):
        assert word in text.split("services:")[0]
    services = text.split("services:\n")[1].split("\nvolumes:")[0]
    found = re.findall(r"^  (\w+):\n    <<: \*process\n    image: localhost/georelay-(\w+):", services, flags=re.M)
    assert dict(found) == {
        "us": "broker", "eu": "broker", "ap": "broker", "gateway": "gateway", "prometheus": "prometheus", "sla": "sla",
    }  # fmt: skip
    assert len(found) == len(re.findall(r"^  \w+:$", services, flags=re.M))


def test_the_line_that_starts_the_report_names_its_profile_which_podman_compose_does_not_do_by_itself() -> None:
    text = COMPOSE.read_text()
    (line,) = re.findall(r"^ *# .*(podman-compose .* run .*)$", text, flags=re.M)
    (profile,) = re.findall(r"profiles: \[(\w+)\]", text)
    assert f" --profile {profile} run --rm sla " in line


def test_the_brokers_and_the_gateway_of_the_mesh_in_containers_know_each_other() -> None:
    brokers = {name: load_broker(ROOT / f"deploy/docker/compose/{name}.toml") for name in REGIONS}
    gateway = load_gateway(ROOT / "deploy/docker/compose/gateway.toml")
    for name, broker in brokers.items():
        assert broker.region == name and broker.regions == brokers["us"].regions
        (own,) = broker.own_region.brokers
        assert (own.peers, own.link) == (broker.listen.peers, broker.listen.link)
        assert f'GEORELAY_READY_URL: "http://{broker.listen.admin}/readyz"' in COMPOSE.read_text()
        assert f'"{broker.listen.admin}"' in (ROOT / "deploy/docker/compose/prometheus.yml").read_text()
    known = {row.name: (row.brokers[0].kafka, row.brokers[0].admin) for row in gateway.regions}
    assert known == {name: (broker.listen.kafka, broker.listen.admin) for name, broker in brokers.items()}


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
