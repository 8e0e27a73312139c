"""A mesh of broker processes whose disks, clocks and connections can be broken. No gateway: clients ask brokers."""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from loadtest.campaign.joined_broker import PORT_NAMES, toml_of
from loadtest.campaign.mesh import CampaignFailed
from loadtest.chaos.broker_process import BrokerProcess
from loadtest.chaos.control_file import HEALED
from loadtest.chaos.wires import Wires
from loadtest.free_ports import HOST, free_ports

BROKERS_PER_REGION: Final = 3


class ChaosMesh:
    """Regions of three brokers on this machine. Use as an async context manager.

    Args:
        directory: for configurations, logs and data; must be there.
        regions: names; the first one is where topics are defined.
    """

    def __init__(self, directory: Path, regions: Sequence[str]) -> None:
        self.regions = {region: [f"{region}-{row + 1}" for row in range(BROKERS_PER_REGION)] for region in regions}
        self.brokers: dict[str, BrokerProcess] = {}
        self.wires = Wires(self.regions)
        self._directory = directory
        self._addresses = _addresses([name for names in self.regions.values() for name in names])

    @property
    def home(self) -> str:
        """Return the first region: every topic's home."""
        return next(iter(self.regions))

    @property
    def endpoints(self) -> Mapping[str, Any]:
        """Return where clients connect, in the form of `georelay up`'s endpoint file."""
        return {
            "regions": {
                region: {port: [self._addresses[name][port] for name in names] for port in ("kafka", "grpc", "admin")}
                for region, names in self.regions.items()
            }
        }

    @property
    def gateway(self) -> str:
        """Return the base URL at which topics are created: any broker has it."""
        return f"http://{self._addresses[self.regions[self.home][0]]['admin']}"

    def of(self, region: str) -> list[BrokerProcess]:
        """Return the brokers of a region."""
        return [self.brokers[name] for name in self.regions[region]]

    async def __aenter__(self) -> ChaosMesh:
        """Start everything and wait until it is ready. Raises CampaignFailed."""
        mesh_id = uuid.uuid4().hex
        targets = {
            port: {name: (HOST, int(rows[port].rpartition(":")[2])) for name, rows in self._addresses.items()}
            for port in ("peers", "link")
        }
        await self.wires.start(peers=targets["peers"], links=targets["link"])
        for region, names in self.regions.items():
            for row, name in enumerate(names):
                broker = BrokerProcess(
                    name,
                    directory=self._directory,
                    data_dir=self._directory / "data" / name,
                    admin=self._addresses[name]["admin"],
                )
                document = self._document(mesh_id, region, row + 1, broker)
                broker.config_file.write_text(toml_of(document), encoding="utf-8")
                broker.wires_file.write_text(json.dumps(self._wires_of(region, name)), encoding="utf-8")
                self.brokers[name] = broker
        try:
            await asyncio.gather(*(broker.start() for broker in self.brokers.values()))
            await asyncio.gather(*(broker.wait_until_ready() for broker in self.brokers.values()))
            if not self.wires.are_used:
                raise CampaignFailed("the brokers do not use the forwarders between them: cuts would cut nothing")
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop everything."""
        await self.close()

    async def close(self) -> None:
        """Stop everything."""
        await asyncio.gather(*(broker.stop() for broker in self.brokers.values()))
        await self.wires.close()

    async def heal(self) -> list[str]:
        """Undo every fault, start what is down, wait until all are ready; return the brokers that ended by themselves.

        Raises:
            CampaignFailed: a broker does not become ready.
        """
        await self.wires.heal()
        ended = []
        for name, broker in self.brokers.items():
            broker.thaw()
            if broker.ended_by_itself:
                ended.append(f"{name}: {broker.last_words()}")
                await broker.reap()
            await broker.break_with(**HEALED)
            if not broker.is_running:
                await broker.start()
        await asyncio.gather(*(broker.wait_until_ready() for broker in self.brokers.values()))
        return ended

    def _document(self, mesh_id: str, region: str, number: int, broker: BrokerProcess) -> dict[str, Any]:
        """Return a configuration."""

        def reached(name: str) -> dict[str, Any]:
            ports = self._addresses[name]
            return {"number": int(name.rpartition("-")[2]), "peers": ports["peers"], "link": ports["link"]}

        return {
            "mesh_id": mesh_id,
            "region": region,
            "broker": number,
            "data_dir": str(broker.data_dir),
            "definitions_home": self.home,
            "die_with_parent": os.getpid(),
            "listen": self._addresses[broker.name],
            "regions": [
                {"name": other, "number": row, "brokers": [reached(name) for name in names]}
                for row, (other, names) in enumerate(self.regions.items(), start=1)
            ],
        }

    def _wires_of(self, region: str, name: str) -> dict[str, str]:
        """Return, for a broker, each true address of another one and the forwarder that it dials instead."""
        wires = {}
        for (source, target), forwarder in self.wires.peers.items():
            if source == name:
                wires[self._addresses[target]["peers"]] = forwarder.address
        for (source, target), forwarder in self.wires.links.items():
            if source == region:
                wires[self._addresses[target]["link"]] = forwarder.address
        return wires


def _addresses(names: Sequence[str]) -> dict[str, dict[str, str]]:
    first = free_ports(len(names) * len(PORT_NAMES))[0]
    return {
        name: {port: f"{HOST}:{first + row * len(PORT_NAMES) + place}" for place, port in enumerate(PORT_NAMES)}
        for row, name in enumerate(names)
    }
