"""Attackers of a broker's listeners, as clients see them: floods of connections, and clients that never finish."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from loadtest.campaign.mesh import CampaignFailed
from loadtest.child_process import PYTHON, guarded
from loadtest.load.campaign import Fault

if TYPE_CHECKING:
    from loadtest.load.stage import Stage

REFUSED: Final = "georelay_listener_refused_total{"


@asynccontextmanager
async def flood(stage: Stage, fault: Fault, what: str) -> AsyncIterator[dict[str, Any]]:
    """Attempt so many connections per second at its Kafka listener."""
    attempts = int(fault.per_s * fault.for_s)
    async with _attack(stage, "connect", stage.address(what, "kafka"), str(attempts), str(fault.per_s)) as told:
        yield told


@asynccontextmanager
async def slow_clients(stage: Stage, fault: Fault, what: str) -> AsyncIterator[dict[str, Any]]:
    """Hold connections at its Kafka and HTTP listeners."""
    listeners = ",".join(stage.address(what, listener) for listener in ("kafka", "admin"))
    async with _attack(stage, "loris", str(fault.for_s), listeners, str(stage.endpoints["ca"])) as told:
        yield told


@asynccontextmanager
async def _attack(stage: Stage, *words: str) -> AsyncIterator[dict[str, Any]]:
    """Run an attacker, which ends with us, however we end; afterwards what it counted is told."""
    attacker = await asyncio.create_subprocess_exec(
        *guarded(PYTHON, "-m", "loadtest.load.flooder", *words), stdout=asyncio.subprocess.PIPE
    )
    told: dict[str, Any] = {}
    try:
        yield told
        output, _ = await attacker.communicate()
    finally:
        if attacker.returncode is None:
            attacker.kill()
            await attacker.wait()
    if attacker.returncode:
        raise CampaignFailed(f"the attacker ended with {attacker.returncode}")
    told["attacked"] = json.loads(output)
    refused: Counter[str] = Counter()
    for line in await stage.metric_lines(REFUSED):
        labels = dict(re.findall(r'(\w+)="(\w+)"', line))
        refused[f"{labels['listener']}: {labels['reason']}"] += int(float(line.split()[-1]))
    told["refused so far"] = dict(refused)
