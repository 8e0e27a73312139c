"""The certificates of a development mesh: DIR/pki, made on the first `georelay up --tls`, renewed near their end."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from georelay.ids import broker_id
from georelay.pki.directory import BUNDLE, RECORD, PkiDirectory
from region.devmesh.plan_core import HOST, MeshPlan

FOLDER: Final = "pki"
GATEWAY: Final = "dev"
CLIENT: Final = "dev"
RENEW_BEFORE: Final = datetime.timedelta(days=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class DevPki:
    """Where the files are."""

    directory: Path

    @property
    def ca(self) -> Path:
        """Return whom everybody trusts."""
        return self.directory / BUNDLE

    def pair(self, name: str) -> tuple[Path, Path]:
        """Return (certificate, key) of "broker-1001" and the like."""
        return self.directory / f"{name}.crt", self.directory / f"{name}.key"


def _named(host: str) -> tuple[str, ...]:
    """Return the addresses that a certificate must name besides loopback."""
    return () if host == HOST else (host,)


def prepare(directory: Path, plan: MeshPlan, *, now: datetime.datetime | None = None) -> DevPki:
    """Make what is missing or nearly over. Raises ConfigError."""
    path = directory / FOLDER
    made = (path / RECORD).exists()
    pki = PkiDirectory.open(path) if made else PkiDirectory.create(path, mesh_id=plan.mesh_id)
    have = {row.name: row.hosts for row in pki.listed()}
    soon = (now or datetime.datetime.now(datetime.UTC)) + RENEW_BEFORE
    gateway_hosts = _named(plan.gateway.http.rpartition(":")[0])
    hosts = {f"gateway-{GATEWAY}": gateway_hosts}
    wanted: dict[str, Callable[..., Path]] = {
        f"gateway-{GATEWAY}": partial(pki.issue_gateway, GATEWAY, hosts=gateway_hosts),
        f"client-{CLIENT}": partial(pki.issue_client, CLIENT),
    }
    for region in plan.regions:
        for broker in region.brokers:
            number = broker_id(region.number, broker.number)
            hosts[f"broker-{number}"] = _named(broker.host)
            wanted[f"broker-{number}"] = partial(pki.issue_broker, number, hosts=_named(broker.host))
    for name, issue in wanted.items():
        ends = pki.ends(name)
        if ends is None or ends < soon or not set(hosts.get(name, ())) <= set(have[name]):
            issue(renew=ends is not None)
    return DevPki(directory=path)
