"""The layout of a development mesh and the files its processes get."""

from __future__ import annotations

import json
import os
import socket
import stat
import tomllib
from pathlib import Path

import pytest

from georelay.credentials import write_users_file
from georelay.errors import ConfigError
from mesh.listening.mesh_secret import MeshSecret
from region.config import load_config
from region.devmesh import ports
from region.devmesh.command import parse_users
from region.devmesh.directory import locked, mesh_secret, read_record, replace_file, write_record
from region.devmesh.gossip_keys import prepare_keys
from region.devmesh.overrides import parse_overrides, read_overrides
from region.devmesh.plan_core import (
    MeshPlan,
    check_block,
    check_brokers_per_region,
    check_same_mesh,
    new_record,
    parse_regions,
    plan,
    port_count,
)
from region.devmesh.process_config import ProcessPaths, broker_toml, endpoints_json, gateway_toml


@pytest.fixture
def layout() -> MeshPlan:
    return plan(new_record(mesh_id="m1", regions=("us", "eu"), brokers_per_region=3, base_port=21000))


def test_every_process_has_ports_of_its_own_inside_the_block(layout: MeshPlan) -> None:
    brokers = [address for b in layout.brokers for address in (b.kafka, b.grpc, b.peers, b.link, b.admin)]
    gateway = [layout.gateway.http, layout.gateway.kafka, layout.gateway.grpc]
    used = [int(address.rpartition(":")[2]) for address in [*brokers, *gateway]]
    assert sorted(used) == list(range(21000, 21033))
    assert layout.brokers[0].kafka == "127.0.0.1:21000"
    gossip = [address for b in layout.brokers for address in (b.text, b.lan, b.wan)]
    gossip += [layout.gateway.lan, layout.gateway.text]
    assert sorted(int(address.rpartition(":")[2]) for address in gossip) == list(range(21033, 21053))
    assert port_count(2, 3) == 53


def test_region_numbers_follow_the_order_of_the_flags(layout: MeshPlan) -> None:
    assert [(region.name, region.number) for region in layout.regions] == [("us", 1), ("eu", 2)]


def test_broker_configuration_is_what_a_broker_reads(layout: MeshPlan, tmp_path: Path) -> None:
    directory = tmp_path / 'with "quotes", \\ and ü'
    directory.mkdir()
    paths = ProcessPaths(
        directory=directory,
        users_file=directory / "users.json",
        parent_pid=4711,
        secret_file=directory / "mesh.secret",
        num_partitions=6,
    )
    text = broker_toml(layout, layout.brokers[4], paths=paths, overrides={("eu", "us", 2): "127.0.0.1:9999"})
    (tmp_path / "broker.toml").write_text(text)
    config = load_config(tmp_path / "broker.toml")
    assert (config.region, config.broker, config.broker_id) == ("eu", 2, 2002)
    assert config.data_dir == directory / "brokers" / "eu-2"
    assert config.users_file == str(directory / "users.json")
    assert config.mesh_secret_file == str(directory / "mesh.secret")
    assert (config.die_with_parent, config.num_partitions) == (4711, 6)
    assert config.listen.kafka == layout.brokers[4].kafka
    us, eu = config.regions
    assert [broker.link for broker in us.brokers] == [layout.brokers[0].link, "127.0.0.1:9999", layout.brokers[2].link]
    assert [broker.link for broker in eu.brokers] == [broker.link for broker in layout.brokers[3:]]


def test_without_traces_no_process_is_given_a_directory_for_them(layout: MeshPlan, tmp_path: Path) -> None:
    for traces in (True, False):
        paths = ProcessPaths(directory=tmp_path, users_file=None, parent_pid=1, traces=traces)
        broker = tomllib.loads(broker_toml(layout, layout.brokers[0], paths=paths, overrides={}))
        assert ("trace_dir" in broker, "trace_dir" in tomllib.loads(gateway_toml(layout, paths=paths))) == (traces,) * 2


def test_gateway_configuration_lists_every_broker_and_no_users_when_there_are_none(
    layout: MeshPlan, tmp_path: Path
) -> None:
    text = gateway_toml(layout, paths=ProcessPaths(directory=tmp_path, users_file=None, parent_pid=1))
    config = tomllib.loads(text)
    assert set(config) == {"mesh_id", "name", "region", "trace_dir", "die_with_parent", "listen", "regions"}
    gateway = layout.gateway
    assert config["listen"] == {
        "http": gateway.http,
        "kafka": gateway.kafka,
        "grpc": gateway.grpc,
        "text": gateway.text,
    }
    assert [len(region["brokers"]) for region in config["regions"]] == [3, 3]
    assert set(config["regions"][0]["brokers"][0]) == {"number", "kafka", "grpc", "admin"}


