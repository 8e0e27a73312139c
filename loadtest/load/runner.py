"""One run of a campaign from the mesh to the verdict: stage, Locust, faults, complete read, report, judgement."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from loadtest.bench.machine import Meter, cpu_seconds, describe, resident_mib, revision
from loadtest.campaign.mesh import CampaignFailed, run_command
from loadtest.campaign.phases_core import lines_of as phase_lines
from loadtest.child_process import PYTHON, guarded
from loadtest.groups.member_process import need
from loadtest.load.campaign import Campaign, Fault
from loadtest.load.end_asker import EndAsker
from loadtest.load.engine_values import written
from loadtest.load.homes import keep_branches
from loadtest.load.locust_processes import LocustProcesses, RunOptions
from loadtest.load.page import page_of
from loadtest.load.programs import Program
from loadtest.load.report_targets_core import REPORT_TARGETS, targets_of
from loadtest.load.results import ENDED, PLAYED, RUN_FORMAT, Results
from loadtest.load.stage import Stage, meshed, staged
from loadtest.load.verdict_core import EXIT_CODES, Judgement
from loadtest.login import environment

SAMPLE_S: Final = 1.0
COMPLETE_S: Final = 600  # at least, and as long as the load took
PHASES_SAID_MAX: Final = 25  # the page has all
Say = Callable[[str], None]


async def run_campaign(campaign: Campaign, options: RunOptions, say: Say) -> int:
    """Run it and return the exit code: 0 pass, 1 breach, 2 invalid. Raises CampaignFailed."""
    need([*(row.kind for row in campaign.readers), *(row.client for row in campaign.programs)])
    if campaign.checks.report:
        await asyncio.to_thread(_need_report)  # not after an hour of load
    folder = _new_folder(options.out / f"{campaign.name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}")
    (folder / f"{campaign.name}.toml").write_text(options.campaign_text, encoding="utf-8")
    (folder / "run.json").write_text(json.dumps(_circumstances(folder), indent=1) + "\n", encoding="utf-8")
    say(f"{campaign.name}: {campaign.about}")
    say(f"results in {folder}")
    async with meshed(campaign, folder / "mesh") as mesh, staged(folder, mesh) as stage:
        await play(campaign, options, stage, say)
    keep_traces(folder)
    if campaign.checks.report:
        say("making the report of the traces")
        await asyncio.to_thread(_report, campaign, folder)
    return judge(folder, say)


async def play(campaign: Campaign, options: RunOptions, stage: Stage, say: Say) -> None:
    """Do to a mesh what a campaign says, and read everything once more. Raises CampaignFailed."""
    await stage.create(campaign)
    say(f"mesh: {', '.join(stage.regions)}; {campaign.seconds:g} s of load")
    await _load(campaign, options, stage.folder, stage)
    say("the load is over; reading everything once more")
    await _read_completely(campaign, stage.folder, stage)
    if campaign.checks.orphans:
        await keep_branches(stage)
    if campaign.checks.replicas:
        await stage.settle()
    (stage.folder / PLAYED).write_text(json.dumps({"wall_ns": time.time_ns()}) + "\n", encoding="utf-8")


def _new_folder(wanted: Path) -> Path:
    """Make a folder of this name, with a number behind it where another run of this second has the name."""
    number, folder = 1, wanted
    while True:
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            number += 1
            folder = wanted.with_name(f"{wanted.name}-{number}")
        else:
            return folder


def judge(folder: Path, say: Say) -> int:
    """Judge what a folder holds, say it, and return the exit code."""
    results, judgement = judged(folder)
    say(f"page: {folder / 'result.html'}")
    for line in results.figures:
        say(line)
    for line in phase_lines(results.phases) if len(results.phases) <= PHASES_SAID_MAX else ():
        say(line)
    for line in lines_of(judgement):
        say(line)
    return EXIT_CODES[judgement.verdict]


def judged(folder: Path) -> tuple[Results, Judgement]:
    """Judge what a folder holds, and write its page."""
    results = Results(folder)
    judgement = results.judge()
    (folder / "result.html").write_text(page_of(results, judgement), encoding="utf-8")
    return results, judgement


def lines_of(judgement: Judgement) -> list[str]:
    """Return the judgement for people."""
    wide = max((len(line.what) for line in judgement.lines), default=0)
    lines = [
        f"{'kept  ' if line.is_kept else 'BROKEN'}  {line.what.ljust(wide)}  {line.found}  (wanted: {line.wanted})"
        for line in judgement.lines
    ]
    return [*lines, *(f"INVALID: {why}" for why in judgement.invalid), judgement.verdict]


async def _load(campaign: Campaign, options: RunOptions, folder: Path, stage: Stage) -> None:
    """Run Locust, and break what the campaign breaks meanwhile."""
    locust = LocustProcesses(campaign, options, folder, stage)
    beside: list[asyncio.Task[None]] = []
    asked = contextlib.AsyncExitStack()
    try:
        for asker in _end_askers(stage):
            await asked.enter_async_context(asker)
        await locust.start()
        began, began_ns = time.monotonic(), time.monotonic_ns()
        beside = [asyncio.create_task(_sample_cpu(stage))]
        beside += [asyncio.create_task(_fault(stage, fault, began)) for fault in campaign.faults]
        ends = began + campaign.seconds
        beside += [asyncio.create_task(_finish(program, ends)) for program in stage.programs.values()]
        await locust.ended()
        await asked.aclose()
        await stage.note_bed(began_ns)
        for task in beside[1:]:
            await task
        if beside[0].done():
            beside[0].result()  # who ends by itself has not looked for brokers that do
    finally:
        for task in beside:
            task.cancel()
        left = await asyncio.gather(*beside, return_exceptions=True)
        for failure in left:  # of the mend of a fault, perhaps, on somebody's mesh; the first one is raised as well
            if isinstance(failure, Exception):  # else it was cancelled
                sys.stderr.write(f"{failure if isinstance(failure, CampaignFailed) else repr(failure)}\n")
        await locust.stop()
        await asked.aclose()


async def _fault(stage: Stage, fault: Fault, began: float) -> None:
    await asyncio.sleep(began + fault.at_s - time.monotonic())
    await stage.break_it(fault)


def _end_askers(stage: Stage) -> list[EndAsker]:
    """Return who asks every broker of each topic's home for the ends of its partitions, where that is checked."""
    return [
        EndAsker(stage.endpoints["regions"][topic.home]["kafka"], topic, stage.folder / "histories")
        for topic in stage.campaign.topics
        if stage.campaign.checks.ends and not topic.filled_mb
    ]


