"""A whole drill: a mesh, its runs with victims in turn, and the two files at the end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import platform
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import structlog

from georelay.client.gateway_http import GatewayError
from loadtest.campaign.mesh import CampaignFailed
from loadtest.drill import evidence, scripts
from loadtest.drill.drill_core import Findings
from loadtest.drill.mesh import DrillMesh, MeshAccess
from loadtest.drill.report_core import document_of, markdown_of, rto_s
from loadtest.drill.run_result import RunResult
from loadtest.drill.scene import How, Load, Script, run
from loadtest.mesh_process import MeshProcess
from loadtest.scratch import scratch_directory
from loadtest.wan.wan_mesh import PAIRS, WanMesh

REGIONS: Final = "us,eu,ap"  # of a mesh without a test bed
VOTERS_MIN: Final = 3
REGION_LOSS: Final = "region-loss"
LINK_CUT: Final = "link-cut"
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillPlan:
    """What the command line asked for; see loadtest.drill.command. `running`: None: start a mesh."""

    kind: str
    runs: int = 1
    how: str = ""
    pairs: str = ""
    is_loopback: bool = False
    brokers_per_region: int = 1
    data: Path | None = None
    running: MeshAccess | None = None
    rate_per_s: float = 50.0
    fault_s: float = 10.0
    out: Path = field(default_factory=Path)


def carry_out(plan: DrillPlan, *, say: Say) -> bool:
    """Do it, and return whether every promise was kept. Raises CampaignFailed."""
    # Its clients lose connections all the time, as they should; that is counted, not logged.
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        return asyncio.run(_carry_out(plan, say))
    finally:
        structlog.configure(**before)


async def _carry_out(plan: DrillPlan, say: Say) -> bool:
    began = datetime.now(UTC)
    results: list[RunResult] = []
    async with _opened(plan) as mesh:
        hows = _ways(plan, mesh)
        say(f"mesh {mesh.mesh_id}: {', '.join(mesh.regions)}, {_where(plan, mesh)}")
        failure: CampaignFailed | None = None
        for number in range(plan.runs):
            try:
                result = await _one(plan, mesh, number, hows[number % len(hows)], began)
            except CampaignFailed as error:
                failure = error
                break
            results.append(result)
            say(line_of(number + 1, result))
        if failure is not None and not results:
            raise failure
        head = _head(plan, mesh, began, failure)
    document = document_of(head, results)
    for path in _written(plan.out, plan.kind, began, document):
        say(str(path))
    summary = document["summary"]
    for text in (*summary["broken"], *(f"goal missed: {each}" for each in summary["missed"])):
        say(text)
    say(f"{summary['verdict']}: {len(results)} of {plan.runs} runs")
    if failure is not None:
        raise failure
    return bool(summary["verdict"] == "KEPT")


@contextlib.asynccontextmanager
async def _opened(plan: DrillPlan) -> AsyncIterator[DrillMesh]:
    if plan.running is not None:
        yield DrillMesh(plan.running)
        return
    pairs = "" if plan.is_loopback else plan.pairs or PAIRS
    count, arguments = plan.brokers_per_region, ("--restart",)
    with contextlib.ExitStack() as stack:
        directory = plan.data or stack.enter_context(scratch_directory("georelay-drill-"))
        access = MeshAccess(endpoints_file=directory / "endpoints.json", run_directory=directory / "mesh" / "run")
        own: MeshProcess
        if pairs:
            own = bed = WanMesh(directory, brokers_per_region=count, pairs=pairs, arguments=arguments)
            access = replace(access, user=bed.credentials, bed=bed.bed)
        else:
            own = MeshProcess(directory, regions=REGIONS, brokers_per_region=count, arguments=arguments)
        try:
            await own.__aenter__()
        except RuntimeError as error:
            raise CampaignFailed(str(error)) from error
        try:
            yield DrillMesh(access)
        finally:
            await own.__aexit__()


def _ways(plan: DrillPlan, mesh: DrillMesh) -> list[str]:
    """Return how the runs break it, in turn. Raises CampaignFailed for what cannot be done to this mesh."""
    if plan.kind == LINK_CUT:
        if not mesh.can_cut:
            raise CampaignFailed("a link is cut in a WAN test bed only: leave out --loopback, or name the --bed")
        return ["link"]
    if not mesh.can_kill and not (plan.kind == REGION_LOSS and plan.how == How.CUT):
        raise CampaignFailed("brokers of a running mesh: name its --data, or the commands with --break and --mend")
    if plan.kind != REGION_LOSS:
        if any(len(mesh.brokers_of(region)) < VOTERS_MIN for region in mesh.regions):
            raise CampaignFailed("broker-loss needs three brokers per region: with fewer the region is lost")
        return ["kill"]
    if len(mesh.regions) < VOTERS_MIN:
        raise CampaignFailed("region-loss needs three regions: of two nobody can take over by itself")
    wanted = plan.how or ("both" if mesh.can_cut else "kill")
    if wanted != How.KILL and not mesh.can_cut:
        raise CampaignFailed("a region is cut off in a WAN test bed only: --how kill, or leave out --loopback")
    return [How.KILL, How.CUT] if wanted == "both" else [wanted]


async def _one(plan: DrillPlan, mesh: DrillMesh, number: int, how: str, began: datetime) -> RunResult:
    await mesh.until_ready()
    leader = await evidence.until_control(mesh, min(VOTERS_MIN, len(mesh.regions)))
    victim = victim_of(number, mesh.regions, leader)
    topic = f"drill-{began:%H%M%S}-{number + 1}"
    load = Load(rate_per_s=plan.rate_per_s, fault_s=plan.fault_s)
    try:
        return await run(
            mesh, _script(plan.kind, how), topic=topic, home=victim, how=how, control_leader=leader, load=load
        )
    finally:
        if plan.running is not None:  # somebody else's mesh is left as it was
            with contextlib.suppress(GatewayError):
                await evidence.delete_topic(mesh, topic)


def victim_of(number: int, regions: Sequence[str], leader: str) -> str:
    """Return the home of run `number` (0 first): control's leader, and then the others, in turn."""
    others = [region for region in regions if region != leader]
    turn = number % len(regions)
    return leader if turn == 0 else others[(turn - 1) % len(others)]


