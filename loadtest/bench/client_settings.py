"""How the clients of a benchmark connect: settings of librdkafka beside those of the benchmark itself.

They go to the client processes in their environment, where other users of the machine do not see a password.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Final

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
