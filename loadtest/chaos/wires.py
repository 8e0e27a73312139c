"""Every TCP connection between two brokers of a region, and between two regions, through a forwarder of its own.

A wire has a direction: (us-1, us-2) carries the connections that us-1 dials. Brokers answer on connections that they
dial themselves, so cutting one direction makes a broker that hears and is not heard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import permutations
from typing import TypeAlias

from loadtest.campaign.forwarder import Forwarder

Wire: TypeAlias = tuple[str, str]  # (who dials, who is dialled): names of brokers, or a region's name and a broker's


class Wires:
    """The forwarders of a mesh.

    Args:
        regions: region name to the names of its brokers.
    """

    def __init__(self, regions: Mapping[str, Iterable[str]]) -> None:
        self.peers = {pair: Forwarder() for brokers in regions.values() for pair in permutations(brokers, 2)}
        self.links = {
            (source, broker): Forwarder()
            for source, target in permutations(regions, 2)
            for broker in regions[target]
        }  # fmt: skip
        self._cut: list[Forwarder] = []
        self._frozen: list[Forwarder] = []

    async def start(self, *, peers: Mapping[str, tuple[str, int]], links: Mapping[str, tuple[str, int]]) -> None:
        """Accept connections; the true addresses of the brokers by name."""
        for (_, target), forwarder in self.peers.items():
            forwarder.target = peers[target]
        for (_, target), forwarder in self.links.items():
            forwarder.target = links[target]
        for forwarder in self._all():
            await forwarder.start()

    @property
    def are_used(self) -> bool:
        """Return whether every wire inside a region has carried a connection."""
        return all(forwarder.connections_accepted for forwarder in self.peers.values())

    async def cut_peers(self, chosen: Callable[[Wire], bool]) -> None:
        """Reset and refuse on the chosen wires inside regions."""
        await self._cut_these([forwarder for wire, forwarder in self.peers.items() if chosen(wire)])

    async def cut_links(self, chosen: Callable[[Wire], bool]) -> None:
        """Reset and refuse on the chosen wires between regions."""
        await self._cut_these([forwarder for wire, forwarder in self.links.items() if chosen(wire)])

    def freeze_peers(self, chosen: Callable[[Wire], bool]) -> None:
        """Let nothing pass on the chosen wires inside regions."""
        for wire, forwarder in self.peers.items():
            if chosen(wire):
                forwarder.freeze()
                self._frozen.append(forwarder)

    async def heal(self) -> None:
        """Undo everything."""
        while self._frozen:
            self._frozen.pop().thaw()
        while self._cut:
            await self._cut.pop().heal()

    async def close(self) -> None:
        """End."""
        for forwarder in self._all():
            await forwarder.close()

    async def _cut_these(self, forwarders: Iterable[Forwarder]) -> None:
        for forwarder in forwarders:
            if forwarder not in self._cut:
                self._cut.append(forwarder)
                await forwarder.cut()

    def _all(self) -> list[Forwarder]:
        return [*self.peers.values(), *self.links.values()]