async def _sample_cpu(stage: Stage) -> None:
    """Write each second what every process of the mesh took in it, in shares of a core, and its memory in MiB."""
    before: dict[tuple[str, int], float] = {}
    bed = stage.bed
    router = {"router": (await asyncio.to_thread(lambda: bed.record))["pid"]} if bed else {}
    machine = Meter({})
    with (stage.folder / "cpu.jsonl").open("a", encoding="utf-8") as file:
        while True:
            now: dict[tuple[str, int], float] = {}
            memory: dict[str, float] = {}
            for name, pid in (stage.pids() | router).items():
                with contextlib.suppress(OSError):
                    now[name, pid], memory[name] = cpu_seconds(pid), round(resident_mib(pid), 1)
            shares = {
                name: round(used - before[name, pid], 3) for (name, pid), used in now.items() if (name, pid) in before
            }
            row = {"second": time.time(), "cpu": shares, "memory_mib": memory, "idle": round(machine.idle(), 3)}
            file.write(json.dumps(row) + "\n")
            file.flush()
            machine = Meter({})
            for name, pid in before.keys() - now.keys():
                if pid not in stage.killed and name not in stage.may_end:
                    stage.note(what=ENDED, of=name)
            before = now
            await asyncio.sleep(SAMPLE_S)


async def _finish(program: Program, ends: float) -> None:
    await asyncio.sleep(ends - time.monotonic())
    await program.finish()


async def _read_completely(campaign: Campaign, folder: Path, stage: Stage) -> None:
    """Read every partition in every region from its first record to its last."""
    plan = written(
        folder / "plan-complete.json",
        campaign=folder / f"{campaign.name}.toml",
        endpoints=stage.endpoints_file,
        regions=stage.regions,  # one that joined, too
        folder=folder,
        worker="end",
    )
    words = guarded(PYTHON, "-m", "loadtest.load.engine", "complete", plan)
    within_s = COMPLETE_S + campaign.seconds
    code, said, why = await run_command(words, within_s=within_s, environment=environment(stage.settings))
    if code:
        failed = [json.loads(line)["failed"] for line in said.splitlines() if line.startswith('{"failed"')]
        raise CampaignFailed(f"the complete read ended with {code}: {(failed or [why.strip()[-300:]])[0]}")
    ended = json.loads(said.splitlines()[-1])["ended"]
    (folder / "ended-complete-end.json").write_text(json.dumps(ended) + "\n", encoding="utf-8")


def keep_traces(folder: Path) -> None:
    """Keep the traces and the logs of a mesh that was started here; its data goes."""
    for name in ("traces", "logs"):
        if (kept := folder / "mesh" / "mesh" / name).exists():
            shutil.move(kept, folder / name)
    shutil.rmtree(folder / "mesh", ignore_errors=True)


def _need_report() -> None:
    """Refuse to begin where the report of the traces cannot be made. Raises CampaignFailed."""
    words = (sys.executable, "-P", "-m", "sla", "doctor")
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        missing = [" ".join(line.split()[1:]) for line in done.stdout.splitlines() if line.startswith("FAIL")]
        why = "; ".join(missing) or done.stderr.strip()[-300:]
        raise CampaignFailed(f"the report of the traces cannot be made here: {why}")


def _report(campaign: Campaign, folder: Path) -> None:
    """Make the report of the traces as anybody would, by the campaign's targets. Raises CampaignFailed."""
    words = ["report", "--traces", str(folder / "traces"), "--out", str(folder / "report"), "--fail-on", "never"]
    if targets := targets_of(campaign):
        file = folder / REPORT_TARGETS
        file.parent.mkdir(exist_ok=True)
        file.write_text(targets, encoding="utf-8")
        words += ["--targets", str(file)]
    done = subprocess.run(
        (sys.executable, "-P", "-m", "georelay.cli", *words), capture_output=True, text=True, check=False
    )
    if done.returncode:  # no verdict: nothing fails for that
        raise CampaignFailed(f"georelay report ended with {done.returncode}: {done.stderr.strip()[-300:]}")


def _circumstances(folder: Path) -> dict[str, Any]:
    """Return where, when and with which code it runs."""
    return {
        "format": RUN_FORMAT,
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
        "code": revision(Path(__file__).resolve().parent),
        "host": platform.node(),
        "machine": describe(folder),
        "load_average": list(os.getloadavg()),
    }
