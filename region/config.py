"""Configuration of one broker process: a TOML file, every key checked, unknown keys refused.

Plain-text listeners are allowed on loopback only: any other address needs TLS, and clients' listeners authentication.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from georelay.errors import ConfigError
from georelay.ids import BROKERS_PER_REGION_MAX, REGION_NUMBER_MAX, BrokerId, RegionNumber, broker_id
from georelay.limits import PARTITIONS_PER_TOPIC_MAX, REGION_NAME_CHARS_MAX, REGIONS_MAX
from georelay.process_log import LogLevel
from mesh.gossip.settings import GossipSection
from mesh.listening.browser_guard import Origin
from mesh.listening.settings import BrokerLimitsSection, TlsSection, known_listeners, refuse_open_listener
from mesh.tracing.recorder_core import ROWS_PER_S_MAX
from mesh.tracing.retention import AGE_MS_MAX, SIZE_BYTES_MAX
from region.controller.mesh_rows import parse_seed
from region.controller.topic import REPLICATION_FACTOR_DEFAULT
from region.log.disk_space import DISK_RESERVE_BYTES
from region.multiraft.bulk_client import BYTES_PER_S
from region.security.settings import STRANGERS, SecuritySection


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


CongestionControl = Annotated[str, Field(pattern=r"^[a-z0-9_]{1,15}$")]  # TCP_CA_NAME_MAX of linux/tcp.h


LINK_BYTES_PER_S_MIN: Final = 1_000_000  # below it a frame of records takes longer than a session may be silent


def _zero_or_enough(bytes_per_s: int) -> int:
    if 0 < bytes_per_s < LINK_BYTES_PER_S_MIN:
        raise ValueError(f"a cap is {LINK_BYTES_PER_S_MIN} bytes/s or more; 0 is none")
    return bytes_per_s


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
    """How this broker reaches another one; "" where gossip has to tell."""

    number: Annotated[int, Field(ge=1, le=BROKERS_PER_REGION_MAX)]
    peers: Annotated[str, AfterValidator(_address_or_off)]
    link: Annotated[str, AfterValidator(_address_or_off)]


def _seed(seed: str) -> str:
    parse_seed(seed)
    return seed


class RegionSection(_Section):
    """One region of the mesh; the first one is where topics are defined unless said otherwise."""

    name: RegionName
    number: Annotated[int, Field(ge=1, le=REGION_NUMBER_MAX)]
    brokers: Annotated[list[BrokerAddresses], Field(min_length=1)]
    witness: bool = False  # it votes in mesh control and stores no topics


class ControlSection(_Section):
    """Mesh control: one Raft group over the WAN."""

    mode: Literal["auto", "off"] = "auto"  # off: this broker neither founds it nor holds a replica of its log
    election_ms: Annotated[int, Field(ge=200, le=60_000)] = 1_000  # an election after so long without a leader, to 2x
    join: Annotated[list[Annotated[str, AfterValidator(_seed)]], Field(max_length=16)] = []  # "1001@host:port"


class BrokerConfig(_Section):
    """Everything a broker is told; durations in ms, sizes in bytes."""

    mesh_id: Annotated[str, Field(min_length=1, max_length=64)]
    region: RegionName
    broker: Annotated[int, Field(ge=1, le=BROKERS_PER_REGION_MAX)]
    data_dir: Path
    definitions_home: Annotated[str, Field(pattern=rf"^[a-z0-9-]{{0,{REGION_NAME_CHARS_MAX}}}$")] = ""
    control: ControlSection = ControlSection()
    mesh_secret_file: str = ""  # how brokers without certificates know each other
    mesh_secret_required: bool = True  # false while the brokers of a running mesh get one
    users_file: str = ""
    trace_dir: str = ""
    die_with_parent: int = 0
    log_level: LogLevel = "info"
    listen: Listen
    tls: TlsSection = TlsSection()
    limits: BrokerLimitsSection = BrokerLimitsSection()
    security: SecuritySection = SecuritySection()
    http_allowed_origins: Annotated[list[Origin], Field(max_length=100)] = []  # pages whose requests are taken
    gossip: GossipSection = GossipSection()
    regions: Annotated[list[RegionSection], Field(min_length=1, max_length=REGIONS_MAX)]
    auto_create_topics: bool = True
    num_partitions: Annotated[int, Field(ge=1, le=PARTITIONS_PER_TOPIC_MAX)] = 1  # of topics that name none
    default_replication_factor: Annotated[int, Field(ge=1, le=BROKERS_PER_REGION_MAX)] = REPLICATION_FACTOR_DEFAULT
    tick_ms: Annotated[int, Field(ge=10, le=1000)] = 100  # Raft tick; a heartbeat each, or each second; election 10-20
    trace_roll_ms: Annotated[int, Field(ge=100, le=600_000)] = 5_000  # lost at most when a broker is killed
    trace_rows_per_s_max: Annotated[int, Field(ge=0, le=100_000)] = ROWS_PER_S_MAX  # delivery rows before sampling
    trace_retention_ms: Annotated[int, Field(ge=-1, le=315_360_000_000)] = AGE_MS_MAX  # of this broker's; -1: for ever
    trace_retention_bytes: Annotated[int, Field(ge=-1, le=1 << 50)] = SIZE_BYTES_MAX  # of this broker's; -1: no limit
    probes: bool = True  # a canary record per second and region, where traces are written
    clock_error_us: int = -1  # bound of the error between any two clocks; -1: measure it
    forward_timeout_ms: Annotated[int, Field(ge=100, le=120_000)] = 10_000
    link_compression: Literal["auto", "off"] = "auto"  # zstd for frames of links, where it pays
    link_bytes_per_s: Annotated[int, AfterValidator(_zero_or_enough), Field(ge=0, le=100_000_000_000)] = (
        0  # cap of what each link sends; 0: none
    )
    link_congestion_control: CongestionControl = "auto"  # or "kernel", or a name
    link_congestion_control_by_region: Annotated[
        dict[RegionName, CongestionControl], Field(max_length=REGIONS_MAX)
    ] = {}
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
        found_later = self.gossip.is_on and self.gossip.expect_regions > len(names)
        if bool(self.definitions_home) == bool(self.control.join):
            raise ValueError("name the definitions_home, or what the region joins ([control] join): one of both")
        wanted = () if found_later or self.control.join else (self.definitions_home,)
        for name in (self.region, *wanted):
            if name not in names:
                raise ValueError(f"region '{name}' is not among the regions {', '.join(names)}")
        if not self.gossip.is_on:
            silent = next(
                (row for region in self.regions for row in region.brokers if not (row.peers and row.link)), None
            )
            if silent is not None:
                raise ValueError(f"broker {silent.number} has no address, and there is no [gossip] to learn it from")
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

    @model_validator(mode="after")
    def _strangers_are_no_brokers(self) -> BrokerConfig:
        if self.authenticates and not self.knows_brokers:
            raise ValueError(f"clients have to sign in, and {STRANGERS}")
        return self

    @property
    def knows_brokers(self) -> bool:
        """Return whether other brokers have to prove who they are: by certificates, or by the secret of the mesh."""
        return bool(self.mesh_secret_file) or all(self.tls.of(name, mutual=True) for name in BROKER_LISTENERS)

    @property
    def authenticates(self) -> bool:
        """Return whether clients must sign in, whatever certificate they have."""
        return bool(self.users_file) or self.security.sign_in_needed

    @property
    def own_region(self) -> RegionSection:
        """Return the section of this broker's region."""
        return next(region for region in self.regions if region.name == self.region)

    @property
    def link_ports(self) -> frozenset[int]:
        """Return where links listen, here and at all brokers that the configuration names."""
        addresses = [self.listen.link, *(broker.link for region in self.regions for broker in region.brokers)]
        return frozenset(split_address(address)[1] for address in addresses if address)

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
