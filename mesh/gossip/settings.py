"""The `[gossip]` section of configuration files, and the rule about addresses that others reach.

The rule: off loopback a pool needs a keyring. Whoever may send it packets could else make members vanish.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from mesh.gossip.seeds import split_seed
from mesh.gossip.timing import Timing, named
from mesh.listening.settings import is_loopback

LABEL_CHARS_MAX: Final = 64
SEEDS_MAX: Final = 32


def _ip_address(address: str) -> str:
    """Check "IP:port", "" is allowed: a pool binds one address, and tells one to others."""
    if address:
        host, _ = split_seed(address)
        try:
            ipaddress.ip_address(host)
        except ValueError as error:
            raise ValueError(f"'{address}' is not IP:port; names are for seeds") from error
    return address


def _seed(seed: str) -> str:
    split_seed(seed)
    return seed


def _profile(name: str) -> str:
    named(name)
    return name


IpAddress = Annotated[str, AfterValidator(_ip_address)]
Seed = Annotated[str, AfterValidator(_seed)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class GossipPoolSection(_Section):
    """One pool. Without `listen` and `agent_rpc` this process is not in it."""

    listen: IpAddress = ""
    advertise: IpAddress = ""
    seeds: Annotated[list[Seed], Field(max_length=SEEDS_MAX)] = []
    keyring_file: str = ""
    label: Annotated[str, Field(max_length=LABEL_CHARS_MAX)] = ""
    profile: Annotated[str, AfterValidator(_profile)] = "lan"
    agent_rpc: Annotated[str, AfterValidator(lambda text: text and _seed(text))] = ""
    agent_rpc_key_file: str = ""

    @model_validator(mode="after")
    def _complete(self) -> GossipPoolSection:
        if self.agent_rpc and (self.listen or self.advertise or self.keyring_file or self.label):
            raise ValueError("agent_rpc: the external agent has its own listen, advertise, keyring_file and label")
        if not self.listen:
            return self
        host, _ = split_seed(self.listen)
        if ipaddress.ip_address(host).is_unspecified and not self.advertise:
            raise ValueError(f'listen = "{self.listen}" needs advertise: the address at which others reach this one')
        for address in (self.listen, self.advertise):
            if address and not is_loopback(split_seed(address)[0]) and not self.keyring_file:
                raise ValueError(
                    f"{address} is not a loopback address and the pool has no keyring_file: "
                    "`georelay keys generate --file FILE` makes one; every member of the pool needs the same"
                )
        return self

    @property
    def is_on(self) -> bool:
        """Return whether this process is in the pool."""
        return bool(self.listen or self.agent_rpc)

    @property
    def timing(self) -> Timing:
        """Return the profile."""
        return named(self.profile)

    @property
    def keyring_path(self) -> Path | None:
        """Return the keyring's path, None for plain text."""
        return Path(self.keyring_file) if self.keyring_file else None


class GossipWanSection(GossipPoolSection):
    """The pool of all brokers: timing for round trips up to 325 ms."""

    profile: Annotated[str, AfterValidator(_profile)] = "tuned-wan"


class GossipSection(_Section):
    """Both pools, and how many others a first start waits for."""

    enabled: bool = True
    lan: GossipPoolSection = GossipPoolSection()
    wan: GossipWanSection = GossipWanSection()
    expect_brokers: Annotated[int, Field(ge=0, le=99)] = 0  # brokers 1..N of the own region found it; 0: those listed
    expect_regions: Annotated[int, Field(ge=0, le=64)] = (
        0  # a first start waits until it knows as many; 0: those listed
    )

    @property
    def is_on(self) -> bool:
        """Return whether this process gossips at all."""
        return self.enabled and (self.lan.is_on or self.wan.is_on)
