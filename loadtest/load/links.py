"""A mesh here whose connections go through forwarders: they are cut and frozen without a test bed and root.

A wire has a direction: (us, eu-1) carries what the brokers of us dial at eu-1; (us-1, us-2) what us-1 dials inside its
region. Brokers answer on connections that they dial themselves, so cutting one direction makes a broker that hears and
is not heard.

Rule: what a broker dials is mapped where it dials, whoever told it the address: it knows those of others from several
      sources, and goes round a forwarder that only one of them names.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tomllib
from collections.abc import Callable, Iterable, Sequence
from itertools import permutations
from pathlib import Path
from typing import Final, TypeAlias

from loadtest.campaign.forwarder import Forwarder
from loadtest.campaign.mesh import CampaignFailed, meanwhile
from loadtest.mesh_process import MeshProcess

LOOK_S: Final = 0.02
WIRES_FILE: Final = "wires.json"
PROGRAM: Final = (sys.executable, "-P", "-m", "loadtest.load.breakable_broker")
Wire: TypeAlias = tuple[str, str]  # (who dials, who is dialled): a region or a broker, and a broker


class LinkedMesh(MeshProcess):
    """A forwarder in front of every broker of every region, for each region that dials it, and each peer where told.

    Args:
        program: more words for its brokers, which are breakable ones. has_peers: inside regions too.
    """

    def __init__(
        self,
        directory: Path,
        *,
        regions: Sequence[str],
        brokers_per_region: int,
        arguments: tuple[str, ...] = (),
        program: Sequence[str] = (),
        has_peers: bool = False,
    ) -> None:
        brokers = {region: [f"{region}-{number + 1}" for number in range(brokers_per_region)] for region in regions}
        self.links: dict[Wire, Forwarder] = {
            (source, broker): Forwarder() for source, target in permutations(regions, 2) for broker in brokers[target]
        }
        self.peers: dict[Wire, Forwarder] = {
            pair: Forwarder() for names in brokers.values() if has_peers for pair in permutations(names, 2)
        }
        self._cut: set[Wire] = set()
        words = (*PROGRAM, *program, "--wires", str(directory / WIRES_FILE))
        super().__init__(
            directory,
            regions=",".join(regions),
            brokers_per_region=brokers_per_region,
            arguments=(*arguments, *(f"--broker-program={word}" for word in words)),
        )

    async def __aenter__(self) -> MeshProcess:
        """Start everything. Raises RuntimeError."""
        self.directory.mkdir(parents=True, exist_ok=True)
        told = {" ".join(wire): forwarder.address for wire, forwarder in self._wires.items()}
        (self.directory / WIRES_FILE).write_text(json.dumps(told), encoding="utf-8")
        for forwarder in self._wires.values():
            await forwarder.start()
        async with meanwhile(self._point_when_known()):
            return await super().__aenter__()

    async def __aexit__(self, *_: object) -> None:
        """Stop everything."""
        await super().__aexit__()
        for forwarder in self._wires.values():
            await forwarder.close()

    async def cut(self, *ends: str) -> None:
        """Reset and refuse, in both directions, between two regions, or between one and all others."""
        await self.cut_wires(self._between(ends))

    async def heal(self, *ends: str) -> None:
        """Undo `cut`."""
        await self.heal_wires(self._between(ends))

    def peers_where(self, chosen: Callable[[Wire], bool]) -> list[Wire]:
        """Return wires inside regions. Raises CampaignFailed: one of them has never carried anything."""
        wires = [wire for wire in self.peers if chosen(wire)]
        if unused := [wire for wire in wires if not self.peers[wire].connections_accepted]:
            raise CampaignFailed(f"{' does not reach '.join(unused[0])} through its forwarder: a cut would cut nothing")
        return wires

    async def cut_wires(self, wires: Iterable[Wire]) -> None:
        """Reset and refuse there, what is not cut yet."""
        for wire in wires:
            if wire not in self._cut:
                self._cut.add(wire)
                await self._wires[wire].cut()

    async def heal_wires(self, wires: Iterable[Wire]) -> None:
        """Undo `cut_wires`."""
        for wire in wires:
            if wire in self._cut:
                self._cut.remove(wire)
                await self._wires[wire].heal()

    @property
    def _wires(self) -> dict[Wire, Forwarder]:
        return self.links | self.peers

    def _between(self, ends: Sequence[str]) -> list[Wire]:
        return [wire for wire in self.links if set(ends) <= {wire[0], wire[1].rpartition("-")[0]}]

    async def _point_when_known(self) -> None:
        """`georelay up` chooses the ports and writes them into its configuration files before it starts a broker."""
        for listener, wires in (("link", self.links), ("peers", self.peers)):
            for (_, broker), forwarder in wires.items():
                config = self.directory / "mesh" / "config" / f"{broker}.toml"
                while not config.exists():
                    await asyncio.sleep(LOOK_S)
                host, _, port = tomllib.loads(config.read_text())["listen"][listener].rpartition(":")
                forwarder.target = host, int(port)
