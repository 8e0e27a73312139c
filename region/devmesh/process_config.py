"""The TOML files that brokers and the gateway of a development mesh are started with.

With gossip a broker's file names itself, how many others found the mesh, and one seed; the gateway's file names no
broker. Without, every file names all brokers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from georelay.ids import broker_id
from region.devmesh.certificates import CLIENT, GATEWAY, DevPki
from region.devmesh.gossip_keys import DevKeys
from region.devmesh.overrides import LinkOverrides
from region.devmesh.plan_core import BrokerPlan, MeshPlan, RegionPlan

GATEWAY_LISTENERS: Final = ("http", "kafka", "grpc", "text")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPaths:
    """Where the processes find and leave their files.

    Args:
        users_file: None when nobody has to sign in.
        secret_file: what brokers prove to each other; None: their certificates are enough.
        parent_pid: processes end when this one does.
        pki: None: no TLS.
        congestion_control: of the links; "" for what brokers take by themselves.
        keys: None: no gossip.
        traces: False: nobody writes any.
        num_partitions: of topics that are created without a number.
    """

    directory: Path
    users_file: Path | None
    parent_pid: int
    secret_file: Path | None = None
    pki: DevPki | None = None
    congestion_control: str = ""
    keys: DevKeys | None = None
    traces: bool = True
    num_partitions: int = 1

    def data_dir(self, broker: BrokerPlan) -> Path:
        """Return a broker's own data directory."""
        return self.directory / "brokers" / broker.name

    @property
    def trace_dir(self) -> Path:
        """Return the directory that all processes write traces to."""
        return self.directory / "traces"


def broker_toml(plan: MeshPlan, broker: BrokerPlan, *, paths: ProcessPaths, overrides: LinkOverrides) -> str:
    """Return the configuration of one broker; link addresses are as seen from its region."""
    lines = [
        f"mesh_id = {_text(plan.mesh_id)}",
        f"region = {_text(broker.region)}",
        f"broker = {broker.number}",
        f"data_dir = {_text(paths.data_dir(broker))}",
        f"definitions_home = {_text(plan.regions[0].name)}",
        *([] if paths.secret_file is None else [f"mesh_secret_file = {_text(paths.secret_file)}"]),
        *_users(paths),
        *_traces(paths),
        f"die_with_parent = {paths.parent_pid}",
        "clock_error_us = 0  # all brokers of a development mesh read one clock",
        "trace_roll_ms = 2000",
        f"num_partitions = {paths.num_partitions}",
        *([f"link_congestion_control = {_text(paths.congestion_control)}"] if paths.congestion_control else []),
        "",
        "[listen]",
        *(f"{port} = {_text(getattr(broker, port))}" for port in ("kafka", "grpc", "peers", "link", "admin", "text")),
        *_tls(paths, f"broker-{_id(plan, broker)}"),
        *_broker_gossip(plan, broker, paths),
    ]
    for region in plan.regions:
        named = [other for other in region.brokers if paths.keys is None or other == broker]
        if named:
            lines += _region(region, [_reached(other, _link(broker, other, overrides)) for other in named])
    return "\n".join(lines) + "\n"


def _traces(paths: ProcessPaths) -> list[str]:
    return [f"trace_dir = {_text(paths.trace_dir)}"] if paths.traces else []


def gateway_toml(plan: MeshPlan, *, paths: ProcessPaths) -> str:
    """Return the configuration of the gateway."""
    own = plan.regions[0]
    lines = [
        f"mesh_id = {_text(plan.mesh_id)}",
        'name = "gateway"',
        f"region = {_text(own.name)}",
        *_users(paths),
        *_traces(paths),
        f"die_with_parent = {paths.parent_pid}",
        "",
        "[listen]",
        *(f"{port} = {_text(getattr(plan.gateway, port))}" for port in GATEWAY_LISTENERS),
        *_tls(paths, f"gateway-{GATEWAY}"),
        *_upstream_tls(paths),
    ]
    if paths.keys is not None:
        lines += _pool("lan", plan.gateway.lan, paths.keys.lan("gateway"), seed=own.brokers[0].lan)
    for region in plan.regions if paths.keys is None else ():
        rows = [
            f"{{number = {broker.number}, kafka = {_text(broker.kafka)}, grpc = {_text(broker.grpc)}, "
            f"admin = {_text(broker.admin)}}}"
            for broker in region.brokers
        ]
        lines += _region(region, rows)
    return "\n".join(lines) + "\n"


