"""What a client signs in with, in the form that each client library wants."""

from __future__ import annotations

import base64
import dataclasses

USER, PASSWORD = "alice", "s3cret-Wort"


@dataclasses.dataclass(frozen=True, slots=True)
class SignIn:
    """What a client signs in with; None for no credentials at all."""

    user: str
    password: str

    @property
    def header(self) -> str:
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()

    @property
    def librdkafka(self) -> dict[str, str]:
        return {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": self.user,
            "sasl.password": self.password,
        }

    @property
    def python_clients(self) -> dict[str, str]:
        return {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": self.user,
            "sasl_plain_password": self.password,
        }


ALICE = SignIn(USER, PASSWORD)
