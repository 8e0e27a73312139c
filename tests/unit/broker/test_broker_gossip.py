"""What a broker takes from gossip: a configuration that is completed, and addresses that are hints."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydantic import ValidationError

from georelay.errors import ConfigError
from georelay.ids import BrokerId, RegionNumber
from mesh.gossip.pools import GossipPools
from mesh.gossip.view import MemberChange, MemberStatus, MemberView, OnMember
from mesh.listening.addresses_core import Source
from mesh.replication.settings import BrokerAddress
from region.broker.founding_file import Origin, write_origin
from region.broker.gossip_port import GossipPort
from region.broker.gossip_regions_core import BrokerHint, complete, hint_of, lacks, region_told
from region.config import BrokerConfig
from region.gossip_start import LOOKS_PER_LINE, complete_config, make_pools, pool_tags
from region.log.filesystem import OsFileSystem

TAGS = {
    "cl": "shop",
    "rg": "eu",
    "id": "2003",
    "role": "broker",
    "ex": "3",
    "peers": "10.0.0.3:1",
    "link": "10.0.0.3:2",
}


def raw_config(**gossip: Any) -> dict[str, Any]:
    return {
        "mesh_id": "shop",
        "region": "us",
        "broker": 1,
        "data_dir": "unused",
        "definitions_home": "us",
        "listen": {name: f"127.0.0.1:{1000 + n}" for n, name in enumerate(("kafka", "grpc", "peers", "link", "admin"))},
        "regions": [
            {"name": "us", "number": 1, "brokers": [{"number": 1, "peers": "127.0.0.1:1002", "link": "127.0.0.1:1003"}]}
        ],
        "gossip": {"wan": {"listen": "127.0.0.1:7947"}, **gossip},
    }


def config(**gossip: Any) -> BrokerConfig:
    return BrokerConfig.model_validate(raw_config(**gossip))


def hint(broker: int, region: str, *, founders: int = 0, address: str = "10.0.0.1:1") -> BrokerHint:
    return BrokerHint(broker=BrokerId(broker), region=region, peers=address, link=address, founders=founders)


# --- the configuration -------------------------------------------------------------------------------


def test_founders_are_a_number_of_the_configuration_and_never_read_from_gossip() -> None:
    completed = complete(config(expect_brokers=3), [hint(1007, "us", founders=9)])
    assert [row.number for row in completed.own_region.brokers] == [1, 2, 3]


def test_a_founder_that_nobody_heard_of_has_no_address_yet() -> None:
    completed = complete(config(expect_brokers=3), [hint(1002, "us")])
    assert {row.number: row.peers for row in completed.own_region.brokers} == {
        1: "127.0.0.1:1002",
        2: "10.0.0.1:1",
        3: "",
    }


def test_a_broker_above_the_founders_lists_them_and_itself() -> None:
    raw = raw_config(expect_brokers=3)
    raw["broker"] = raw["regions"][0]["brokers"][0]["number"] = 5
    completed = complete(BrokerConfig.model_validate(raw), [])
    assert [row.number for row in completed.own_region.brokers] == [1, 2, 3, 5]


def test_other_regions_come_by_gossip_in_one_order_on_every_broker() -> None:
    started = config(expect_brokers=1, expect_regions=3)
    assert lacks(complete(started, [])) == "2 of 3 regions (known: us)"
    completed = complete(started, [hint(3001, "ap", founders=3), hint(2001, "eu", founders=1)])
    assert lacks(completed) == ""
    assert [(r.name, r.number, [b.number for b in r.brokers]) for r in completed.regions] == [
        ("us", 1, [1]),
        ("eu", 2, [1]),
        ("ap", 3, [1, 2, 3]),
    ]


def test_a_start_waits_for_the_definitions_home() -> None:
    raw = raw_config(expect_regions=2)
    raw["definitions_home"] = "eu"
    started = BrokerConfig.model_validate(raw)
    assert "eu, the definitions home" in lacks(complete(started, [hint(3001, "ap")]))
    assert lacks(complete(started, [hint(2001, "eu")])) == ""


async def test_a_broker_that_has_started_before_starts_although_gossip_has_forgotten_the_other_regions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("region.gossip_start.LOOK_AGAIN_S", 0.0)
    raw = {**raw_config(expect_regions=3), "definitions_home": "eu", "data_dir": tmp_path}
    started, silent = BrokerConfig.model_validate(raw), cast("GossipPools", SimpleNamespace(pools={}, remembered=dict))
    fresh = asyncio.ensure_future(complete_config(started, silent, OsFileSystem()))
    for _ in range(2 * LOOKS_PER_LINE):
        await asyncio.sleep(0)
    assert not fresh.done(), "an empty disk waits"
    fresh.cancel()
    write_origin(OsFileSystem(), tmp_path, Origin(record=None, joined_above=1))
    completed = await asyncio.wait_for(complete_config(started, silent, OsFileSystem()), 5)
    assert [region.name for region in completed.regions] == ["us"]


def test_what_is_configured_stays_as_it_is() -> None:
    completed = complete(config(expect_brokers=1), [hint(1001, "us", address="10.6.6.6:6")])
    assert completed.own_region.brokers[0].peers == "127.0.0.1:1002"
    assert complete(config(), []).regions == config().regions


@pytest.mark.parametrize("liar", [hint(1002, "eu"), hint(4001, "us")])
def test_a_region_name_or_number_that_another_one_has_is_passed_over(liar: BrokerHint) -> None:
    completed = complete(config(expect_brokers=1), [liar])
    assert [(r.name, r.number) for r in completed.regions] == [("us", 1)]


def test_without_gossip_every_broker_needs_an_address_and_the_definitions_home_is_listed() -> None:
    raw = raw_config()
    del raw["gossip"]
    raw["regions"][0]["brokers"].append({"number": 2, "peers": "", "link": ""})
    with pytest.raises(ValidationError, match="broker 2 has no address"):
        BrokerConfig.model_validate(raw)
    raw = raw_config()
    raw["definitions_home"] = "eu"
    with pytest.raises(ValidationError, match="region 'eu' is not among"):
        BrokerConfig.model_validate(raw)


def test_a_region_that_joins_founds_itself_only_and_waits_for_no_other() -> None:
    raw = raw_config(expect_brokers=2)
    raw["definitions_home"], raw["control"] = "", {"join": ["2001@10.0.0.1:1"]}
    completed = complete(BrokerConfig.model_validate(raw), [hint(1002, "us"), hint(2001, "eu")])
    assert [(region.name, [b.number for b in region.brokers]) for region in completed.regions] == [("us", [1, 2])]
    assert lacks(completed) == ""


def test_tags_that_do_not_fit_are_refused_at_the_start(tmp_path: Path) -> None:
    raw = raw_config()
    raw["mesh_id"], long = "m" * 64, "h" * 130
    raw["listen"] |= dict.fromkeys(("grpc", "link", "peers"), f"{long}:1")
    raw["tls"] = {"cert_file": "c", "key_file": "k", "ca_file": "a", "client_auth": "required"}
    with pytest.raises(ConfigError, match="512"):
        make_pools(BrokerConfig.model_validate(raw))


def test_the_tags_of_each_pool_say_where_the_broker_is_in_the_other() -> None:
    tags = pool_tags(config(lan={"listen": "127.0.0.1:7946"}))
    assert (tags["lan"]["wan"], tags["wan"]["lan"]) == ("127.0.0.1:7947", "127.0.0.1:7946")
    assert tags["lan"]["id"] == "1001"
    assert [tags["wan"][name] for name in ("kafka", "grpc", "admin")] == [
        f"127.0.0.1:{port}" for port in (1000, 1001, 1004)
    ]


# --- hints -------------------------------------------------------------------------------------------


def test_tags_of_a_broker_are_a_hint() -> None:
    assert hint_of(TAGS, mesh="shop") == BrokerHint(
        broker=BrokerId(2003), region="eu", peers="10.0.0.3:1", link="10.0.0.3:2", founders=3
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"cl": "bank"},
        {"role": "gateway"},
        {"id": "x"},
        {"id": "-1"},
        {"id": "2000"},
        {"id": "99999999"},
        {"rg": "EU!"},
        {"ex": "1000"},
        {"ex": "-1"},
    ],
)
def test_tags_that_say_it_wrongly_are_no_hint(changed: dict[str, str]) -> None:
    assert hint_of({**TAGS, **changed}, mesh="shop") is None


def test_an_address_that_is_none_is_left_out() -> None:
    found = hint_of({**TAGS, "link": "nowhere"}, mesh="shop")
    assert found is not None
    assert found.link == ""


class Pool:
    name = "lan"

    def __init__(self, *members: MemberView) -> None:
        self.rows: list[MemberView] = list(members)
        self.told: list[OnMember] = []

    def members(self) -> Sequence[MemberView]:
        return self.rows

    def subscribe(self, on_member: OnMember) -> None:
        self.told.append(on_member)


class Links:
    def __init__(self) -> None:
        self.known: list[tuple[int, int, str]] = []

    def know_brokers(self, region: RegionNumber, brokers: Sequence[BrokerAddress], source: Source) -> None:
        assert source is Source.GOSSIP
        self.known += [(int(region), int(row.broker_id), row.address) for row in brokers]


def no_peers() -> dict[int, str]:
    return {}


def port(pool: Pool, links: Links, peers: dict[int, str], drained: list[str] | None = None) -> GossipPort:
    def learn(addresses: Mapping[BrokerId, str]) -> None:
        peers.update({int(broker): address for broker, address in addresses.items()})

    async def set_tags(**_: str) -> None: ...

    return GossipPort(
        pools=[pool],
        me=BrokerId(2001),
        mesh="shop",
        region="eu",
        links=links,
        learn_peers=learn,
        drain_clients=([] if drained is None else drained).append,
        ready=lambda: True,
        set_tags=set_tags,
    )


def member(broker: int, status: MemberStatus = MemberStatus.ALIVE, **tags: str) -> MemberView:
    row = {**TAGS, "id": str(broker), "rg": {1: "us", 2: "eu"}[broker // 1000], **tags}
    return MemberView(name=str(broker), address=("10.0.0.9", 1), status=status, tags=row)


def test_brokers_of_the_own_region_are_peers_and_all_are_linked() -> None:
    links, peers = Links(), no_peers()
    port(Pool(member(2001), member(2003), member(1001)), links, peers).look()
    assert links.known == [(2, 2003, "10.0.0.3:2"), (1, 1001, "10.0.0.3:2")]
    assert peers == {2003: "10.0.0.3:1"}


def test_who_failed_or_left_is_no_hint() -> None:
    links, peers = Links(), no_peers()
    port(Pool(member(2003, MemberStatus.FAILED), member(1001, MemberStatus.LEFT)), links, peers).look()
    assert (links.known, peers) == ([], {})


async def test_changes_are_used_as_they_come_and_readiness_is_told() -> None:
    links, peers, pool = Links(), no_peers(), Pool(gateway(dr="ap"))
    drained: list[str] = []
    told: list[dict[str, str]] = []

    async def set_tags(**tags: str) -> None:
        told.append(tags)

    followed = port(pool, links, peers, drained)
    followed._set_tags = set_tags
    followed.start([hint(1002, "us", address="10.0.0.2:9")])
    assert links.known == [(1, 1002, "10.0.0.2:9")]
    pool.told[0](MemberChange.JOINED, member(2003))
    assert peers == {2003: "10.0.0.3:1"}
    await asyncio.sleep(0)
    await followed.stop()
    assert told == [{"ready": "1"}]
    assert drained == ["ap"]


def gateway(status: MemberStatus = MemberStatus.ALIVE, **tags: str) -> MemberView:
    row = {"cl": "shop", "rg": "eu", "role": "gateway", **tags}
    return MemberView(name="gateway", address=("10.0.0.8", 1), status=status, tags=row)


def test_where_clients_are_to_go_is_said_by_gateways_of_the_region_that_run() -> None:
    said = [
        gateway(dr="us", rg="ap"),
        gateway(dr="us", cl="bank"),
        gateway(MemberStatus.FAILED, dr="us"),
        member(2001, dr="us"),
        gateway(),
    ]
    assert region_told(said, mesh="shop", region="eu") == ""
    assert region_told([*said, gateway(dr="us"), gateway(dr="ap")], mesh="shop", region="eu") == "ap"
