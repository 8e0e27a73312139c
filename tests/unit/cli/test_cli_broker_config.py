"""`georelay broker config` writes a file that a broker takes, and none that it would refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from georelay.ids import broker_id
from region.config import load_config

MESH = ("--mesh-id", "shop", "--region", "us=10.0.1.1,10.0.1.2,10.0.1.3", "--region", "eu=10.0.2.1")


def test_the_file_of_a_host_is_one_that_a_broker_starts_with(georelay: Any, tmp_path: Path) -> None:
    file = tmp_path / "us-2.toml"
    ran = georelay("broker", "config", str(file), "--broker", "us/2", *MESH, "--pki", "/etc/georelay/pki")
    assert (ran.code, ran.out) == (
        0,
        f"{file} is written; on 10.0.1.2: georelay-broker --config {file}\n",
    )
    config = load_config(file)
    assert (config.mesh_id, config.broker_id, config.definitions_home) == ("shop", 1002, "us")
    assert (config.listen.kafka, config.listen.link) == ("10.0.1.2:9092", "10.0.1.2:9095")
    assert config.tls.cert_file == "/etc/georelay/pki/broker-1002.crt"
    assert config.authenticates
    assert [broker_id(config.region_number, row.number) for row in config.own_region.brokers] == [1001, 1002, 1003]
    assert [row.link for region in config.regions for row in region.brokers][-1] == "10.0.2.1:9095"
    assert file.stat().st_mode & 0o777 == 0o640


def test_on_loopback_no_certificates_are_needed(georelay: Any, tmp_path: Path) -> None:
    file = tmp_path / "one.toml"
    words = ("--broker", "us/1", "--mesh-id", "m", "--region", "us=127.0.0.1", "--data-dir", str(tmp_path / 'a "b"'))
    assert georelay("broker", "config", str(file), *words, "--trace-dir", str(tmp_path / "t")).code == 0
    assert load_config(file).data_dir == tmp_path / 'a "b"'
    assert load_config(file).trace_dir == str(tmp_path / "t")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--broker", "us/2", *MESH), "--pki: brokers off loopback"),
        (("--broker", "us/4", *MESH, "--pki", "p"), "--broker: 'us/4' is none of us/1..3, eu/1..1"),
        (("--broker", "us/x", *MESH, "--pki", "p"), "--broker: 'us/x'"),
        (("--broker", "us/1", "--mesh-id", "m", "--region", "US=h"), "--region: give NAME=HOST"),
        (("--broker", "us/1", "--mesh-id", "m", "--region", "us=h,h"), "each once"),
        (("--broker", "us/1", "--mesh-id", "m", "--region", "us=h", "--region", "us=i"), "given twice"),
        (("--broker", "us/1", "--mesh-id", "", "--region", "us=127.0.0.1"), "--mesh-id"),
        (("--broker", "us/1", "--mesh-id", "m", "--region", "us=127.0.0.1", "--users-file", "u"), "--pki:"),
    ],
)
def test_what_a_broker_would_refuse_is_not_written(
    georelay: Any, tmp_path: Path, words: tuple[str, ...], says: str
) -> None:
    ran = georelay("broker", "config", str(tmp_path / "f.toml"), *words)
    assert (ran.code, says in ran.err) == (2, True), ran.err
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_there_is_kept(georelay: Any, tmp_path: Path) -> None:
    file = tmp_path / "f.toml"
    file.write_text("mine")
    words = ("--broker", "us/1", "--mesh-id", "m", "--region", "us=127.0.0.1")
    ran = georelay("broker", "config", str(file), *words)
    assert (ran.code, "is there already" in ran.err, file.read_text()) == (1, True, "mine")
