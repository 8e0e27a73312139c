"""Configuration of one broker process: a TOML file, every key checked, unknown keys refused.

Plain-text listeners are allowed on loopback only: any other address needs TLS, and clients' listeners authentication.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from georelay.errors import ConfigError
from georelay.ids import BROKERS_PER_REGION_MAX, REGION_NUMBER_MAX, BrokerId, RegionNumber, broker_id
from georelay.limits import REGION_NAME_CHARS_MAX, REGIONS_MAX
from mesh.listening.settings import BrokerLimitsSection, TlsSection, known_listeners, refuse_open_listener
from region.log.disk_space import DISK_RESERVE_BYTES
from region.multiraft.bulk_client import BYTES_PER_S
from region.security.settings import SecuritySection


def split_address(address: str) -> tuple[str, int]:
    """Return (host, port) of "host:port". Raises ValueError."""
    host, separator, port = address.rpartition(":")
    if not separator or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"'{address}' is not host:port")
    return host.strip("[]"), int(port)


def _address(address: str) -> str:
    split_address(address)
    return address


Address = Annotated[str, AfterValidator(_address)]
CLIENT_LISTENERS: Final = ("kafka", "grpc", "admin", "text")
BROKER_LISTENERS: Final = ("peers", "link")  # certificates on both sides, always
RegionName = Annotated[str, Field(pattern=rf"^[a-z0-9-]{{1,{REGION_NAME_CHARS_MAX}}}$")]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _address_or_off(address: str) -> str:
    return address and _address(address)


class Listen(_Section):
    """Addresses this broker listens on."""

    kafka: Address
    grpc: Address
    peers: Address
    link: Address
    admin: Address
    text: Annotated[str, AfterValidator(_address_or_off)] = ""


class BrokerAddresses(_Section):
    """How this broker reaches another one."""

    number: Annotated[int, Field(ge=1, le=BROKERS_PER_REGION_MAX)]
    peers: Address
    link: Address


class RegionSection(_Section):
    """One region of the mesh; the first one is where topics are defined unless said otherwise."""

    name: RegionName
    number: Annotated[int, Field(ge=1, le=REGION_NUMBER_MAX)]
    brokers: Annotated[list[BrokerAddresses], Field(min_length=1)]


class BrokerConfig(_Section):
    """Everything a broker is told; durations in ms, sizes in bytes."""

    mesh_id: Annotated[str, Field(min_length=1, max_length=64)]
    region: RegionName
    broker: Annotated[int, Field(ge=1, le=BROKERS_PER_REGION_MAX)]
    data_dir: Path
    definitions_home: RegionName
    users_file: str = ""
    trace_dir: str = ""
    die_with_parent: int = 0
    listen: Listen
    tls: TlsSection = TlsSection()
    limits: BrokerLimitsSection = BrokerLimitsSection()
    security: SecuritySection = SecuritySection()
    regions: Annotated[list[RegionSection], Field(min_length=1, max_length=REGIONS_MAX)]
    auto_create_topics: bool = True
    tick_ms: Annotated[int, Field(ge=10, le=1000)] = 100  # Raft tick and heartbeat; election 10-20 ticks
    trace_roll_ms: Annotated[int, Field(ge=100, le=600_000)] = 5_000  # lost at most when a broker is killed
    clock_error_us: int = -1  # bound of this host's clock against the other regions'; -1 unknown
    forward_timeout_ms: Annotated[int, Field(ge=100, le=120_000)] = 10_000
    auto_join: bool = False  # may a broker of this region's number that nobody added join by registering?
    replace_absent_after_ms: Annotated[int, Field(ge=0, le=604_800_000)] = 1_800_000  # 0: never
    disk_reserve_bytes: Annotated[int, Field(ge=0, le=1 << 50)] = DISK_RESERVE_BYTES  # free room kept; 0: no watch
    moves_in_flight_max: Annotated[int, Field(ge=1, le=1_000)] = 4  # groups that copy their log at a time
    bulk_bytes_per_s: Annotated[int, Field(ge=1_000_000, le=100_000_000_000)] = BYTES_PER_S  # whole segments it fetches
    group_initial_rebalance_delay_ms: Annotated[int, Field(ge=0, le=60_000)] = 100  # for more members
    offsets_retention_ms: Annotated[int, Field(ge=60_000, le=31_536_000_000)] = 604_800_000  # of groups without members
    transaction_timeout_max_ms: Annotated[int, Field(ge=1_000, le=86_400_000)] = 900_000  # a producer may ask for
    transactional_id_expiry_ms: Annotated[int, Field(ge=60_000, le=31_536_000_000)] = 604_800_000  # of idle ids

    @model_validator(mode="after")
    def _names_exist(self) -> BrokerConfig:
        names = [region.name for region in self.regions]
        if len(set(names)) != len(names) or len({region.number for region in self.regions}) != len(names):
            raise ValueError("two regions have the same name or number")
        for region in self.regions:
            numbers = [broker.number for broker in region.brokers]
            if len(set(numbers)) != len(numbers):
                raise ValueError(f"two brokers of region '{region.name}' have the same number")
        for name in (self.region, self.definitions_home):
            if name not in names:
                raise ValueError(f"region '{name}' is not among the regions {', '.join(names)}")
        if self.broker not in [broker.number for broker in self.own_region.brokers]:
            raise ValueError(f"broker {self.broker} is not listed in region '{self.region}'")
        return self

    @model_validator(mode="after")
    def _nobody_listens_in_the_open(self) -> BrokerConfig:
        known_listeners(self.tls, (*CLIENT_LISTENERS, *BROKER_LISTENERS))
        for name in (*CLIENT_LISTENERS, *BROKER_LISTENERS):
            address = getattr(self.listen, name, "")  # an optional listener that is off has no address
            if address:
                for_clients = name in CLIENT_LISTENERS
                refuse_open_listener(
                    name,
                    address,
                    settings=self.tls.of(name, mutual=not for_clients),
                    authenticates=self.authenticates,
                    for_clients=for_clients,
                    advice='set users_file, or sign_in = "required" in [security]',
                )
        return self

    @property
    def authenticates(self) -> bool:
        """Return whether clients must sign in, whatever certificate they have."""
        return bool(self.users_file) or self.security.sign_in_needed

    @property
    def own_region(self) -> RegionSection:
        """Return the section of this broker's region."""
        return next(region for region in self.regions if region.name == self.region)

    @property
    def region_number(self) -> RegionNumber:
        """Return the number of this broker's region."""
        return RegionNumber(self.own_region.number)

    @property
    def broker_id(self) -> BrokerId:
        """Return this broker's mesh-wide id."""
        return broker_id(self.region_number, self.broker)

    def region_numbers(self) -> dict[str, RegionNumber]:
        """Return region name -> number, in configuration order."""
        return {region.name: RegionNumber(region.number) for region in self.regions}


def load_config(path: Path) -> BrokerConfig:
    """Read and check a configuration file.

    Raises:
        ConfigError: one line that names the file, the key and what is wrong.
    """
    try:
        with path.open("rb") as file:
            raw = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    try:
        return BrokerConfig.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = " ".join(".".join(str(part) for part in first["loc"]).split()) or "the file"
        raise ConfigError(f"{path}: {where}: {first['msg'].removeprefix('Value error, ')}") from error
