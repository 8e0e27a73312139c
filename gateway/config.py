"""Configuration of a gateway: one TOML file, every key known, nothing read from elsewhere.

Credentials and records travel in plain text until listeners have TLS, so every address must be a loopback one.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from gateway.routing.endpoints import BrokerEndpoints, RegionEndpoints
from georelay.errors import ConfigError
from georelay.ids import BROKERS_PER_REGION_MAX, REGION_NUMBER_MAX, RegionNumber, broker_id
from georelay.limits import REGION_NAME_CHARS_MAX, REGIONS_MAX

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


def _loopback_address(address: str) -> str:
    host, _ = split_address(address)
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    if not loopback:
        raise ValueError(f"{address} is not a loopback address: without TLS only 127.0.0.0/8, ::1 or localhost is used")
    return address


LoopbackAddress = Annotated[str, AfterValidator(_loopback_address)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ListenConfig(_Section):
    """Where this gateway listens, host:port (port 0: any free one)."""

    http: LoopbackAddress = "127.0.0.1:8080"  # REST, /metrics
    kafka: LoopbackAddress = "127.0.0.1:19092"  # Kafka bootstrap
    grpc: LoopbackAddress = "127.0.0.1:8090"  # broker.Broker as bytes


class BrokerConfig(_Section):
    """One broker's addresses; `number` counts inside the region, from 1."""

    number: int = Field(ge=1, le=BROKERS_PER_REGION_MAX)
    kafka: LoopbackAddress
    grpc: LoopbackAddress
    admin: LoopbackAddress


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


class GatewayConfig(BaseSettings):
    """The whole file. `users_file` empty: clients need not sign in."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True)

    mesh_id: str = Field(min_length=1, max_length=200)
    users_file: str = ""
    die_with_parent: int | None = Field(default=None, ge=1)  # process id of the parent to end with
    listen: ListenConfig = ListenConfig()
    regions: tuple[RegionConfig, ...] = Field(min_length=1, max_length=REGIONS_MAX)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Use the file only: a stray environment variable must not move a listener."""
        return (init_settings,)

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
        return GatewayConfig(**TomlConfigSettingsSource(GatewayConfig, path)())
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