def endpoints_json(plan: MeshPlan, pki: DevPki | None = None) -> str:
    """Return the endpoint file: where clients of the running mesh connect, and whom they trust."""
    regions = {
        region.name: {
            "kafka": [broker.kafka for broker in region.brokers],
            "grpc": [broker.grpc for broker in region.brokers],
            "admin": [broker.admin for broker in region.brokers],
            "text": [broker.text for broker in region.brokers],
        }
        for region in plan.regions
    }
    gateway = {port: [getattr(plan.gateway, port)] for port in GATEWAY_LISTENERS}
    document = {"version": 1, "mesh": plan.mesh_id, "regions": regions, "gateway": gateway}
    if pki is not None:
        cert, key = pki.pair(f"client-{CLIENT}")
        document |= {"ca": str(pki.ca), "cert": str(cert), "key": str(key)}
    return json.dumps(document, indent=2) + "\n"


def _text(value: str | Path) -> str:
    """Return a TOML basic string: JSON's escapes are TOML's, but for DEL."""
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def _users(paths: ProcessPaths) -> list[str]:
    return [] if paths.users_file is None else [f"users_file = {_text(paths.users_file)}"]


def _tls(paths: ProcessPaths, name: str) -> list[str]:
    if paths.pki is None:
        return []
    cert, key = paths.pki.pair(name)
    rows = {"cert_file": cert, "key_file": key, "ca_file": paths.pki.ca}
    return ["", "[tls]", *(f"{key} = {_text(path)}" for key, path in rows.items()), 'client_auth = "optional"']


def _upstream_tls(paths: ProcessPaths) -> list[str]:
    if paths.pki is None:
        return []
    return ["", "[upstream_tls]", "enabled = true", f"ca_file = {_text(paths.pki.ca)}"]


def _broker_gossip(plan: MeshPlan, broker: BrokerPlan, paths: ProcessPaths) -> list[str]:
    if paths.keys is None:
        return []
    return [
        "",
        "[gossip]",
        f"expect_brokers = {len(plan.regions[0].brokers)}",
        f"expect_regions = {len(plan.regions)}",
        *_pool("lan", broker.lan, paths.keys.lan(broker.name)),
        *_pool("wan", broker.wan, paths.keys.wan(broker.name), seed=plan.brokers[0].wan),
    ]


def _pool(name: str, address: str, keyring: Path, *, seed: str = "") -> list[str]:
    rows = ["", f"[gossip.{name}]", f"listen = {_text(address)}", f"keyring_file = {_text(keyring)}"]
    return [*rows, f"seeds = [{_text(seed)}]"] if seed else rows


def _id(plan: MeshPlan, broker: BrokerPlan) -> int:
    region = next(region for region in plan.regions if region.name == broker.region)
    return broker_id(region.number, broker.number)


def _link(broker: BrokerPlan, other: BrokerPlan, overrides: LinkOverrides) -> str:
    return overrides.get((broker.region, other.region, other.number), other.link)


def _reached(broker: BrokerPlan, link: str) -> str:
    return f"{{number = {broker.number}, peers = {_text(broker.peers)}, link = {_text(link)}}}"


def _region(region: RegionPlan, rows: list[str]) -> list[str]:
    brokers = "[" + ", ".join(rows) + "]"
    return ["", "[[regions]]", f"name = {_text(region.name)}", f"number = {region.number}", f"brokers = {brokers}"]