def test_endpoint_file_has_its_public_shape(layout: MeshPlan) -> None:
    value = json.loads(endpoints_json(layout))
    assert list(value) == ["version", "mesh", "regions", "gateway"]
    assert (value["version"], value["mesh"]) == (1, "m1")
    assert value["regions"]["us"]["kafka"] == ["127.0.0.1:21000", "127.0.0.1:21005", "127.0.0.1:21010"]
    assert {name: len(value["regions"]["eu"][name]) for name in value["regions"]["eu"]} == {
        "kafka": 3,
        "grpc": 3,
        "admin": 3,
        "text": 3,
    }
    assert value["gateway"] == {
        "http": [layout.gateway.http],
        "kafka": [layout.gateway.kafka],
        "grpc": [layout.gateway.grpc],
        "text": [layout.gateway.text],
    }


def test_record_survives_a_restart(tmp_path: Path) -> None:
    record = new_record(mesh_id="m1", regions=("us",), brokers_per_region=5, base_port=4000)
    assert read_record(tmp_path) is None
    write_record(tmp_path, record)
    assert read_record(tmp_path) == record


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version":2}', '{"version":1,"mesh":"x","regions":[]}'])
def test_damaged_record_is_one_clear_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "mesh.json").write_text(text)
    with pytest.raises(ConfigError, match=r"mesh\.json"):
        read_record(tmp_path)


@pytest.mark.parametrize(("regions", "brokers"), [(("us",), 3), (("eu", "us"), 3), (("us", "eu"), 1)])
def test_another_mesh_on_the_same_data_is_refused(regions: tuple[str, ...], brokers: int) -> None:
    record = new_record(mesh_id="m1", regions=("us", "eu"), brokers_per_region=3, base_port=4000)
    check_same_mesh(record, regions=("us", "eu"), brokers_per_region=3, directory="d")
    with pytest.raises(ConfigError, match="--regions us,eu --brokers-per-region 3"):
        check_same_mesh(record, regions=regions, brokers_per_region=brokers, directory="d")


@pytest.mark.parametrize("text", ["", "us,", "US", "us,us", "a" * 21, "a b", ",".join(f"r{n}" for n in range(17))])
def test_wrong_region_names_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--regions"):
        parse_regions(text)


@pytest.mark.parametrize("count", [-1, 0, 2, 4, 7])
def test_wrong_number_of_brokers_is_refused(count: int) -> None:
    with pytest.raises(ConfigError, match="not 1, 3 or 5"):
        check_brokers_per_region(count)


@pytest.mark.parametrize("base_port", [-5, 80, 65530, 70000])
def test_block_that_does_not_fit_is_refused(base_port: int) -> None:
    with pytest.raises(ConfigError, match="--base-port"):
        check_block(base_port, 48)


@pytest.mark.parametrize("text", ["alice", "alice:", ":secret", ""])
def test_malformed_user_is_refused_without_showing_the_password(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_users([text])
    assert "secret" not in str(refused.value)


def test_user_may_have_colons_in_the_password() -> None:
    assert parse_users(["alice:a:password"]) == (("alice", "a:password"),)
    with pytest.raises(ConfigError, match="twice"):
        parse_users(["alice:a password", "alice:b password"])


def test_a_new_password_is_as_long_as_everywhere() -> None:
    with pytest.raises(ConfigError, match="the password of alice is too short: 8 characters at least"):
        parse_users(["alice:seven77"])


def test_link_overrides_come_from_flags_and_from_the_directory(layout: MeshPlan, tmp_path: Path) -> None:
    assert read_overrides(tmp_path) == []
    (tmp_path / "overrides.json").write_text('{"links": {"us:eu:1": "127.0.0.1:9", "us:eu:2": "127.0.0.1:8"}}')
    overrides = parse_overrides([*read_overrides(tmp_path), "us:eu:1=127.0.0.1:7"], plan=layout)
    assert overrides == {("us", "eu", 1): "127.0.0.1:7", ("us", "eu", 2): "127.0.0.1:8"}


@pytest.mark.parametrize("text", ["", "us:eu=1:2", "us:ap:1=127.0.0.1:9", "us:eu:4=127.0.0.1:9", "us:eu:1=9"])
def test_wrong_link_override_is_refused(layout: MeshPlan, text: str) -> None:
    with pytest.raises(ConfigError, match="--link-override"):
        parse_overrides([text], plan=layout)


@pytest.mark.parametrize("text", ["", "[]", '{"links": 3}'])
def test_wrong_override_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "overrides.json").write_text(text)
    with pytest.raises(ConfigError, match=r"overrides\.json"):
        read_overrides(tmp_path)


def test_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(ConfigError, match="not empty"), locked(tmp_path):
        pass


def test_file_instead_of_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="--data: cannot use"), locked(tmp_path / "file"):
        pass


def test_directory_is_used_by_one_mesh_at_a_time(tmp_path: Path) -> None:
    with locked(tmp_path / "d"):
        second = locked(tmp_path / "d")
        with pytest.raises(ConfigError, match="another 'georelay up' runs"):
            second.__enter__()
    with locked(tmp_path / "d"):
        pass


def test_taken_port_is_named() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        assert ports.first_taken(port, 1) == port
        with pytest.raises(ConfigError, match=f"port {port} is taken"):
            ports.require_free(port, 1)


