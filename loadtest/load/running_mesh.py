"""A mesh that runs already: nobody starts or stops it here, and it is broken only as far as the campaign says how.

Rule: brokers on other machines are broken and mended by commands of the operator's, run without a shell, with {region}
      and {broker} filled in.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from loadtest.campaign.mesh import CampaignFailed, run_command
from loadtest.load.campaign import Topology
from loadtest.mesh_process import MeshProcess
from loadtest.wan.wan_mesh import WanMesh


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
        """Run an operator's command for each of these brokers at once. Raises CampaignFailed."""
        await asyncio.gather(*(self._one(template, broker) for broker in brokers))

    async def _one(self, template: str, broker: str) -> None:
        region = broker.rpartition("-")[0]
        words = [word.replace("{broker}", broker).replace("{region}", region) for word in shlex.split(template)]
        code, _, why = await run_command(words)
        if code:
            raise CampaignFailed(f"{words[0]} ended with {code}: {why.strip()[-200:]}")
