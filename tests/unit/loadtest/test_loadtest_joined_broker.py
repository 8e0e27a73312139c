"""Brokers that a campaign adds to a mesh of `georelay up`: their configurations load, and a failure can be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.campaign.joined_broker import JoinedBroker, NewRegion
from loadtest.campaign.mesh import CampaignFailed
from loadtest.scratch import scratch_directory
from region.config import BrokerConfig, load_config
from region.devmesh.gossip_keys import prepare_keys
from region.devmesh.plan_core import new_record, plan
from region.devmesh.process_config import ProcessPaths, broker_toml


@pytest.fixture(params=[True, False], ids=["gossip", "no gossip"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The file of us-1, as `georelay up --regions us --brokers-per-region 1` writes it."""
    layout = plan(new_record(mesh_id="m1", regions=("us",), brokers_per_region=1, base_port=21_000))
    keys = prepare_keys(tmp_path, layout) if request.param else None
    paths = ProcessPaths(directory=tmp_path, users_file=None, parent_pid=1, keys=keys)
    (tmp_path / "config").mkdir()
    file = tmp_path / "config" / "us-1.toml"
    file.write_text(broker_toml(layout, layout.brokers[0], paths=paths, overrides={}))
    return file


def _addresses(config: BrokerConfig) -> set[str]:
    pools = (config.gossip.lan.listen, config.gossip.wan.listen)
    listen = config.listen
    return {
        address for address in (listen.kafka, listen.grpc, listen.peers, listen.link, listen.admin, *pools) if address
    }


def test_a_joined_broker_is_configured_like_its_model_at_addresses_of_its_own(model: Path, tmp_path: Path) -> None:
    first = load_config(model)
    config = load_config(JoinedBroker(tmp_path, model, 2).config_file)
    assert (config.mesh_id, config.region, config.broker) == ("m1", "us", 2)
    assert config.trace_roll_ms == first.trace_roll_ms
    assert len(_addresses(config)) == len(_addresses(first))
    assert not _addresses(config) & _addresses(first)
    assert [(row.number, row.peers) for row in config.own_region.brokers] == [
        (1, first.listen.peers),
        (2, config.listen.peers),
    ]


def test_a_joined_broker_enters_the_pools_of_its_model_with_a_keyring_of_its_own(model: Path, tmp_path: Path) -> None:
    first = load_config(model).gossip
    gossip = load_config(JoinedBroker(tmp_path, model, 2).config_file).gossip
    assert gossip.is_on is first.is_on
    for pool, of_model in ((gossip.lan, first.lan), (gossip.wan, first.wan)):
        if first.is_on:
            assert pool.seeds == [of_model.listen]
            assert pool.keyring_file != of_model.keyring_file
            assert Path(pool.keyring_file).read_text() == Path(of_model.keyring_file).read_text()


def test_the_broker_of_a_new_region_names_its_seed_and_no_other_broker(model: Path, tmp_path: Path) -> None:
    joined = NewRegion(tmp_path, model, region="sa", region_number=4)
    config = load_config(joined.config_file)
    assert (config.mesh_id, config.region, config.region_number) == ("m1", "sa", 4)
    assert config.control.join == [f"1001@{load_config(model).listen.link}"]
    assert joined.seed == f"4001@{config.listen.link}"


def test_a_failed_run_leaves_the_log_that_its_error_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run() -> None:
        with scratch_directory("run-", tmp_path) as directory:
            for name in ("mesh/logs/us-2.log", "mesh/brokers/us-2/groups/1/00001.log", "mesh/config/us-2.toml"):
                (directory / name).parent.mkdir(parents=True, exist_ok=True)
                (directory / name).write_text("x")
            raise CampaignFailed("us-2 does not answer")

    with pytest.raises(CampaignFailed):
        run()
    (directory,) = tmp_path.iterdir()
    left = sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())
    assert left == ["mesh/config/us-2.toml", "mesh/logs/us-2.log"]
    assert not (directory / "mesh/brokers").exists()
    assert str(directory) in capsys.readouterr().err


@pytest.mark.parametrize("error", [None, KeyboardInterrupt, CampaignFailed])
def test_a_run_that_is_over_or_was_stopped_or_made_nothing_leaves_nothing(
    tmp_path: Path, error: type[BaseException] | None, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        with scratch_directory("run-", tmp_path) as directory:
            (directory / "segments").mkdir()
            if error is None or error is KeyboardInterrupt:
                (directory / "us-1.log").write_text("x")
            if error is not None:
                raise error
    except (KeyboardInterrupt, CampaignFailed):
        pass
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().err == ""
