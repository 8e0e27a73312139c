"""The gateway's TOML file: every mistake is one line that names the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config import load_config, split_address
from georelay.errors import ConfigError

GOOD = """
mesh_id = "m1"
users_file = ""
die_with_parent = 12345
[listen]
http = "127.0.0.1:8080"
kafka = "localhost:19092"
grpc = "[::1]:8090"
[[regions]]
name = "us"
number = 1
brokers = [{number=1, kafka="127.0.0.1:1", grpc="127.0.0.1:2", admin="127.0.0.1:3"}]
"""


def write(path: Path, text: str) -> Path:
    file = path / "gateway.toml"
    file.write_text(text)
    return file


def test_a_complete_file_is_read(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, GOOD))
    assert config.die_with_parent == 12345
    assert config.regions[0].endpoints().brokers[0].id == 1001


def test_the_environment_does_not_change_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESH_ID", "other")
    monkeypatch.setenv("USERS_FILE", "/tmp/other")
    config = load_config(write(tmp_path, GOOD))
    assert (config.mesh_id, config.users_file) == ("m1", "")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("users_file", "user_file", "unknown key user_file"),
        ("number=1, kafka", "number=1, kafak='x', kafka", r"unknown key regions\.0\.brokers\.0\.kafak"),
        ("127.0.0.1:8080", "0.0.0.0:8080", r"listen\.http: 0\.0\.0\.0:8080 is not a loopback address and has no TLS"),
        ("localhost:19092", "[::]:19092", r"listen\.kafka: \[::\]:19092 is not a loopback address"),
        (
            'admin="127.0.0.1:3"',
            'admin="10.0.0.1:3"',
            r"10\.0\.0\.1:3 is not a loopback address: set enabled = true and ca_file in \[upstream_tls\]",
        ),
        ("127.0.0.1:8080", "127.0.0.1", "'127.0.0.1' is not host:port"),
        ("127.0.0.1:8080", "127.0.0.1:65536", "is not host:port"),
        ('mesh_id = "m1"', "", "mesh_id: Field required"),
        ('"us"', '"US!"', r"regions\.0\.name: String should match"),
        ("number = 1", "number = 0", r"regions\.0\.number"),
        ("mesh_id =", "mesh_id", r"gateway\.toml: "),
    ],
)
def test_a_mistake_is_one_line_that_names_it(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(ConfigError, match=message) as refused:
        load_config(write(tmp_path, GOOD.replace(old, new)))
    assert "\n" not in str(refused.value)


def test_two_regions_may_not_share_a_number(tmp_path: Path) -> None:
    second = GOOD[GOOD.index("[[regions]]") :].replace('"us"', '"eu"')
    with pytest.raises(ConfigError, match="two regions have the same number"):
        load_config(write(tmp_path, GOOD + second))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml does not exist"):
        load_config(tmp_path / "nowhere.toml")


def test_an_ipv6_address_loses_its_brackets() -> None:
    assert split_address("[::1]:80") == ("::1", 80)


GOSSIP = """
mesh_id = "m1"
region = "us"
[gossip.lan]
listen = "127.0.0.1:7946"
seeds = ["127.0.0.1:7947"]
"""


def test_with_gossip_one_seed_stands_for_all_brokers(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, GOSSIP))
    assert config.regions == ()
    assert config.own_name.startswith("gateway-")
    assert config.own_name.endswith("-8080")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('region = "us"', "", r"region: \[gossip\.lan\] needs the name of the region"),
        ('seeds = ["127.0.0.1:7947"]', "", r"gossip\.lan\.seeds: name a member"),
        ("[gossip.lan]", "[gossip]\nenabled = false\n[gossip.lan]", "regions: name the brokers, or listen in"),
        ("127.0.0.1:7946", "10.0.0.1:7946", r"10\.0\.0\.1:7946 is not a loopback address and the pool has no keyring"),
        ("[gossip.lan]", "[gossip.wan]", r"unknown key gossip\.wan"),
    ],
)
def test_a_mistake_in_gossip_is_one_line_that_names_it(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOSSIP
    with pytest.raises(ConfigError, match=message):
        load_config(write(tmp_path, GOSSIP.replace(old, new)))
