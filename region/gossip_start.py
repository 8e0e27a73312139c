"""How a broker's pools are made from its configuration, and what a first start waits for.

The pools start before the broker does: a configuration that names nobody else is completed by what they know.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import structlog

from georelay.errors import ConfigError
from mesh.gossip.directory_core import BROKER_ROLE, DIRECTORY_QUERY, TAGS_VERSION, answer
from mesh.gossip.pool_member import PoolMember
from mesh.gossip.pools import LAN, WAN, GossipPools
from mesh.gossip.settings import GossipPoolSection
from mesh.gossip.starting import make_member, told_address
from mesh.gossip.tags import TagsTooLong, encode_tags
from region.broker.founding_file import read_origin
from region.broker.gossip_port import StatusAnswers
from region.broker.gossip_regions_core import BrokerHint, complete, hint_of, lacks
from region.config import BrokerConfig
from region.log.filesystem import FileSystem

log = structlog.get_logger()

LOOK_AGAIN_S: Final = 0.1
LOOKS_PER_LINE: Final = 50


def base_tags(config: BrokerConfig) -> dict[str, str]:
    """Return the tags of this broker that do not change while it runs."""
    return {
        "cl": config.mesh_id,
        "rg": config.region,
        "id": str(config.broker_id),
        "role": BROKER_ROLE,
        "v": TAGS_VERSION,
        "ex": str(config.gossip.expect_brokers),
        "kafka": config.listen.kafka,
        "grpc": config.listen.grpc,
        "admin": config.listen.admin,
        "link": config.listen.link,
        "peers": config.listen.peers,
    }


def pool_tags(config: BrokerConfig) -> dict[str, dict[str, str]]:
    """Return the tags for each pool: it says where the broker is in the other one."""
    base = base_tags(config)
    lan = told_address(config.gossip.lan)
    wan = told_address(config.gossip.wan)
    return {
        LAN: {**base, **({"wan": wan} if wan else {})},
        WAN: {**base, **({"lan": lan} if lan else {})},
    }


def make_pools(config: BrokerConfig) -> GossipPools | None:
    """Return the pools of this broker, not started; None when it does not gossip (ConfigError: a keyring)."""
    if not config.gossip.is_on:
        return None
    name = str(config.broker_id)
    tags = pool_tags(config)
    for pool, rows in tags.items():
        try:
            encode_tags({**rows, "ready": "1", "stalled": "suspect"})
        except TagsTooLong as error:
            raise ConfigError(f"gossip.{pool}: {error}; shorter addresses in [listen] would fit") from error
    members: dict[str, PoolMember] = {}
    sections: tuple[tuple[str, GossipPoolSection, str], ...] = (
        (LAN, config.gossip.lan, name),
        (WAN, config.gossip.wan, f"{name}.{config.region}"),
    )
    for pool, section, own_name in sections:
        member = make_member(
            section,
            pool=pool,
            name=own_name,
            mesh=config.mesh_id,
            tags=tags[pool],
            snapshot=Path(config.data_dir) / "gossip" / f"{pool}.snapshot",
        )
        if member is not None:
            members[pool] = member
    status = StatusAnswers(broker=config.broker_id, region=config.region)

    def on_query(pool: str, query: str, payload: bytes) -> bytes | None:
        """Answer in the gossip thread, where members may be asked."""
        if query != DIRECTORY_QUERY:
            return status.answer(pool, query, payload)
        return answer(payload, {each: members[each].members() for each in members}, mesh=config.mesh_id)

    return GossipPools(members, region=config.region, on_query=on_query, note=status.note)


def known_hints(config: BrokerConfig, pools: GossipPools) -> list[BrokerHint]:
    """Return every broker that was ever heard of, what is heard now last."""
    remembered = [tags for member in pools.remembered().values() for tags in member.values()]
    seen = [member.tags for pool in pools.pools.values() for member in pool.members()]
    hints = (hint_of(tags, mesh=config.mesh_id) for tags in (*remembered, *seen))
    return list({hint.broker: hint for hint in hints if hint is not None}.values())


async def complete_config(config: BrokerConfig, pools: GossipPools, fs: FileSystem) -> BrokerConfig:
    """Return the configuration with the regions and brokers that gossip knows; waits until it knows enough.

    A broker that has started before has the regions on its disk. It waits for LOOKS_PER_LINE looks, not for ever:
    gossip forgets a region that left the mesh, or was away for a day.

    Raises:
        DataDirectoryError: what says whether this broker has started before cannot be read.
    """
    looks, is_founded = 0, read_origin(fs, config.data_dir) is not None
    while True:
        completed = complete(config, known_hints(config, pools))
        missing = lacks(completed)
        if not missing:
            return completed
        if is_founded and looks == LOOKS_PER_LINE:
            log.info("gossip.regions_not_heard_of", missing=missing)
            return completed
        if looks % LOOKS_PER_LINE == 0:
            log.info("gossip.regions_awaited", missing=missing)
        looks += 1
        await asyncio.sleep(LOOK_AGAIN_S)
