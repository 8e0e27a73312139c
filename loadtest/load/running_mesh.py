"""A mesh that runs already: nobody starts or stops it here, and it is broken only as far as the campaign says how.

Rule: brokers on other machines are broken and mended by commands of the operator's, or of Ansible, run without a shell,
      with {region}, {broker} and {number} filled in.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from loadtest.campaign.mesh import CampaignFailed, run_command
from loadtest.load.campaign import Campaign, Topology
from loadtest.load.inventory_core import commands_of, endpoints_of, folder_of
from loadtest.mesh_process import MeshProcess
from loadtest.wan.wan_mesh import WanMesh

SAID_CHARS_MAX: Final = 1_000  # why the script of an inventory failed stands before what Ansible made of that
# To Ansible an inventory that is not there is an empty one otherwise.
UNPARSED: Final = {"ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "1"}


class RunningMesh(WanMesh):
    """What its endpoints file tells, and GEORELAY_USER. Use as an async context manager."""

    def __init__(self, topology: Topology) -> None:
        """Take what is known of it. Raises CampaignFailed: it is not there."""
        file = Path(topology.endpoints)
        try:
            self.endpoints = json.loads(file.read_text(encoding="utf-8"))
            self.regions = list(self.endpoints["regions"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CampaignFailed(f"{file}: no mesh there; `georelay up --endpoints FILE` writes it") from error
        self.endpoints_file = file
        self.data = Path(topology.data) if topology.data else None
        self.bed = topology.bed
        self.break_command, self.mend_command = topology.break_command, topology.mend_command
        name, _, password = os.environ.get("GEORELAY_USER", "").partition(":")
        self.user = (name, password) if name else None

    async def __aenter__(self) -> MeshProcess:
        """Leave it as it is."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Leave it as it is."""

    async def command(self, template: str, brokers: Sequence[str]) -> None:
        """Run an operator's command for each of these brokers at once. Raises CampaignFailed, when all have ended."""
        ends = await asyncio.gather(*(self._one(template, broker) for broker in brokers), return_exceptions=True)
        for end in ends:
            if end is not None:
                raise end

    async def _one(self, template: str, broker: str) -> None:
        region, _, number = broker.rpartition("-")
        words = shlex.split(template)
        for name, value in {"{broker}": broker, "{region}": region, "{number}": number}.items():
            words = [word.replace(name, value) for word in words]
        await _answer(*words)


class InventoryMesh(RunningMesh):
    """The mesh that Ansible deployed: what the inventory tells, and the mesh's folder. `directory` is the run's."""

    def __init__(self, campaign: Campaign, directory: Path) -> None:
        self._campaign, self.directory = campaign, directory

    async def __aenter__(self) -> MeshProcess:
        """Ask Ansible for it, and leave it as it is. Raises CampaignFailed."""
        topology = self._campaign.topology
        said = await _answer("ansible-inventory", "-i", topology.inventory, "--list")
        try:
            listed = json.loads(said)
            folder = Path(folder_of(listed, home=str(Path.home())))
            record, ca = folder / "mesh.json", folder / "pki" / "bundle.crt"
            if not (record.is_file() and ca.is_file()):
                raise CampaignFailed(f"{record} or {ca} is not there: set georelay_mesh_dir in {topology.inventory}")
            known = json.loads(record.read_text(encoding="utf-8"))
            is_broken = bool(self._campaign.faults)
            document = endpoints_of(listed, known, topology=topology, ca=str(ca.resolve()), is_broken=is_broken)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CampaignFailed(f"{topology.inventory} is no mesh that can be loaded: {error}") from error
        if not os.environ.get("GEORELAY_USER"):
            raise CampaignFailed(f"set GEORELAY_USER to NAME:PASSWORD; that of admin is in {folder}/admin.password")
        file = self.directory / "endpoints.json"
        file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        # Its processes are elsewhere: the folder `mesh` of the run names none, and holds none down.
        topology = replace(topology, endpoints=str(file), data=str(self.directory / "mesh"))
        if not topology.break_command:
            break_command, mend_command = commands_of(topology.inventory)
            topology = replace(topology, break_command=break_command, mend_command=mend_command)
        super().__init__(topology)
        return self


async def _answer(*words: str) -> str:
    """Return what a command prints. Raises CampaignFailed with the end of what it said, on one line."""
    try:
        code, said, why = await run_command(words, environment=UNPARSED)
    except OSError as error:
        raise CampaignFailed(f"{words[0]} cannot be run ({error.strerror}): is it installed, and on PATH?") from error
    if code:  # ansible tells its failures on standard output
        raise CampaignFailed(
            f"{words[0]} ended with {code}: {' '.join((why.strip() or said).split())[-SAID_CHARS_MAX:]}"
        )
    return said
