"""A mesh here whose links between regions go through forwarders: they can be cut without a test bed and root."""

from __future__ import annotations

import asyncio
import contextlib
import tomllib
from collections.abc import Iterable, Sequence
from itertools import permutations
from pathlib import Path
from typing import Final

from loadtest.campaign.forwarder import Forwarder
from loadtest.mesh_process import MeshProcess

LOOK_S: Final = 0.02


class LinkedMesh(MeshProcess):
    """A forwarder in front of every broker of every region, for each region that dials it."""

    def __init__(
        self, directory: Path, *, regions: Sequence[str], brokers_per_region: int, arguments: tuple[str, ...] = ()
    ) -> None:
        self._regions = tuple(regions)
        self._forwarders = {
            (source, target, number + 1): Forwarder()
            for source, target in permutations(regions, 2)
            for number in range(brokers_per_region)
        }
        self._cut: set[tuple[str, str, int]] = set()
        links = tuple(
            word
            for (source, target, number), forwarder in self._forwarders.items()
            for word in ("--link-override", f"{source}:{target}:{number}={forwarder.address}")
        )
        super().__init__(
            directory,
            regions=",".join(regions),
            brokers_per_region=brokers_per_region,
            arguments=(*arguments, *links),
        )

    async def __aenter__(self) -> MeshProcess:
        """Start everything. Raises RuntimeError."""
        for forwarder in self._forwarders.values():
            await forwarder.start()
        pointing = asyncio.create_task(self._point_when_known())
        try:
            return await super().__aenter__()
        finally:
            pointing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await pointing

    async def __aexit__(self, *_: object) -> None:
        """Stop everything."""
        await super().__aexit__()
        for forwarder in self._forwarders.values():
            await forwarder.close()

    async def cut(self, *ends: str) -> None:
        """Reset and refuse, in both directions, between two regions, or between one and all others."""
        for key in self._between(ends):
            if key not in self._cut:
                self._cut.add(key)
                await self._forwarders[key].cut()

    async def heal(self, *ends: str) -> None:
        """Undo `cut`."""
        for key in self._between(ends):
            if key in self._cut:
                self._cut.remove(key)
                await self._forwarders[key].heal()

    def _between(self, ends: Sequence[str]) -> Iterable[tuple[str, str, int]]:
        return [key for key in self._forwarders if set(ends) <= set(key[:2])]

    async def _point_when_known(self) -> None:
        """`georelay up` chooses the ports and writes them into its configuration files before it starts a broker."""
        for (_, target, number), forwarder in self._forwarders.items():
            config = self.directory / "mesh" / "config" / f"{target}-{number}.toml"
            while not config.exists():
                await asyncio.sleep(LOOK_S)
            host, _, port = tomllib.loads(config.read_text())["listen"]["link"].rpartition(":")
            forwarder.target = host, int(port)
