"""An event loop that dials somewhere else than it is told: every connection to a broker leads through a forwarder.

Addresses are rewritten where a socket is made, so it does not matter from where the broker has them: its
configuration, the region's controller, or another region.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import uvloop

from georelay.errors import ConfigError
from mesh.replication.link_framed import Carriers
from region.config import split_address

Address = tuple[str, int]


class RewiredLoop(uvloop.Loop):
    """uvloop; `wires` maps the address that is asked for to the one that is dialled."""

    wires: Mapping[Address, Address]

    async def create_connection(
        self, protocol_factory: Callable[[], Any], host: Any = None, port: Any = None, **options: Any
    ) -> Any:
        """Connect, as the base class does, to where the wire leads."""
        host, port = self.wires.get((host, port), (host, port))
        return await super().create_connection(protocol_factory, host, port, **options)

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        """Connect a socket in the same way: brokers dial their peers so (mesh.listening.dialling)."""
        host, port, *rest = address
        await super().sock_connect(sock, (*self.wires.get((host, port), (host, port)), *rest))


def rewired(wires: Mapping[Address, Address]) -> RewiredLoop:
    """Return a new loop."""
    loop = RewiredLoop()
    loop.wires = wires
    return loop


def dial_framed_only() -> None:
    """Let links that were reset before they were answered be dialled framed again: gRPC would go round the wires."""
    setattr(Carriers, "_is_older", _forgotten)  # noqa: B010 - of all brokers that are dialled so none is older


def _forgotten(_carriers: Carriers, _address: str) -> None:
    return


def read_wires(path: Path) -> dict[Address, Address]:
    """Read {"host:port asked for": "host:port dialled", ...}.

    Raises:
        ConfigError: the file cannot be read or has another form.
    """
    try:
        rows = json.loads(path.read_bytes())
        return {split_address(asked): split_address(dialled) for asked, dialled in rows.items()}
    except OSError as error:
        raise ConfigError(f"cannot read the wires {path}: {error.strerror}") from error
    except (ValueError, AttributeError, TypeError) as error:
        raise ConfigError(f'{path} is not {{"host:port": "host:port"}}: {error}') from error
