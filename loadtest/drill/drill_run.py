"""A whole drill: a mesh, its runs with victims in turn, each a campaign of its own, and the two files at the end."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from loadtest.campaign.mesh import CLI, CampaignFailed, NotYet, run_command, until
from loadtest.campaign.phases_core import HEALED
from loadtest.drill.drill_core import broken_promises, findings_of
from loadtest.drill.report_core import FAILED, Run, document_of, markdown_of
from loadtest.drill.shot import LINK, DrillPlan, How, Kind, Shot, text_of
from loadtest.load import homes
from loadtest.load.campaign import Campaign
from loadtest.load.campaign_file import parse
from loadtest.load.figures_core import heals_of
from loadtest.load.locust_processes import RunOptions
from loadtest.load.runner import judged, keep_traces, play
from loadtest.load.stage import Stage, meshed, staged
from loadtest.mesh_process import MeshProcess

VOTERS_MIN: Final = 3
CONTROL_S: Final = 60.0
Say = Callable[[str], None]


async def carry_out(plan: DrillPlan, *, say: Say) -> str:
    """Do it, and return the verdict. Raises CampaignError, and CampaignFailed unless a run before has failed."""
    began = datetime.now(UTC)
    folder = plan.out / f"drill-{plan.kind}-{began:%Y%m%dT%H%M%SZ}"
    hows = ways(plan)
    results: list[Run] = []
    failure: CampaignFailed | None = None
    regions = plan.topology.regions
    first, _ = _campaign(Shot(plan=plan, how=hows[-1], topic="drill", home=regions[0], regions=regions))
    async with meshed(first, plan.data or folder / "mesh") as mesh:
        say(f"mesh {mesh.endpoints['mesh']}: {', '.join(mesh.endpoints['regions'])}, {_where(plan)}")
        for number in range(plan.runs):
            try:
                result = await _one(plan, mesh, number, hows[number % len(hows)], began, folder)
            except CampaignFailed as error:
                failure = error
                break
            results.append(result)
            say(line_of(number + 1, result))
        head = _head(plan, str(mesh.endpoints["mesh"]), began, failure)
    if plan.data is None:
        keep_traces(folder)
    if failure is not None and not results:
        raise failure
    document = document_of(head, results)
    for path in _written(folder, document):
        say(str(path))
    summary = document["summary"]
    invalid = (f"INVALID: {each}" for each in summary["invalid"])
    for text in (*summary["broken"], *invalid, *(f"goal missed: {each}" for each in summary["missed"])):
        say(text)
    say(f"{summary['verdict']}: {len(results)} of {plan.runs} runs")
    if failure is not None:
        if summary["verdict"] != FAILED:
            raise failure
        say(f"ended early: {failure}")
    return str(summary["verdict"])


def ways(plan: DrillPlan) -> list[str]:
    """Return how the runs break it, in turn. Raises CampaignFailed for what cannot be done to this mesh."""
    topology = plan.topology
    can_cut = not plan.runs_already or bool(topology.bed)
    if plan.kind is Kind.LINK_CUT:
        if not can_cut:
            raise CampaignFailed("links of a running mesh are cut in a WAN test bed only: name the --bed")
        return [LINK]
    if plan.runs_already and plan.how != How.CUT and not (topology.data or topology.break_command):
        raise CampaignFailed("brokers of a running mesh: name its --data, or the commands with --break and --mend")
    if plan.kind is Kind.BROKER_LOSS:
        if topology.brokers_per_region < VOTERS_MIN:
            raise CampaignFailed("broker-loss needs three brokers per region: with fewer the region is lost")
        return [How.KILL]
    if len(topology.regions) < VOTERS_MIN:
        raise CampaignFailed("region-loss needs three regions: of two nobody can take over by itself")
    if plan.how not in ("", How.KILL) and not can_cut:
        raise CampaignFailed("a region of a running mesh is cut off in a WAN test bed only: --how kill, or --bed")
    wanted = plan.how or (How.BOTH if can_cut and topology.kind != "up" else How.KILL)
    return [How.KILL, How.CUT] if wanted == How.BOTH else [wanted]


def _campaign(shot: Shot) -> tuple[Campaign, str]:
    text = text_of(shot)
    return parse(text, name=shot.topic, place="drill.toml"), text


async def _one(plan: DrillPlan, mesh: MeshProcess, number: int, how: str, began: datetime, base: Path) -> Run:
    folder = base / f"run-{number + 1}"
    folder.mkdir(parents=True)
    async with staged(folder, mesh) as stage:
        await homes.until_ready(stage, *stage.regions)
        leader = await _until_control(stage, min(VOTERS_MIN, len(stage.regions)))
        topic, victim = f"drill-{began:%H%M%S}-{number + 1}", victim_of(number, stage.regions, leader)
        shot = Shot(plan=plan, how=how, topic=topic, home=victim, regions=stage.regions)
        campaign, text = _campaign(shot)
        (folder / f"{campaign.name}.toml").write_text(text, encoding="utf-8")
        await play(campaign, RunOptions(campaign_text=text, out=base), stage, lambda _: None)
        home_after = await homes.home_of(stage, shot.topic)
        audit = await _audited(stage, shot.topic)
    return _result(shot, folder, leader, home_after, audit)


def _result(shot: Shot, folder: Path, leader: str, home_after: str, audit: tuple[str, str]) -> Run:
    """Judge what a run has left in its folder. Raises CampaignFailed: nothing was measured."""
    results, judgement = judged(folder)
    struck = next((row for row in results.events if row["what"] in ("region-loss", "link-cut", "kill")), None)
    if struck is None or results.orphans is None or results.history is None:
        raise CampaignFailed("; ".join(judgement.invalid) or "nothing was broken")
    before_ns = 0 if struck["what"] == "link-cut" else int(struck["took_s"] * 1e9)  # links: from when they are cut
    findings = findings_of(
        results.operations,
        results.orphans,
        results.history,
        results.campaign.users,
        fault_ns=struck["ns"] - before_ns,
        away=shot.away,
        moves_home=shot.plan.kind is Kind.REGION_LOSS,
    )
    broken = [f"{line.what}: {line.found}" for line in judgement.lines if not line.is_kept]
    broken += broken_promises(findings)
    if audit[0] in ("diverged", "incomplete"):
        broken.append(f"the audit says {audit[0]}: {audit[1]}")
    healed = [row for row in results.events if row["what"] == HEALED and shot.how == LINK]
    backs = [row for row in results.events if row["what"] == homes.HOME_BACK]
    return {
        "topic": shot.topic,
        "victim": shot.home,
        "how": shot.how,
        "control_leader": leader,
        "home_after": home_after,
        **findings,
        "marks": {name: row[name] for row in backs for name in ("region_ready_s", "fail_back_s")},
        "notes": [
            f"{struck['what']} of {struck['of']} for {struck['for_s']:g} s at least",
            *(f"the move back was refused at first: {text}" for row in backs for text in row["refused"]),
        ],
        "judged": [f"{line.what}: {line.found}" for line in judgement.lines],
        "audit": {"result": audit[0], "said": audit[1]},
        "broken": broken,
        "invalid": list(judgement.invalid),
        "after_heal": [asdict(heal) for heal in heals_of(results.operations, healed, {})],
    }


def victim_of(number: int, regions: Sequence[str], leader: str) -> str:
    """Return the home of run `number` (0 first): control's leader, and then the others, in turn."""
    others = [region for region in regions if region != leader]
    turn = number % len(regions)
    return leader if turn == 0 else others[(turn - 1) % len(others)]