def _script(kind: str, how: str) -> Script:
    if kind == REGION_LOSS:
        return scripts.region_loss(How(how))
    return scripts.link_cut() if kind == LINK_CUT else scripts.broker_loss()


def line_of(number: int, result: RunResult) -> str:
    """Return one run in one line."""
    found: Findings = result.findings
    rto = rto_s(result)
    led = ", led control" if result.victim == result.control_leader else ""
    return (
        f"run {number}: {result.victim} ({result.how}{led}): RTO {'-' if rto is None else f'{rto:.2f} s'}, "
        f"geo-acknowledged {found.geo_acknowledged} lost {found.geo_lost}, region-acknowledged "
        f"{found.region_acknowledged} orphaned {found.region_orphaned} lost {found.region_lost}, twice "
        f"{found.duplicated}, out of order {found.reordered}, audit {result.audit[0]}"
        + ("" if not result.broken else f"; BROKEN: {'; '.join(result.broken)}")
    )


def _where(plan: DrillPlan, mesh: DrillMesh) -> str:
    if plan.running is not None:
        return "a running mesh" + (f" in test bed {mesh.access.bed}" if mesh.access.bed else "")
    count = f"{plan.brokers_per_region} brokers per region"
    return f"loopback, {count}" if plan.is_loopback else f"test bed {plan.pairs or PAIRS}, {count}, TLS"


def _head(plan: DrillPlan, mesh: DrillMesh, began: datetime, failure: CampaignFailed | None) -> dict[str, Any]:
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    return {
        "kind": plan.kind,
        "began": f"{began:%Y-%m-%d %H:%M:%S} UTC",
        "mesh": mesh.mesh_id,
        "where": _where(plan, mesh),
        "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}, load average {load} at the end.",
        "rate_per_s": plan.rate_per_s,
        "fault_s": plan.fault_s,
        "ended_early": str(failure or ""),
    }


def _written(out: Path, kind: str, began: datetime, document: dict[str, Any]) -> list[Path]:
    out.mkdir(parents=True, exist_ok=True)
    stem = out / f"drill-{kind}-{began:%Y%m%dT%H%M%SZ}"
    paths = [stem.with_suffix(".json"), stem.with_suffix(".md")]
    paths[0].write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    paths[1].write_text(markdown_of(document), encoding="utf-8")
    return paths
