"""The `[tls]` and `[limits]` sections of the configuration files of brokers and gateways, and the loopback rule.

The rule: an address off loopback needs TLS, and for clients also authentication; the refusal says what to set.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, model_validator

from georelay.tls import ClientAuth, PrincipalFrom, TlsContexts, TlsSettings
from mesh.listening.admission_core import AdmissionLimits

HOSTS_KEPT: Final = 4_096  # told apart already: listeners ask with every call


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TlsListener(_Section):
    """What one listener has different from `[tls]`."""

    enabled: bool = True
    cert_file: str = ""
    key_file: str = ""
    ca_file: str = ""
    client_auth: ClientAuth | None = None

    @model_validator(mode="after")
    def _pair(self) -> TlsListener:
        if bool(self.cert_file) != bool(self.key_file):
            raise ValueError("cert_file and key_file belong together: set both or none")
        return self


class TlsSection(_Section):
    """One certificate for all listeners, and exceptions by listener."""

    cert_file: str = ""
    key_file: str = ""
    ca_file: str = ""
    client_auth: ClientAuth = ClientAuth.NONE
    principal_from: PrincipalFrom = PrincipalFrom.CN
    listeners: dict[str, TlsListener] = {}

    @model_validator(mode="after")
    def _complete(self) -> TlsSection:
        if bool(self.cert_file) != bool(self.key_file):
            raise ValueError("cert_file and key_file belong together: set both or none")
        if self.cert_file and not self.ca_file:
            raise ValueError("ca_file: whom to trust; with `georelay pki` it is bundle.crt")
        for name, listener in self.listeners.items():
            wants = listener.client_auth or self.client_auth
            if wants is not ClientAuth.NONE and self._is_on(listener) and not (listener.ca_file or self.ca_file):
                raise ValueError(f'listeners.{name}: client_auth = "{wants.value}" needs ca_file')
        return self

    @property
    def is_on(self) -> bool:
        """Return whether there is a certificate at all."""
        return bool(self.cert_file)

    def _is_on(self, listener: TlsListener) -> bool:
        return listener.enabled and bool(self.cert_file or listener.cert_file)

    def of(self, name: str, *, mutual: bool = False) -> TlsSettings | None:
        """Return the settings of one listener, None when it is plain text.

        Args:
            mutual: for listeners of brokers: a certificate is required whatever the files say.
        """
        listener = self.listeners.get(name, TlsListener())
        if not self._is_on(listener):
            return None
        own = bool(listener.cert_file)
        ca_file = listener.ca_file or self.ca_file
        return TlsSettings(
            cert_file=Path(listener.cert_file if own else self.cert_file),
            key_file=Path(listener.key_file if own else self.key_file),
            ca_file=Path(ca_file) if ca_file else None,
            client_auth=ClientAuth.REQUIRED if mutual else listener.client_auth or self.client_auth,
            principal_from=self.principal_from,
        )

    def contexts(self, name: str, *, mutual: bool = False) -> TlsContexts | None:
        """Return the contexts of one listener, None when it is plain text. Raises ConfigError."""
        settings = self.of(name, mutual=mutual)
        return None if settings is None else TlsContexts(settings, name=name)


class LimitsSection(_Section):
    """Who is let in; each listener for itself."""

    connections_max: Annotated[int, Field(ge=1, le=1_000_000)] = 5_000
    connections_per_address_max: Annotated[int, Field(ge=1, le=1_000_000)] = 2_000
    handshakes_max: Annotated[int, Field(ge=1, le=100_000)] = 500
    handshakes_per_address_max: Annotated[int, Field(ge=1, le=100_000)] = 200
    accepts_per_s: Annotated[int, Field(ge=1, le=1_000_000)] = 2_000
    connects_per_address_per_s: Annotated[int, Field(ge=1, le=1_000_000)] = 200
    handshake_ms: Annotated[int, Field(ge=100, le=120_000)] = 10_000

    def admission(self) -> AdmissionLimits:
        """Return the limits of one listener."""
        return AdmissionLimits(
            connections_max=self.connections_max,
            connections_per_address_max=min(self.connections_per_address_max, self.connections_max),
            handshakes_max=self.handshakes_max,
            handshakes_per_address_max=min(self.handshakes_per_address_max, self.handshakes_max),
            accepts_per_s=self.accepts_per_s,
            admits_per_address_per_s=self.connects_per_address_per_s,
            handshake_s=self.handshake_ms / 1000,
        )


class BrokerLimitsSection(LimitsSection):
    """The same, and what the Kafka clients of a broker may take."""

    sign_in_ms: Annotated[int, Field(ge=100, le=600_000)] = 10_000
    request_ms: Annotated[int, Field(ge=1_000, le=600_000)] = 30_000
    request_bytes_per_connection_max: Annotated[int, Field(ge=1 << 20, le=1 << 40)] = 64 << 20
    request_bytes_max: Annotated[int, Field(ge=1 << 20, le=1 << 44)] = 512 << 20


@lru_cache(HOSTS_KEPT)
def is_loopback(host: str) -> bool:
    """Return whether only this machine can connect there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def refuse_open_listener(
    name: str,
    address: str,
    *,
    settings: TlsSettings | None,
    authenticates: bool,
    for_clients: bool = True,
    advice: str = "set users_file",
) -> None:
    """Refuse an address off loopback without TLS, or one for clients without authentication.

    Args:
        address: "host:port".
        authenticates: whether clients must sign in by other means than a certificate.
        advice: how that is asked for.

    Raises:
        ValueError: one line that says what to set.
    """
    host = address.rpartition(":")[0].strip("[]")
    if is_loopback(host):
        return
    if settings is None:
        raise ValueError(
            f"listen.{name}: {address} is not a loopback address and has no TLS: set cert_file, key_file and ca_file "
            "in [tls] (georelay pki makes them), or listen on 127.0.0.1"
        )
    if for_clients and not authenticates and settings.client_auth is not ClientAuth.REQUIRED:
        raise ValueError(
            f"listen.{name}: {address} is not a loopback address and lets anybody in: {advice}, or "
            f'client_auth = "required" in [tls] or [tls.listeners.{name}]'
        )


def known_listeners(section: TlsSection, known: Collection[str]) -> None:
    """Refuse an exception for a listener that there is not. Raises ValueError."""
    for name in section.listeners:
        if name not in known:
            raise ValueError(f"tls.listeners.{name}: there is no such listener; there are {', '.join(sorted(known))}")
