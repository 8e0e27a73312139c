"""Configuration of a gateway: one TOML file, every key known, nothing read from elsewhere.

Without TLS credentials and records travel in plain text: only loopback addresses may be listened on, or dialed, so.
Brokers are named in [[regions]], or found by gossip: then one seed of the pool of the gateway's region is enough.
"""

from __future__ import annotations

import re
import socket
import tomllib
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from gateway.routing.endpoints import BrokerEndpoints, RegionEndpoints
from georelay.errors import ConfigError
from georelay.ids import BROKERS_PER_REGION_MAX, REGION_NUMBER_MAX, RegionNumber, broker_id
from georelay.limits import REGION_NAME_CHARS_MAX, REGIONS_MAX
from georelay.process_log import LogLevel
from georelay.tls import TlsContexts, TlsSettings
from mesh.gossip.settings import GossipPoolSection
from mesh.listening.browser_guard import Origin
from mesh.listening.settings import LimitsSection, TlsSection, is_loopback, known_listeners, refuse_open_listener
from mesh.tracing.retention import AGE_MS_MAX, SIZE_BYTES_MAX

PORT_MAX = 65_535


def split_address(address: str) -> tuple[str, int]:
    """Return (host, port) of "host:port" or "[ipv6]:port".

    Raises:
        ValueError: no port, or one outside 0..65535.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > PORT_MAX:
        raise ValueError(f"{address!r} is not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _checked_address(address: str) -> str:
    split_address(address)
    return address


def _address_or_off(address: str) -> str:
    return address and _checked_address(address)


Address = Annotated[str, AfterValidator(_checked_address)]
LISTENERS = ("http", "kafka", "grpc", "text")


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ListenConfig(_Section):
    """Where this gateway listens, host:port (port 0: any free one)."""

    http: Address = "127.0.0.1:8080"  # REST, /metrics
    kafka: Address = "127.0.0.1:19092"  # Kafka bootstrap
    grpc: Address = "127.0.0.1:8090"  # broker.Broker as bytes
    text: Annotated[str, AfterValidator(_address_or_off)] = ""  # RESOLVE with telnet; empty: none


class BrokerConfig(_Section):
    """One broker's addresses; `number` counts inside the region, from 1."""

    number: int = Field(ge=1, le=BROKERS_PER_REGION_MAX)
    kafka: Address
    grpc: Address
    admin: Address


class RegionConfig(_Section):
    """One region. Numbers are unique in the mesh and never reused: they are part of every broker id."""

    name: str = Field(pattern=rf"^[a-z0-9-]{{1,{REGION_NAME_CHARS_MAX}}}$")
    number: int = Field(ge=1, le=REGION_NUMBER_MAX)
    brokers: tuple[BrokerConfig, ...] = Field(min_length=1, max_length=BROKERS_PER_REGION_MAX)

    @model_validator(mode="after")
    def _unique_brokers(self) -> Self:
        numbers = [broker.number for broker in self.brokers]
        if len(set(numbers)) != len(numbers):
            raise ValueError(f"region {self.name} names a broker number twice")
        return self

    def endpoints(self) -> RegionEndpoints:
        """Return the region as the routing sees it."""
        number = RegionNumber(self.number)
        return RegionEndpoints(
            name=self.name,
            number=number,
            brokers=tuple(
                BrokerEndpoints(id=broker_id(number, b.number), kafka=b.kafka, grpc=b.grpc, admin=b.admin)
                for b in self.brokers
            ),
        )


class UpstreamTls(_Section):
    """TLS to the brokers. The gateway's own certificate is shown only when one is named here.

    What it is shown for is done in the name of the gateway: grant that name nothing that clients have not.
    """

    enabled: bool = False
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if bool(self.cert_file) != bool(self.key_file):
            raise ValueError("cert_file and key_file belong together: set both or none")
        if self.enabled and not self.ca_file:
            raise ValueError("ca_file: whom to trust; with `georelay pki` it is bundle.crt")
        return self

    def contexts(self) -> TlsContexts | None:
        """Return what brokers are dialed with, None for plain text. Raises ConfigError."""
        if not self.enabled:
            return None
        cert, key = (Path(text) if text else None for text in (self.cert_file, self.key_file))
        return TlsContexts(TlsSettings(cert_file=cert, key_file=key, ca_file=Path(self.ca_file)), name="brokers")


class GatewayGossip(_Section):
    """The pool of the region: its brokers and gateways. The pool of all brokers, and its keys, is for brokers only."""

    enabled: bool = True
    lan: GossipPoolSection = GossipPoolSection()

    @property
    def is_on(self) -> bool:
        """Return whether this gateway gossips."""
        return self.enabled and self.lan.is_on