async def _until_control(stage: Stage, voters: int) -> str:
    """Wait until mesh control has so many voters that all answer; return the region that leads it (CampaignFailed)."""

    async def look() -> str:
        answer = await homes.asked(stage, "/v1/control")
        rows = [row for row in answer.get("replicas") or () if row.get("role") == "voter"]
        alive = [row for row in rows if row.get("alive")]
        names = {row["number"]: str(row["name"]) for row in answer.get("regions") or ()}
        leader = next((names.get(row["region"], "") for row in rows if row["broker"] == answer.get("leader")), "")
        if not leader or len(alive) < voters:
            said = f"{len(alive)} of {len(rows)} voters answer, leader {leader or 'unknown'}"
            raise NotYet(f"mesh control is not whole: {said}")
        return leader

    return await until(look, within_s=CONTROL_S)


async def _audited(stage: Stage, topic: str) -> tuple[str, str]:
    """Return the result of `georelay audit TOPIC` (agrees, diverged, incomplete, or "not run") and what it said."""
    words = (*CLI, "audit", topic, "--json", "--endpoints", str(stage.endpoints_file))
    code, said, why = await run_command(words, environment=stage.signed_in)
    try:
        result = str(json.loads(said)["result"])
    except (ValueError, KeyError, TypeError):
        return "not run", why.strip().splitlines()[-1][:300] if why.strip() else f"it ended with {code}"
    return result, why.strip()[:300]


def line_of(number: int, run: Run) -> str:
    """Return one run in one line."""
    led = ", led control" if run["victim"] == run["control_leader"] else ""
    rto = "-" if run["rto_s"] is None else f"{run['rto_s']:.2f} s"
    return (
        f"run {number}: {run['victim']} ({run['how']}{led}): RTO {rto}, "
        f"geo-acknowledged {run['geo_acknowledged']} lost {run['geo_lost']}, region-acknowledged "
        f"{run['region_acknowledged']} orphaned {run['region_orphaned']} lost {run['region_lost']}, twice "
        f"{run['duplicated']}, out of order {run['reordered']}, audit {run['audit']['result']}"
        + ("" if not run["broken"] else f"; BROKEN: {'; '.join(run['broken'])}")
        + ("" if not run["invalid"] else f"; INVALID: {'; '.join(run['invalid'])}")
    )


def _where(plan: DrillPlan) -> str:
    topology = plan.topology
    if plan.runs_already:
        return "a running mesh" + (f" in test bed {topology.bed}" if topology.bed else "")
    count = f"{topology.brokers_per_region} brokers per region"
    return f"loopback, {count}" if topology.kind == "up" else f"test bed {topology.pairs}, {count}, TLS"


def _head(plan: DrillPlan, mesh_id: str, began: datetime, failure: CampaignFailed | None) -> dict[str, Any]:
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    return {
        "kind": plan.kind,
        "began": f"{began:%Y-%m-%d %H:%M:%S} UTC",
        "mesh": mesh_id,
        "where": _where(plan),
        "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}, load average {load} at the end.",
        "rate_per_s": plan.rate_per_s,
        "fault_s": plan.fault_s,
        "ended_early": str(failure or ""),
    }


def _written(folder: Path, document: dict[str, Any]) -> list[Path]:
    """Write both beside the folder of the runs."""
    paths = [folder.with_name(f"{folder.name}.{ending}") for ending in ("json", "md")]
    paths[0].write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    paths[1].write_text(markdown_of(document), encoding="utf-8")
    return paths
