"""How clients sign in to a mesh, in the words of each of them: all follow from those of librdkafka.

Client processes have them in their environment, where other users of the machine do not see a password.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from georelay.tls import TlsContexts, client_contexts
from loadtest.mesh_process import MeshProcess

VARIABLE: Final = "GEORELAY_BENCH_CLIENT"
Settings = Mapping[str, str]
PLAIN: Final[Settings] = {}


def environment(settings: Settings) -> dict[str, str]:
    """Return the environment of a client process."""
    return {**os.environ, VARIABLE: json.dumps(dict(settings))}


def from_environment() -> dict[str, str]:
    """Return the settings that this process was given."""
    settings: dict[str, str] = json.loads(os.environ.get(VARIABLE, "{}"))
    return settings


def settings_of(mesh: MeshProcess) -> Settings:
    """Return how a mesh is dialled: over TLS where it has that, and signed in where it has users."""
    secured = {"ssl.ca.location": str(mesh.ca)} if mesh.ca else {}
    if mesh.user is None:
        return {"security.protocol": "ssl", **secured} if secured else PLAIN
    return {
        "security.protocol": "sasl_ssl" if secured else "sasl_plaintext",
        "sasl.mechanism": "PLAIN",
        "sasl.username": mesh.user[0],
        "sasl.password": mesh.user[1],
        # A mesh lets nobody in before it knows its users; then clients are told at once, not in a minute.
        "reconnect.backoff.max.ms": "500",
        **secured,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """`rdkafka`: settings of librdkafka, as `settings_of` a mesh has them."""

    rdkafka: Settings

    @property
    def user(self) -> tuple[str, str] | None:
        """Return name and password, None where nobody signs in."""
        name = self.rdkafka.get("sasl.username", "")
        return (name, self.rdkafka["sasl.password"]) if name else None

    @property
    def ca(self) -> str:
        """Return the file of whom clients trust, "" without TLS."""
        return self.rdkafka.get("ssl.ca.location", "")

    @property
    def tls(self) -> TlsContexts | None:
        """Return what our own clients dial with, None without TLS."""
        return client_contexts(ca=Path(self.ca)) if self.ca else None

    @property
    def sdk(self) -> dict[str, Any]:
        """Return arguments of `georelay.connect`."""
        return {"user": self.user, "tls": self.tls}

    @property
    def basic(self) -> str:
        """Return the header of HTTP, and of gRPC's metadata."""
        return f"Basic {base64.b64encode(':'.join(self.user or ()).encode()).decode()}"

    @property
    def aiokafka(self) -> dict[str, Any]:
        """Return arguments of aiokafka."""
        name, password = self.user or (None, None)
        return {
            "security_protocol": self.rdkafka.get("security.protocol", "plaintext").upper(),
            "ssl_context": ssl.create_default_context(cafile=self.ca) if self.ca else None,
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": name,
            "sasl_plain_password": password,
        }

    @contextlib.contextmanager
    def java_file(self, more: Mapping[str, object]) -> Iterator[str]:
        """Write a file of settings for Kafka's client for Java, which is gone behind the block."""
        name, password = self.user or ("", "")
        login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        settings = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": f'{login} username="{name}" password="{password}";',
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.ca,
            **more,
        }
        with tempfile.NamedTemporaryFile("w", suffix=".properties") as file:
            file.write("\n".join(f"{name}={value}" for name, value in settings.items()))
            file.flush()
            yield file.name
