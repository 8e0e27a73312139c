"""A development mesh inside a WAN test bed: addresses, certificates, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest
from typer.testing import CliRunner

from georelay.cli.application import build_app
from georelay.errors import ConfigError
from georelay.pki.directory import PkiDirectory
from mesh.testbed.bed_process import BedProcess
from mesh.testbed.plan_core import BedPlan, parse_wan
from region.devmesh import command
from region.devmesh.certificates import prepare
from region.devmesh.placement import hosts_in
from region.devmesh.plan_core import MeshPlan, MeshRecord, new_record, plan
from region.devmesh.session import Progress, UpOptions, run


@dataclass
class FakeBed:
    plan: BedPlan


def bed(slot: int = 0, addresses: int = 9) -> BedProcess:
    spec = parse_wan("us-eu=70ms")
    return cast(BedProcess, FakeBed(BedPlan(name="dev", slot=slot, spec=spec, token="t", addresses=addresses)))


def record(brokers_per_region: int = 3) -> MeshRecord:
    return new_record(mesh_id="m", regions=("us", "eu"), brokers_per_region=brokers_per_region, base_port=21_000)


def layout(slot: int = 0) -> MeshPlan:
    return plan(record(), hosts_in(bed(slot), record()))


def test_every_broker_has_an_address_of_its_region_and_the_gateway_is_in_the_hub() -> None:
    found = layout(slot=1)
    assert [broker.host for broker in found.brokers] == [
        *(f"198.18.17.{number}" for number in (1, 2, 3)),
        *(f"198.18.18.{number}" for number in (1, 2, 3)),
    ]
    assert found.gateway.http.startswith("198.19.16.1:")


def test_ports_are_those_of_a_mesh_on_loopback() -> None:
    ports = [broker.kafka.rpartition(":")[2] for broker in layout().brokers]
    assert ports == [broker.kafka.rpartition(":")[2] for broker in plan(record()).brokers]


def test_a_bed_with_too_few_addresses_is_refused() -> None:
    with pytest.raises(ConfigError, match="2 addresses"):
        hosts_in(bed(addresses=2), record())


def hosts_of(directory: Path, name: str) -> tuple[str, ...]:
    pki = PkiDirectory.open(directory / "pki")
    return next(row.hosts for row in pki.listed() if row.name == name)


def test_certificates_name_the_addresses_and_are_made_anew_when_those_move(tmp_path: Path) -> None:
    prepare(tmp_path, plan(record()))
    assert "198.18.1.1" not in hosts_of(tmp_path, "broker-1001")
    prepare(tmp_path, layout())
    assert "198.18.1.1" in hosts_of(tmp_path, "broker-1001")
    assert "198.19.0.1" in hosts_of(tmp_path, "gateway-dev")
    kept = (tmp_path / "pki" / "broker-1001.crt").read_bytes()
    prepare(tmp_path, layout())
    assert (tmp_path / "pki" / "broker-1001.crt").read_bytes() == kept
    prepare(tmp_path, layout(slot=2))
    assert "198.18.33.1" in hosts_of(tmp_path, "broker-1001")


async def test_a_mesh_off_loopback_without_users_is_refused_before_anything_starts(tmp_path: Path) -> None:
    options = UpOptions(regions=("us", "eu"), brokers_per_region=1, directory=tmp_path, tls=True, bed=bed())
    with pytest.raises(ConfigError, match="--user NAME:PASSWORD"):
        await run(options, Progress())


def test_a_bed_for_other_regions_is_refused_with_one_line() -> None:
    class Own:
        name = "up"

        def load(self) -> object:
            return command.register

    result = CliRunner().invoke(build_app([Own()]), ["up", "--wan", "us-eu=70ms"])  # type: ignore[list-item]
    assert result.exit_code == 2
    assert "--wan names the regions us,eu, --regions us,eu,ap" in result.output
