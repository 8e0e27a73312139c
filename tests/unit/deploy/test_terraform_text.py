"""The text of deploy/terraform, held against the product and its own rules: `make tf` has Terraform itself judge it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Final

import pytest

from deploy.terraform.render import parse
from georelay.cli.broker_config import BASE_PORT, LISTENERS

ROOT: Final = Path(__file__).resolve().parents[3]
FOLDER: Final = ROOT / "deploy/terraform"
FILES: Final = sorted(FOLDER.rglob("*.tf"))
BLOCK: Final = re.compile(r'^(resource|variable|output) "(\w+)"(?: "(\w+)")? \{\n(.*?)^\}', flags=re.M | re.S)


def blocks(kind: str) -> list[tuple[str, str, str]]:
    found = [row for file in FILES for row in BLOCK.findall(file.read_text()) if row[0] == kind]
    return [(first, second, text) for _, first, second, text in found]


def ports() -> dict[str, int]:
    table = re.search(r"  ports = \{\n(.*?)\n  \}", (FOLDER / "main.tf").read_text(), flags=re.S)
    assert table is not None
    return {name: int(number) for name, number in re.findall(r"(\w+) += (\d+)", table[1])}


def test_ports_are_those_that_brokers_and_gateways_take() -> None:
    found = ports()
    assert [found[name] for name in LISTENERS] == list(range(BASE_PORT, BASE_PORT + len(LISTENERS)))
    gateway = (ROOT / "gateway/config.py").read_text()
    for name in ("http", "kafka", "grpc"):
        assert f'{name}: Address = "127.0.0.1:{found[f"gateway_{name}"]}"' in gateway


def test_the_readme_names_each_port_and_each_output() -> None:
    readme = (FOLDER / "README.md").read_text()
    for name, number in ports().items():
        assert f"`{name}` {number}" in readme
    outputs = set(re.findall(r'^output "(\w+)"', (FOLDER / "outputs.tf").read_text(), flags=re.M))
    table = readme.split("| output | value |")[1].split("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, flags=re.M)) == outputs


def test_every_variable_and_output_says_what_it_is_and_every_refusal_what_to_write() -> None:
    rows = [*blocks("variable"), *blocks("output")]
    assert len(rows) > 35
    assert [name for name, _, text in rows if 'description = "' not in text] == []
    assert [
        name for name, _, text in blocks("variable") if "type        = " not in text and "type = " not in text
    ] == []
    refusals = [line for file in FILES for line in re.findall(r'error_message = "(.*)"', file.read_text())]
    assert len(refusals) > 20 and all(len(line.split()) > 4 for line in refusals)


def test_hosts_are_closed_and_their_disks_encrypted() -> None:
    assert "host in local.hosts : name => aws_subnet.private[" in (FOLDER / "modules/region/compute.tf").read_text()
    for kind, name, text in blocks("resource"):
        if kind == "aws_instance":
            assert 'http_tokens                 = "required"' in text and "encrypted   = true" in text, name
            assert "subnet_id               = local.placed[" in text and "associate_public_ip_address" not in text
            assert "for_each" in text and "private_ip " in text and "ignore_changes = [ami, user_data]" in text
        if kind == "aws_ebs_volume":
            assert re.search(r"encrypted +(= true)", text) and "instance" not in text, name
        if kind == "aws_subnet":
            assert "map_public_ip_on_launch = false" in text


def test_no_rule_lets_everybody_in_and_no_right_is_a_wildcard() -> None:
    rules = [(name, text) for kind, name, text in blocks("resource") if "ingress_rule" in kind]
    assert len(rules) == 3 and all("0.0.0.0/0" not in text and "description " in text for _, text in rules)
    assert [name for name, text in rules if "access.clients" in text] == ["clients"]
    tables = (FOLDER / "modules/region/security.tf").read_text()
    assert "access.clients" not in tables.split("resource ")[0]  # the tables of rules are of private networks alone
    assert "for_each = merge(local.mesh, local.outside)" in tables
    assert "0.0.0.0/0" not in tables.split("  away = ")[0]
    for file in FILES:
        allowed = re.findall(r'Effect +(?:= )"Allow".*?Resource += [^\n]*', file.read_text(), flags=re.S)
        assert not [row for row in allowed if '"*"' in row or ':*"' in row], file.name


@pytest.mark.parametrize("example", ["minimal", "three-regions"])
def test_examples_are_meshes_and_set_variables_that_there_are(example: str) -> None:
    folder = FOLDER / "examples" / example
    assert parse((folder / "regions.toml").read_text()).active
    known = set(re.findall(r'^variable "(\w+)"', (FOLDER / "variables.tf").read_text(), flags=re.M))
    assert set(re.findall(r"^(\w+) +=", (folder / "mesh.tfvars").read_text(), flags=re.M)) <= known


def test_the_example_of_three_regions_is_what_is_committed() -> None:
    three = (FOLDER / "examples/three-regions/regions.toml").read_text()
    assert tomllib.loads(three) == tomllib.loads((FOLDER / "regions.toml").read_text())
