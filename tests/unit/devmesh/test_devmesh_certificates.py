"""The certificates of `georelay up --tls`."""

from __future__ import annotations

import datetime
import tomllib
from pathlib import Path

from region.devmesh.certificates import prepare
from region.devmesh.plan_core import MeshPlan, new_record, plan
from region.devmesh.process_config import ProcessPaths, broker_toml, endpoints_json, gateway_toml


def two_brokers() -> MeshPlan:
    return plan(new_record(mesh_id="m1", regions=("us", "eu"), brokers_per_region=1, base_port=21_000))


def test_every_process_has_a_certificate_and_a_second_start_changes_none(tmp_path: Path) -> None:
    pki = prepare(tmp_path, two_brokers())
    names = {path.stem for path in pki.directory.glob("*.crt")}
    assert names == {"ca-1", "bundle", "broker-1001", "broker-2001", "gateway-dev", "client-dev"}
    before = {path: path.read_bytes() for path in pki.directory.iterdir()}
    prepare(tmp_path, two_brokers())
    assert {path: path.read_bytes() for path in pki.directory.iterdir()} == before


def test_a_certificate_that_nears_its_end_is_renewed_at_the_next_start(tmp_path: Path) -> None:
    pki = prepare(tmp_path, two_brokers())
    before = pki.pair("broker-1001")[0].read_bytes()
    prepare(tmp_path, two_brokers(), now=datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=380))
    assert pki.pair("broker-1001")[0].read_bytes() != before


def test_the_files_of_the_processes_name_them(tmp_path: Path) -> None:
    layout = two_brokers()
    pki = prepare(tmp_path, layout)
    paths = ProcessPaths(directory=tmp_path, users_file=None, parent_pid=1, pki=pki)
    broker = tomllib.loads(broker_toml(layout, layout.brokers[1], paths=paths, overrides={}))
    assert broker["tls"] == {
        "cert_file": str(pki.directory / "broker-2001.crt"),
        "key_file": str(pki.directory / "broker-2001.key"),
        "ca_file": str(pki.ca),
        "client_auth": "optional",
    }
    gateway = tomllib.loads(gateway_toml(layout, paths=paths))
    assert gateway["tls"]["cert_file"] == str(pki.directory / "gateway-dev.crt")
    assert gateway["upstream_tls"] == {"enabled": True, "ca_file": str(pki.ca)}
    assert f'"ca": "{pki.ca}"' in endpoints_json(layout, pki)
    assert '"ca"' not in endpoints_json(layout)
