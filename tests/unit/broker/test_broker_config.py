"""Every mistake in a configuration file is one line that names the file and the key."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import region.__main__
from georelay.errors import ConfigError
from region.__main__ import main
from region.config import BrokerConfig, load_config, split_address

Change = Callable[[dict[str, Any]], Any]


def second_region(raw: dict[str, Any], **changes: Any) -> None:
    region = {"name": "eu", "number": 2, "brokers": [{"number": 1, "peers": "h:1", "link": "h:2"}], **changes}
    raw["regions"].append(region)


PAIR = {"cert_file": "c", "key_file": "k", "ca_file": "a"}
MISTAKES: list[tuple[Change, str]] = [
    (lambda raw: raw.pop("mesh_id"), "mesh_id: Field required"),
    (lambda raw: raw.update(colour="red"), "colour: Extra inputs"),
    (lambda raw: raw["listen"].update(kafka="127.0.0.1"), "listen.kafka: '127.0.0.1' is not host:port"),
    (lambda raw: raw["listen"].update(kafka="127.0.0.1:99999"), "is not host:port"),
    (lambda raw: raw["listen"].update(grpc="0.0.0.0:1"), "not a loopback address"),
    (lambda raw: raw["listen"].update(admin="example.com:1"), "not a loopback address"),
    (lambda raw: raw.update(region="eu"), "region 'eu' is not among the regions us"),
    (lambda raw: raw.update(definitions_home="ap"), "region 'ap' is not among"),
    (lambda raw: raw.update(broker=2), "broker 2 is not listed in region 'us'"),
    (lambda raw: raw.update(region="US"), "region: String should match"),
    (lambda raw: raw.update(tick_ms=1), "tick_ms: Input should be greater"),
    (lambda raw: raw.update(replace_absent_after_ms=-1), "replace_absent_after_ms: Input should be greater"),
    (lambda raw: raw.update(moves_in_flight_max=0), "moves_in_flight_max: Input should be greater"),
    (lambda raw: raw.update(auto_join="perhaps"), "auto_join: Input should be a valid boolean"),
    (lambda raw: raw.update(users_file="users.json"), "clients have to sign in, and whoever connects to listen.peers"),
    (lambda raw: raw.update(security={"sign_in": "required"}), "set mesh_secret_file, the same file for every broker"),
    (lambda raw: raw.update(regions=[]), "regions: List should have at least 1"),
    (lambda raw: raw.update(link_congestion_control_by_region={"US": "bbr"}), "link_congestion_control_by_region.US"),
    (
        lambda raw: raw.update(link_congestion_control_by_region={"eu": "no such"}),
        "link_congestion_control_by_region.eu",
    ),
    (lambda raw: second_region(raw, name="us"), "two regions have the same name or number"),
    (lambda raw: second_region(raw, number=1), "two regions have the same name or number"),
    (lambda raw: second_region(raw, number=40_000), "regions.1.number"),
    (
        lambda raw: raw["regions"][0]["brokers"].append(raw["regions"][0]["brokers"][0]),
        "two brokers of region 'us' have the same number",
    ),
]


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(row)}" for key, row in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(toml(row) for row in value) + "]"
    return f'"{value}"' if isinstance(value, str) else str(value).lower()


def written(path: Path, raw: dict[str, Any]) -> Path:
    path.write_text("\n".join(f"{key} = {toml(value)}" for key, value in raw.items()))
    return path


def test_a_good_file_is_read(make_config: Any, tmp_path: Path) -> None:
    config = load_config(written(tmp_path / "broker.toml", make_config()))
    assert (config.broker_id, config.region_numbers(), config.tick_ms) == (1001, {"us": 1}, 10)


@pytest.mark.parametrize(("change", "said"), MISTAKES, ids=[said for _, said in MISTAKES])
def test_a_mistake_is_one_line_with_file_and_key(make_config: Any, tmp_path: Path, change: Change, said: str) -> None:
    raw = copy.deepcopy(make_config())
    change(raw)
    path = written(tmp_path / "broker.toml", raw)
    with pytest.raises(ConfigError) as refused:
        load_config(path)
    text = str(refused.value)
    assert text.startswith(f"{path}: ")
    assert said in text
    assert "\n" not in text


@pytest.mark.parametrize("raw", [b"= 1", b"a = \xff", b'"a\\nb" = 1'], ids=["no TOML", "no UTF-8", "key of two lines"])
def test_a_file_that_is_no_configuration_is_one_line(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "broker.toml"
    path.write_bytes(raw)
    with pytest.raises(ConfigError) as refused:
        load_config(path)
    assert "\n" not in str(refused.value)


def test_a_missing_file_or_a_folder_is_one_line_and_exit_code_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("leave_out", "close_files_to_others"):  # would be for all tests that follow
        monkeypatch.setattr(region.__main__, name, lambda *_: None)
    for path in (tmp_path / "none.toml", tmp_path):
        assert main(["--config", str(path)]) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"georelay-broker: cannot read the configuration {path}: ")
        assert said.count("\n") == 1


@pytest.mark.parametrize("address", ["", ":", "h:", ":1", "h:0", "h:65536", "h:-1", "h:1x", "h:²", "h"])
def test_what_is_not_host_and_port_is_refused(address: str) -> None:
    with pytest.raises(ValueError):
        split_address(address)


def test_an_ipv6_address_loses_its_brackets() -> None:
    assert split_address("[::1]:80") == ("::1", 80)


def test_a_configuration_cannot_be_changed(make_config: Any) -> None:
    config = BrokerConfig.model_validate(make_config())
    with pytest.raises(ValueError, match="frozen"):
        config.broker = 2


def test_a_congestion_control_may_be_chosen_for_single_regions(make_config: Any, tmp_path: Path) -> None:
    raw = make_config() | {"link_congestion_control_by_region": {"ap": "bbr", "eu": "kernel"}}
    config = load_config(written(tmp_path / "b.toml", raw))
    assert config.link_congestion_control == "auto"
    assert config.link_congestion_control_by_region == {"ap": "bbr", "eu": "kernel"}


@pytest.mark.parametrize(
    ("more", "is_known"),
    [
        ({}, False),
        ({"mesh_secret_file": "mesh.secret"}, True),
        ({"tls": PAIR}, True),
        ({"tls": PAIR | {"listeners": {"link": {"enabled": False}}}}, False),
    ],
)
def test_brokers_are_known_by_a_secret_or_by_certificates_on_both_listeners(
    make_config: Any, more: dict[str, Any], is_known: bool
) -> None:
    assert BrokerConfig.model_validate(make_config() | more).knows_brokers is is_known
