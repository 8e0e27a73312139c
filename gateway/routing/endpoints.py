"""Where the mesh can be reached: regions and brokers, configured or heard of (values only)."""

from __future__ import annotations

from dataclasses import dataclass

from georelay.ids import BrokerId, RegionNumber


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerEndpoints:
    """Addresses (host:port) of one broker. `id` is region number * 1000 + broker number."""

    id: BrokerId
    kafka: str
    grpc: str
    admin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionEndpoints:
    """One region and its brokers, in the order of the configuration, then by number (at least one)."""

    name: str
    number: RegionNumber
    brokers: tuple[BrokerEndpoints, ...]
