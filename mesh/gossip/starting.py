"""How the member of one pool is made from its section of a configuration file; brokers and gateways alike."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mesh.gossip.agent import Agent, AgentSettings
from mesh.gossip.agent_rpc import RpcMember, RpcSettings
from mesh.gossip.pool_member import PoolMember
from mesh.gossip.seeds import split_seed
from mesh.gossip.settings import GossipPoolSection


def make_member(
    section: GossipPoolSection,
    *,
    pool: str,
    name: str,
    mesh: str,
    tags: Mapping[str, str],
    snapshot: Path | None,
) -> PoolMember | None:
    """Return the member that a section describes, not started; None: this process is not in the pool.

    Args:
        pool: "lan" or "wan". name: of the member; an external agent has its own. mesh: whose members are let in.
        snapshot: what is remembered over a restart; None: nothing.
    """
    if section.agent_rpc:
        key_file = Path(section.agent_rpc_key_file) if section.agent_rpc_key_file else None
        return RpcMember(
            RpcSettings(
                pool=pool, address=split_seed(section.agent_rpc), key_file=key_file, tags=tags, seeds=section.seeds
            )
        )
    if not section.listen:
        return None
    return Agent(
        AgentSettings(
            pool=pool,
            name=name,
            listen=split_seed(section.listen),
            advertise=split_seed(section.advertise) if section.advertise else None,
            tags=tags,
            timing=section.timing,
            mesh=mesh,
            label=section.label,
            seeds=section.seeds,
            keyring_file=section.keyring_path,
            snapshot=snapshot,
        )
    )


def told_address(section: GossipPoolSection) -> str:
    """Return where others reach this member, "" when it does not say."""
    return section.advertise or section.listen
