"""What deploy/ansible writes for processes, and where it gets its hosts from."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jinja2
import pytest

from deploy.ansible.inventory import terraform
from gateway.config import load_config as load_gateway
from georelay.tls import ClientAuth
from region.config import load_config as load_broker

PLAYS = Path(__file__).resolve().parents[3] / "deploy" / "ansible"
TERRAFORM = PLAYS.parent / "terraform"
SCRIPT = PLAYS / "inventory" / "terraform.py"
PORTS = {
    "broker": {"kafka": 9092, "grpc": 9093, "peers": 9094, "link": 9095, "admin": 9096},
    "gateway": {"http": 8080, "kafka": 19092, "grpc": 8090},
    "gossip": {"lan": 7946, "wan": 7947},
}
RECORD: dict[str, Any] = {
    "home": "us",
    "founding_regions": 3,
    "wan_seeds": ["10.10.0.11", "10.20.0.11"],
    "regions": {
        "us": {"number": 1, "founders": 3, "brokers": [1, 2, 3], "seeds": ["10.10.0.11", "10.10.0.12"], "join": []},
        "sa": {"number": 4, "founders": 1, "brokers": [1], "seeds": ["10.40.0.11"], "join": ["1001@10.10.0.11:9095"]},
    },
}


def rendered(role: str, name: str, address: str, record: dict[str, Any] = RECORD, **more: Any) -> str:
    environment = jinja2.Environment(
        trim_blocks=True, undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False
    )
    environment.filters["to_json"] = json.dumps
    environment.filters["regex_replace"] = lambda text, old, new: re.sub(old, new, text)
    number, region = int(name.split(".")[0].split("-")[1]), name.split(".")[1]
    template = environment.from_string((PLAYS / f"roles/{role}/templates/{role}.toml.j2").read_text())
    return template.render(
        inventory_hostname=name,
        georelay_mesh_id="shop",
        georelay_region=region,
        georelay_number=number,
        georelay_address=address,
        georelay_ports=PORTS,
        georelay_record=record,
        georelay_region_record=record["regions"][region],
        georelay_broker_id=record["regions"][region]["number"] * 1000 + number,
        **{f"georelay_{role}_settings": {}, "georelay_broker_tables": {}, "broker_founded": {"stdout": ""}, **more},
    )


def test_a_brokers_file_is_one_that_the_broker_takes(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    settings: dict[str, Any] = {
        "georelay_broker_settings": {"num_partitions": 6},
        "georelay_broker_tables": {"limits": {"accepts_per_s": 9}},
    }
    file.write_text(rendered("broker", "broker-2.us", "10.10.0.12", **settings))
    config = load_broker(file)
    assert (config.broker_id, config.definitions_home, config.num_partitions) == (1002, "us", 6)
    assert config.limits.accepts_per_s == 9
    assert config.gossip.lan.seeds == ["10.10.0.11:7946", "10.10.0.12:7946"]


def test_a_broker_of_a_region_that_joins_asks_the_mesh_and_founds_nothing(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(rendered("broker", "broker-1.sa", "10.40.0.11"))
    config = load_broker(file)
    assert (config.definitions_home, config.control.join) == ("", ["1001@10.10.0.11:9095"])


def test_brokers_that_come_and_go_change_nobody_elses_file() -> None:
    before = rendered("broker", "broker-1.us", "10.10.0.11")
    grown = json.loads(json.dumps(RECORD))
    grown["regions"]["us"]["brokers"] = [1, 2, 4, 5]
    assert rendered("broker", "broker-1.us", "10.10.0.11", grown) == before


def test_a_region_that_is_retired_changes_the_file_of_no_broker_that_has_started_before(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    tasks = yaml.safe_load((PLAYS / "roles/broker/tasks/main.yml").read_text())
    (asked_of,) = [task["ansible.builtin.shell"]["cmd"] for task in tasks if task.get("register") == "broker_founded"]
    script = asked_of.replace("/var/lib/georelay/broker/data", str(tmp_path)).replace("/etc/georelay", str(tmp_path))

    def written() -> str:
        said = subprocess.run(["sh", "-c", script], check=True, capture_output=True, text=True).stdout.strip()
        return rendered("broker", "broker-1.us", "10.10.0.11", retired, broker_founded={"stdout": said})

    retired = {**RECORD, "founding_regions": 2}
    file = tmp_path / "broker.toml"
    assert "expect_regions = 2\n" in written(), "a host without a file"
    file.write_text(rendered("broker", "broker-1.us", "10.10.0.11"))
    assert "expect_regions = 2\n" in written(), "its disk is empty: two regions are all that it can hear of"
    (tmp_path / "founding.json").touch()
    assert written() == file.read_text()


def test_a_gateways_file_is_one_that_the_gateway_takes(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(rendered("gateway", "gateway-1.us", "10.10.0.101"))
    config = load_gateway(file)
    assert (config.own_name, config.region, config.sign_in) == ("gateway-1.us", "us", "required")


def test_prometheus_may_sign_in_with_its_certificate(tmp_path: Path) -> None:
    files = {role: tmp_path / f"{role}.toml" for role in ("broker", "gateway")}
    for role, file in files.items():
        file.write_text(rendered(role, f"{role}-1.us", "10.10.0.11"))
    for config in (load_broker(files["broker"]), load_gateway(files["gateway"])):
        assert config.tls.client_auth is ClientAuth.OPTIONAL


OUTPUTS = {
    "mesh": {"value": "shop"},
    "secrets": {"value": {"authority": "arn:of-authority"}},
    "inventory": {
        "value": {
            "eu-west-1": {
                "number": 2,
                "lb": "nlb.example",
                "name": "gateway.eu-west-1.example.com",
                "secrets": {"gossip_lan": "arn:of-gossip"},
                "brokers": {"broker-1": {"ip": "10.20.0.11", "volume": "vol-0ab"}},
                "gateways": {"gateway-1": {"ip": "10.20.0.101"}},
            }
        }
    },
}


def test_hosts_of_terraform_have_names_addresses_and_the_disk_by_its_volume(tmp_path: Path) -> None:
    found = asked(tmp_path, json.dumps(OUTPUTS))
    assert found["brokers"] == {"hosts": ["broker-1.eu-west-1"]}
    assert found["_meta"]["hostvars"]["broker-1.eu-west-1"] == {
        "ansible_host": "10.20.0.11",
        "georelay_region_number": 2,
        "georelay_data_device": "/dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_vol0ab",
    }
    assert found["_meta"]["hostvars"]["gateway-1.eu-west-1"]["georelay_extra_names"] == [
        "nlb.example",
        "gateway.eu-west-1.example.com",
    ]
    assert found["mesh"]["vars"] == {
        "ansible_user": "admin",
        "georelay_mesh_id": "shop",
        "georelay_secrets": {"authority": "arn:of-authority", "gossip_lan/eu-west-1": "arn:of-gossip"},
    }


def test_brokers_listen_where_terraform_opens_ports() -> None:
    opened = dict(re.findall(r"^ +(\w+) += (\d+)$", (TERRAFORM / "main.tf").read_text(), re.MULTILINE))
    settings = (PLAYS / "group_vars" / "all.yml").read_text()
    for role, prefix in (("broker", ""), ("gateway", "gateway_"), ("gossip", "gossip_")):
        (row,) = re.findall(rf"^  {role}: {{(.*)}}$", settings, re.MULTILINE)
        ports = dict(re.findall(r"(\w+): (\d+)", row))
        assert (
            ports == {name: opened[f"{prefix}{name}"] for name in ports} == {k: str(v) for k, v in PORTS[role].items()}
        )


@pytest.mark.parametrize("text", ["{}", '{"inventory": {"value": {}}}', "no JSON"])
def test_an_inventory_without_hosts_is_refused_in_one_line(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "outputs.json").write_text(text)
    monkeypatch.setenv("GEORELAY_TF_OUTPUT", str(tmp_path / "outputs.json"))
    assert terraform.main() == 1
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("inventory: ") and said.err.count("\n") == 1


def asked(folder: Path, text: str) -> dict[str, Any]:
    (folder / "outputs.json").write_text(text)
    environment = {"GEORELAY_TF_OUTPUT": str(folder / "outputs.json")}
    done = subprocess.run([sys.executable, str(SCRIPT), "--list"], check=True, capture_output=True, env=environment)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
