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


def tls_settings(mesh: MeshProcess) -> Settings:
    """Return how a mesh is dialled where nobody signs in."""
    return PLAIN if mesh.ca is None else {"security.protocol": "ssl", "ssl.ca.location": str(mesh.ca)}
