"""The mesh of a drill: one that the drill starts itself, or one that runs already; and what breaks and mends it.

Rule 1: brokers of a development mesh are killed with SIGKILL by the pids it keeps, and stay down while
        run/NAME.hold is there (`georelay up --restart`).
Rule 2: regions of a mesh in a WAN test bed are cut off with `georelay wan cut`; on loopback nothing can be cut.
Rule 3: brokers on other machines are broken and mended by commands of the operator's (`--break`, `--mend`), run without
        a shell, with {region} and {broker} filled in.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import georelay
from georelay.client.gateway_http import GatewayError, GatewayHttp
from georelay.tls import TlsContexts, client_contexts
from loadtest.campaign.mesh import CLI, CampaignFailed, NotYet, run_command, until
from loadtest.campaign.mesh import georelay as run_georelay

READY_S: Final = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshAccess:
    """How a mesh is reached and broken.

    Args:
        endpoints_file: as `georelay up` writes it.
        user: "name:password", "" when the mesh has no users.
        run_directory: where a development mesh keeps its pids; None: brokers are not on this machine.
        bed: name of its WAN test bed, "" without one.
        break_command, mend_command: "" for what the drill can do itself.
    """

    endpoints_file: Path
    user: str = ""
    run_directory: Path | None = None
    bed: str = ""
    break_command: str = ""
    mend_command: str = ""

    def __repr__(self) -> str:
        return f"MeshAccess({self.endpoints_file}, bed={self.bed!r})"


class DrillMesh:
    """A running mesh."""

    def __init__(self, access: MeshAccess) -> None:
        self.access = access
        try:
            self.endpoints: dict[str, Any] = json.loads(access.endpoints_file.read_text(encoding="utf-8"))
            self.regions: list[str] = list(self.endpoints["regions"])
            self.mesh_id = str(self.endpoints["mesh"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CampaignFailed(f"{access.endpoints_file} is no file of `georelay up --endpoints`") from error
        self.tls: TlsContexts | None = None
        if "ca" in self.endpoints:
            cert, key = (Path(str(self.endpoints[name])) for name in ("cert", "key"))
            self.tls = client_contexts(ca=Path(str(self.endpoints["ca"])), cert=cert, key=key)

    @property
    def can_kill(self) -> bool:
        """Return whether the drill can kill brokers and let them come back."""
        return self.access.run_directory is not None or bool(self.access.break_command)

    @property
    def can_cut(self) -> bool:
        """Return whether the drill can cut links."""
        return bool(self.access.bed)

    # --- speaking with it -----------------------------------------------------------------------------

    def dial(self, region: str) -> georelay.Connection:
        """Return an SDK connection that stays in a region."""
        name, _, password = self.access.user.partition(":")
        addresses = ",".join(self.endpoints["regions"][region]["grpc"])
        return georelay.connect(f"grpc://{addresses}", user=(name, password) if name else None, tls=self.tls)

    def gateway(self) -> GatewayHttp:
        """Return a client of its gateway."""
        return self._http(self.endpoints["gateway"]["http"][0])

    def admin(self, region: str, row: int = 0) -> GatewayHttp:
        """Return a client of one broker's admin listener."""
        return self._http(self.endpoints["regions"][region]["admin"][row])

    def _http(self, address: str) -> GatewayHttp:
        scheme = "http" if self.tls is None else "https"
        return GatewayHttp(f"{scheme}://{address}", user=self.access.user, tls=self.tls)

    async def cli(self, *words: str) -> tuple[int, str, str]:
        """Run `georelay WORDS` on it; return exit code, stdout and stderr."""
        user = {"GEORELAY_USER": self.access.user} if self.access.user else {}
        return await run_command((*CLI, *words, "--endpoints", str(self.access.endpoints_file)), environment=user)

    async def until_ready(self, regions: Sequence[str] = (), *, timeout_s: float = READY_S) -> None:
        """Wait until every broker of these regions (none named: of all) is ready. Raises CampaignFailed."""

        async def look() -> None:
            for region in regions or self.regions:
                for row in range(len(self.endpoints["regions"][region]["admin"])):
                    try:
                        async with self.admin(region, row) as client:
                            is_ready = bool((await client.get("/v1/status")).get("ready"))
                    except GatewayError:
                        is_ready = False
                    if not is_ready:
                        raise NotYet(f"broker {row + 1} of {region} is not ready")

        await until(look, within_s=timeout_s)

    # --- breaking and mending -------------------------------------------------------------------------

    def brokers_of(self, region: str) -> list[str]:
        """Return names such as "us-1"."""
        return [f"{region}-{row + 1}" for row in range(len(self.endpoints["regions"][region]["kafka"]))]

    async def kill(self, brokers: Sequence[str]) -> int:
        """Kill brokers at once so that they stay down; return when, monotonic nanoseconds. Raises CampaignFailed."""
        run = self.access.run_directory
        if self.access.break_command:
            at_ns = time.monotonic_ns()
            await asyncio.gather(*(self._command(self.access.break_command, broker) for broker in brokers))
            return at_ns
        if run is None:
            raise CampaignFailed("brokers on other machines: name the commands with --break and --mend")
        try:
            pids = [int((run / f"{broker}.pid").read_text()) for broker in brokers]
            for broker in brokers:
                (run / f"{broker}.hold").touch()
        except (OSError, ValueError) as error:
            raise CampaignFailed(f"no pid of a broker in {run}: {error}") from error
        at_ns = time.monotonic_ns()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return at_ns

    async def bring_back(self, brokers: Sequence[str]) -> None:
        """Let killed brokers come back; does not wait until they are ready."""
        if self.access.mend_command:
            await asyncio.gather(*(self._command(self.access.mend_command, broker) for broker in brokers))
        elif self.access.run_directory is not None:
            for broker in brokers:
                (self.access.run_directory / f"{broker}.hold").unlink(missing_ok=True)

    async def cut(self, *regions: str) -> int:
        """Cut a pair of regions, or one from all others; return when. Raises CampaignFailed."""
        return await self._wan("cut", *regions)

    async def heal(self, *regions: str) -> int:
        """Undo that; return when. Raises CampaignFailed."""
        return await self._wan("heal", *regions)

    async def _wan(self, *words: str) -> int:
        if not self.access.bed:
            raise CampaignFailed("links are cut in a WAN test bed only: `georelay up --wan`")
        said = await run_georelay("wan", *words, "--name", self.access.bed, "--json")
        return int(json.loads(said)["at_ns"])

    async def _command(self, template: str, broker: str) -> None:
        region = broker.rpartition("-")[0]
        words = [word.replace("{broker}", broker).replace("{region}", region) for word in shlex.split(template)]
        code, _, why = await run_command(words)
        if code:
            raise CampaignFailed(f"{words[0]} ended with {code}: {why.strip()[-200:]}")