class GatewayConfig(_Section):
    """The whole file. `users_file` empty: clients need not sign in."""

    mesh_id: str = Field(min_length=1, max_length=200)
    name: str = Field(default="", pattern=r"^[A-Za-z0-9._-]{0,64}$")
    region: str = Field(default="", pattern=rf"^[a-z0-9-]{{0,{REGION_NAME_CHARS_MAX}}}$")
    users_file: str = ""
    trace_dir: str = ""
    trace_retention_ms: int = Field(default=AGE_MS_MAX, ge=-1, le=315_360_000_000)  # of this gateway's; -1: for ever
    trace_retention_bytes: int = Field(default=SIZE_BYTES_MAX, ge=-1, le=1 << 50)  # of this gateway's; -1: no limit
    live_file: str = ""  # live.json of `georelay-sla live`, shown under /v1/live
    drills_dir: str = ""  # --out of `georelay drill`: the console shows the last ones
    console: Literal["on", "read_only", "off"] = "on"  # under /console; read_only: no session there changes anything
    die_with_parent: int | None = Field(default=None, ge=1)  # process id of the parent to end with
    log_level: LogLevel = "info"
    sign_in: Literal["auto", "required"] = "auto"  # required: nobody passes whom brokers let in without credentials
    listen: ListenConfig = ListenConfig()
    tls: TlsSection = TlsSection()
    upstream_tls: UpstreamTls = UpstreamTls()
    limits: LimitsSection = LimitsSection()
    http_allowed_origins: list[Origin] = Field(default=[], max_length=100)  # pages whose requests are taken
    gossip: GatewayGossip = GatewayGossip()
    regions: tuple[RegionConfig, ...] = Field(default=(), max_length=REGIONS_MAX)

    @model_validator(mode="after")
    def _nothing_in_the_open(self) -> Self:
        known_listeners(self.tls, LISTENERS)
        for name in LISTENERS:
            if address := getattr(self.listen, name):
                refuse_open_listener(name, address, settings=self.tls.of(name), authenticates=self.authenticates)
        for region in self.regions:
            for broker in region.brokers:
                for address in (broker.kafka, broker.grpc, broker.admin):
                    if not self.may_dial(address):
                        raise ValueError(
                            f"regions: {address} is not a loopback address: set enabled = true and ca_file in "
                            "[upstream_tls]"
                        )
        return self

    @model_validator(mode="after")
    def _finds_somebody(self) -> Self:
        if not self.regions and not self.gossip.is_on:
            raise ValueError("regions: name the brokers, or listen in [gossip.lan] and name a seed there")
        if not self.regions and not (self.gossip.lan.seeds or self.gossip.lan.agent_rpc):
            raise ValueError("gossip.lan.seeds: name a member of the region's pool, or the brokers in regions")
        for what, needs in (("[gossip.lan]", self.gossip.is_on), ("trace_dir", bool(self.trace_dir))):
            if needs and not self.region:
                raise ValueError(f"region: {what} needs the name of the region that this gateway is in")
        return self

    def may_dial(self, address: str) -> bool:
        """Return whether a broker's address may be used: without TLS only loopback."""
        return self.upstream_tls.enabled or is_loopback(split_address(address)[0])

    @property
    def own_name(self) -> str:
        """Return the name of this gateway: as configured, else of its host and HTTP port."""
        host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:40]
        return self.name or f"gateway-{host}-{split_address(self.listen.http)[1]}"

    @property
    def authenticates(self) -> bool:
        """Return whether nobody passes without credentials."""
        return bool(self.users_file) or self.sign_in == "required"

    @model_validator(mode="after")
    def _unique_regions(self) -> Self:
        for what in ("name", "number"):
            values = [getattr(region, what) for region in self.regions]
            if len(set(values)) != len(values):
                raise ValueError(f"two regions have the same {what}")
        return self


def load_config(path: Path) -> GatewayConfig:
    """Read and check the file.

    Raises:
        ConfigError: unreadable, not TOML, unknown key or wrong value; one line that names key and reason.
    """
    if not path.is_file():
        raise ConfigError(f"configuration file {path} does not exist")
    try:
        return GatewayConfig.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        raise ConfigError(f"{path}: {_first_line(error)}") from error
    except (OSError, ValueError) as error:  # unreadable, not UTF-8, not TOML
        raise ConfigError(f"{path}: {error}") from error


def _first_line(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    key = ".".join(str(part) for part in first["loc"]) or "configuration"
    if first["type"] == "extra_forbidden":
        return f"unknown key {key}"
    return f"{key}: {first['msg'].removeprefix('Value error, ')}"