def test_port_shared_with_reuseport_counts_as_taken() -> None:
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        assert ports.first_taken(holder.getsockname()[1], 1) is not None


def test_search_finds_a_free_block_below_the_ephemeral_ports() -> None:
    base_port = ports.search_block(48)
    assert 21000 <= base_port <= 32000 - 48
    assert ports.first_taken(base_port, 48) is None


def modes(directory: Path) -> set[str]:
    """Return the modes of everything below a directory, and its own."""
    return {oct(stat.S_IMODE(path.stat().st_mode)) for path in [directory, *directory.rglob("*")]}


@pytest.mark.parametrize("made_before", [False, True])
def test_what_a_mesh_keeps_is_for_its_owner_only(tmp_path: Path, made_before: bool) -> None:
    directory, before = tmp_path / "data", os.umask(0)
    try:
        if made_before:
            directory.mkdir(mode=0o755)
        with locked(directory):
            replace_file(directory / "config" / "us-1.toml", "mesh_id = 'm1'")
            replace_file(directory / "config" / "us-1.toml", "mesh_id = 'm2'")
    finally:
        os.umask(before)
    assert modes(directory) == {"0o700", "0o600"}


def test_a_mesh_keeps_the_secret_that_it_made(tmp_path: Path) -> None:
    path = mesh_secret(tmp_path)
    first = MeshSecret.load(path)
    assert first.required and MeshSecret.load(mesh_secret(tmp_path)) == first
    assert MeshSecret.load(mesh_secret(path_of_another(tmp_path))) != first


def path_of_another(tmp_path: Path) -> Path:
    (tmp_path / "another").mkdir()
    return tmp_path / "another"


def test_users_file_is_for_its_owner_only(tmp_path: Path) -> None:
    old_umask = os.umask(0)
    try:
        write_users_file(tmp_path / "users.json", {"alice": "secret"})
    finally:
        os.umask(old_umask)
    assert stat.S_IMODE((tmp_path / "users.json").stat().st_mode) == 0o600
    assert "secret" not in (tmp_path / "users.json").read_text()


def test_with_gossip_a_broker_names_itself_and_one_seed_and_the_gateway_names_no_broker(
    layout: MeshPlan, tmp_path: Path
) -> None:
    paths = ProcessPaths(directory=tmp_path, users_file=None, parent_pid=1, keys=prepare_keys(tmp_path, layout))
    (tmp_path / "broker.toml").write_text(broker_toml(layout, layout.brokers[4], paths=paths, overrides={}))
    config = load_config(tmp_path / "broker.toml")
    assert [(region.name, [b.number for b in region.brokers]) for region in config.regions] == [("eu", [2])]
    assert (config.gossip.expect_brokers, config.gossip.expect_regions) == (3, 2)
    assert config.gossip.wan.seeds == [layout.brokers[0].wan]
    assert config.gossip.lan.seeds == []
    (tmp_path / "gateway.toml").write_text(gateway_toml(layout, paths=paths))
    gateway = tomllib.loads((tmp_path / "gateway.toml").read_text())
    assert "regions" not in gateway
    assert gateway["gossip"]["lan"]["seeds"] == [layout.brokers[0].lan]


def test_the_processes_of_a_pool_have_the_same_key_each_in_a_file_of_its_own(layout: MeshPlan, tmp_path: Path) -> None:
    keys = prepare_keys(tmp_path, layout)
    us = [keys.lan(name) for name in ("us-1", "us-2", "us-3", "gateway")]
    eu = [keys.lan(name) for name in ("eu-1", "eu-2", "eu-3")]
    wan = [keys.wan(broker.name) for broker in layout.brokers]
    texts = [{path.read_text() for path in pool} for pool in (us, eu, wan)]
    assert [len(text) for text in texts] == [1, 1, 1]
    assert len(set.union(*texts)) == 3
    assert {stat.S_IMODE(path.stat().st_mode) for path in (*us, *eu, *wan)} == {0o600}
    assert len(list(keys.directory.iterdir())) == len({*us, *eu, *wan})


def test_a_keyring_that_is_missing_is_a_copy_of_one_that_was_rotated(layout: MeshPlan, tmp_path: Path) -> None:
    keys = prepare_keys(tmp_path, layout)
    rotated = '["' + "A" * 43 + '="]\n'
    for broker in layout.brokers[:5]:
        keys.wan(broker.name).write_text(rotated)
    keys.wan("eu-3").unlink()
    prepare_keys(tmp_path, layout)
    assert keys.wan("eu-3").read_text() == rotated


def test_a_search_for_ports_stays_in_the_range_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ports.PORTS_VARIABLE, "21000-21400")
    assert 21_000 <= ports.search_block(48) <= 21_400 - 48
    for text in ("21000-21040", "21000", "a-b", "21000-99999", "-1-30000"):
        monkeypatch.setenv(ports.PORTS_VARIABLE, text)
        with pytest.raises(ConfigError, match=ports.PORTS_VARIABLE):
            ports.search_block(48)
