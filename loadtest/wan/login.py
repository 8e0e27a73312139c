"""How clients sign in to a mesh in a test bed, in the words of each of them."""

from __future__ import annotations

import base64
import contextlib
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from georelay.tls import client_contexts

USER: Final = "bench"


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """The user USER, and whom clients trust."""

    password: str
    ca: str

    @property
    def basic(self) -> str:
        """Return the header of HTTP, and of gRPC's metadata."""
        return f"Basic {base64.b64encode(f'{USER}:{self.password}'.encode()).decode()}"

    @property
    def rdkafka(self) -> dict[str, Any]:
        """Return settings of librdkafka."""
        return {
            "security.protocol": "sasl_ssl",
            "ssl.ca.location": self.ca,
            "sasl.mechanism": "PLAIN",
            "sasl.username": USER,
            "sasl.password": self.password,
        }

    @property
    def aiokafka(self) -> dict[str, Any]:
        """Return arguments of aiokafka."""
        return {
            "security_protocol": "SASL_SSL",
            "ssl_context": ssl.create_default_context(cafile=self.ca),
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": USER,
            "sasl_plain_password": self.password,
        }

    @property
    def sdk(self) -> dict[str, Any]:
        """Return arguments of `georelay.connect`."""
        return {"user": (USER, self.password), "tls": client_contexts(ca=Path(self.ca))}

    @contextlib.contextmanager
    def java_file(self, more: Mapping[str, object]) -> Iterator[str]:
        """Write a file of settings for Kafka's client for Java, which is gone behind the block."""
        login = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="{USER}" password='
        settings = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": f'{login}"{self.password}";',
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.ca,
            **more,
        }
        with tempfile.NamedTemporaryFile("w", suffix=".properties") as file:
            file.write("\n".join(f"{name}={value}" for name, value in settings.items()))
            file.flush()
            yield file.name
