"""The manifests for Kubernetes, read as text: `make kubernetes` holds them against the published schemas."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from gateway.config import load_config as load_gateway
from georelay.cli.broker_config import BASE_PORT, LISTENERS, HostMesh, host_toml, parse_region
from region.config import load_config as load_broker

FOLDER: Final = Path(__file__).resolve().parents[3] / "deploy/kubernetes"
BROKERS: Final = (FOLDER / "base/brokers.yaml").read_text()
GATEWAYS: Final = (FOLDER / "base/gateways.yaml").read_text()
REGIONS: Final = ("us", "eu", "ap")


def mesh() -> HostMesh:
    rows = dict(line.split("=", 1) for line in (FOLDER / "base/mesh.env").read_text().splitlines())
    regions = tuple(parse_region(rows[name.upper()]) for name in REGIONS)
    return HostMesh(mesh_id=rows["MESH_ID"], regions=regions, base_port=BASE_PORT)


def test_a_pod_writes_its_file_with_options_that_the_command_has(georelay_words: list[str], tmp_path: Path) -> None:
    assert georelay_words[:2] == ["broker", "config"]
    names = {word.split("=")[0] for word in georelay_words if word.startswith("--")}
    assert names == {"--broker", "--mesh-id", "--region", "--data-dir", "--trace-dir", "--pki", "--users-file"}
    values = dict(word.split("=", 1) for word in georelay_words if word.startswith("--"))
    text = host_toml(
        mesh(), region="eu", number=3, data_dir=values["--data-dir"], pki=values["--pki"],
        users_file=values["--users-file"], trace_dir=values["--trace-dir"],
    )  # fmt: skip
    (tmp_path / "broker.toml").write_text(text)
    config = load_broker(tmp_path / "broker.toml")
    assert config.broker_id == 2003
    assert config.tls.cert_file == "/etc/georelay/pki/broker-2003.crt"


@pytest.fixture
def georelay_words() -> list[str]:
    """The words of the container that writes a broker's file."""
    return re.findall(r"^            - (\S+)$", BROKERS, flags=re.M)


def test_the_ports_of_the_pods_are_those_of_the_written_file() -> None:
    for place, name in enumerate(LISTENERS):
        assert f"{{name: {name}, port: {BASE_PORT + place}}}" in BROKERS
        assert f"{{name: {name}, containerPort: {BASE_PORT + place}}}" in BROKERS


@pytest.mark.parametrize("region", REGIONS)
def test_the_gateway_of_a_region_knows_every_broker_of_the_mesh(region: str) -> None:
    config = load_gateway(FOLDER / f"overlays/{region}/gateway.toml")
    assert (config.mesh_id, config.region) == (mesh().mesh_id, region)
    known = [(row.name, [broker.admin for broker in row.brokers]) for row in config.regions]
    assert known == [(name, [mesh().address(host, "admin") for host in hosts]) for name, hosts in mesh().regions]
    for name in ("http", "kafka", "grpc"):
        port = getattr(config.listen, name).rpartition(":")[2]
        assert f"{{name: {name}, containerPort: {port}}}" in GATEWAYS


@pytest.mark.parametrize("region", REGIONS)
def test_an_overlay_names_its_region(region: str) -> None:
    overlay = (FOLDER / f"overlays/{region}/kustomization.yaml").read_text()
    assert f"REGION={region}]" in overlay and "resources: [../../base]" in overlay


def test_pods_are_shut_in_and_one_is_away_at_a_time() -> None:
    for text in (BROKERS, GATEWAYS):
        for word in ("runAsNonRoot: true", "readOnlyRootFilesystem: true", "capabilities: {drop: [ALL]}"):
            assert word in text
        assert "maxUnavailable: 1" in text and "requiredDuringSchedulingIgnoredDuringExecution" in text
    assert "publishNotReadyAddresses: true" in BROKERS
