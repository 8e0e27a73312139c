"""A mesh in a WAN test bed with a gateway in each region, and one address that leads to the gateway nearest by.

`georelay up` has one gateway in the hub, as far from nobody. Here each region has one of its own, in the region's pool.
Every one of them listens on all addresses of its region; SHARED is one of all regions, as an anycast address is.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import tomllib
import urllib.error
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from georelay.pki.directory import PkiDirectory
from loadtest.bench import mesh_asks
from loadtest.wan.wan_mesh import COMMAND, WanMesh

REGIONS: Final = ("us", "eu", "ap")
EDGE: Final = "edge"  # a place between the regions: clients, no brokers
PAIRS: Final = "us-eu=70ms,us-ap=150ms,eu-ap=120ms,edge-us=20ms,edge-eu=40ms,edge-ap=140ms"
HTTP_PORT, KAFKA_PORT, GRPC_PORT, GOSSIP_PORT = 24_000, 24_001, 24_002, 24_003
OWN_ADDRESS: Final = 9  # of a region; brokers have the first ones
SHARED: Final = "198.19.255.250"
READY_S: Final = 120.0


class Lost(Exception):
    """Something that was acknowledged is not there; the text says how much."""


class GatewayBed(WanMesh):
    """Three regions of one broker, a gateway in each, and EDGE. Use as an async context manager."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, brokers_per_region=1, pairs=PAIRS, regions=REGIONS, arguments=("--no-traces",))
        self._gateways: list[subprocess.Popen[str]] = []

    async def __aenter__(self) -> GatewayBed:
        """Start all of it and wait until every gateway knows all regions."""
        await super().__aenter__()
        try:
            self._issue()
            for region in REGIONS:
                self._start_gateway(region)
            async with asyncio.timeout(READY_S):
                for region in REGIONS:
                    while not await asyncio.to_thread(self._knows_all, region):
                        await asyncio.sleep(0.5)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop the gateways, then the mesh."""
        for process in self._gateways:
            process.terminate()
        for process in self._gateways:
            process.wait()
        super().stop()

    def address(self, place: str, number: int = OWN_ADDRESS) -> str:
        """Return an address of a region, that of its gateway unless another one is asked for."""
        return super().address(place, number)

    def inside(self, place: str, *words: str, **options: Any) -> subprocess.Popen[str]:
        """Start a program at a place; it ends with the bed."""
        command = [*COMMAND, "exec", place, "--name", self.bed, "--", *words]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, **(pipes | options))

    def ask(self, path: str, body: Mapping[str, Any] | None = None, *, address: str = "") -> Any:
        """Ask a gateway, that of the hub unless another address is given; returns what it says."""
        return json.loads(mesh_asks.ask(self, path, body, address=address) or b"null")

    def _knows_all(self, region: str) -> bool:
        try:
            found = self.ask("/v1/resolve", address=f"{self.address(region)}:{HTTP_PORT}")
        except (OSError, urllib.error.HTTPError):
            return False
        return sum(bool(row["ready"]) for row in found["regions"]) == len(REGIONS)

    def _issue(self) -> None:
        pki = PkiDirectory.open(self.directory / "mesh" / "pki")
        pki.issue_gateway("edge", hosts=(SHARED, *map(self.address, REGIONS)))

    def _start_gateway(self, region: str) -> None:
        self.inside(region, "ip", "address", "add", f"{SHARED}/32", "dev", "lo").communicate(timeout=30)
        home = self.directory / "mesh"
        keys = home / "gossip" / f"gateway-{region}.lan.keyring"
        shutil.copy(home / "gossip" / f"{region}-1.lan.keyring", keys)
        of_hub = tomllib.loads((home / "config" / "gateway.toml").read_text())
        of_broker = tomllib.loads((home / "config" / f"{region}-1.toml").read_text())
        tls = {
            name: str(home / "pki" / f"gateway-edge.{end}") for name, end in (("cert_file", "crt"), ("key_file", "key"))
        }
        sections: dict[str, dict[str, Any]] = {
            "listen": {
                "http": f"0.0.0.0:{HTTP_PORT}",
                "kafka": f"0.0.0.0:{KAFKA_PORT}",
                "grpc": f"0.0.0.0:{GRPC_PORT}",
            },
            "tls": of_hub["tls"] | tls,
            "upstream_tls": of_hub["upstream_tls"],
            "gossip.lan": {
                "listen": f"{self.address(region)}:{GOSSIP_PORT}",
                "keyring_file": str(keys),
                "seeds": [of_broker["gossip"]["lan"]["listen"]],
            },
        }
        first = {"mesh_id": of_hub["mesh_id"], "name": f"gateway-{region}", "region": region}
        lines = _rows(first | {"users_file": of_hub["users_file"]})
        for name, rows in sections.items():
            lines += ["", f"[{name}]", *_rows(rows)]
        config = home / "config" / f"gateway-{region}.toml"
        config.write_text("\n".join(lines) + "\n")
        words = [sys.executable, "-P", "-m", "gateway", "--config", str(config)]
        with (home / "logs" / f"gateway-{region}.log").open("wb") as said:
            self._gateways.append(self.inside(region, *words, stdout=said, stderr=said))


def _rows(values: dict[str, Any]) -> list[str]:
    """Return TOML; JSON's texts, lists of them and truth values are TOML's."""
    return [f"{name} = {json.dumps(value)}" for name, value in values.items()]
