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
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from loadtest.bench.client_settings import environment
from loadtest.bench.machine import describe
from loadtest.load.campaign import Campaign, Fault
from loadtest.load.engine_values import written
from loadtest.load.results import Results
from loadtest.load.stage import CannotRun, Stage, opened
from loadtest.load.verdict_core import EXIT_CODES, Judgement

LOCUSTFILE: Final = Path(__file__).resolve().parent.parent / "locustfile.py"
START_S: Final = 120
POLL_S: Final = 0.05
COMPLETE_S: Final = 600
REPORT_DONE: Final = (0, 1, 3)  # pass, breach, inconclusive: all of them are reports
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What the command line asked for.

    Args:
        campaign_file: the campaign as it is.
        out: below it the folder of the results is made.
        web: address of Locust's page, "" for none.
    """

    campaign_file: Path
    out: Path
    web: str = ""


async def run_campaign(campaign: Campaign, options: RunOptions, say: Say) -> int:
    """Run it and return the exit code: 0 pass, 1 breach, 2 invalid. Raises CannotRun."""
    folder = options.out / f"{campaign.name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    folder.mkdir(parents=True)
    shutil.copy(options.campaign_file, folder / f"{campaign.name}.toml")
    (folder / "run.json").write_text(json.dumps(_circumstances(folder), indent=1) + "\n", encoding="utf-8")
    say(f"{campaign.name}: {campaign.about}")
    say(f"results in {folder}")
    async with opened(campaign, folder) as stage:
        stage.check_faults(campaign.faults)
        await stage.create(campaign.topics)
        say(f"mesh: {', '.join(stage.regions)}; {campaign.seconds:g} s of load")
        await _load(campaign, options, folder, stage)
        say("the load is over; reading everything once more")
        await _read_completely(campaign, folder, stage)
    _keep_traces(folder)
    if campaign.checks.report:
        say("making the report of the traces")
        await asyncio.to_thread(_report, folder)
    return judge(folder, say)


def judge(folder: Path, say: Say) -> int:
    """Judge what a folder holds, say it, and return the exit code."""
    judgement = Results(folder).judge()
    for line in lines_of(judgement):
        say(line)
    return EXIT_CODES[judgement.verdict]


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
    words = ["--campaign", str(folder / f"{campaign.name}.toml"), "--endpoints", str(stage.endpoints_file)]
    words += ["--results", str(folder), "--load-worker", "local", "--html", str(folder / "locust.html")]
    if options.web:
        host, _, port = options.web.rpartition(":")
        words += ["--web-host", host, "--web-port", port, "--autostart", "--autoquit", "5"]
    else:
        words += ["--headless", "--only-summary"]
    with (folder / "locust.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), *words),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment(stage.settings) | {"GEORELAY_LOAD_PARENT": str(os.getpid())},
        )
    beside: list[asyncio.Task[None]] = []
    try:
        await _until_begun(process, folder)
        began = time.monotonic()
        beside = [asyncio.create_task(stage.sample_cpu())]
        beside += [asyncio.create_task(_fault(stage, fault, began)) for fault in campaign.faults]
        code = await process.wait()
        for task in beside[1:]:
            await task
    finally:
        for task in beside:
            task.cancel()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    if code:
        raise CannotRun(f"Locust ended with {code}: {_last_words(folder)}")


async def _fault(stage: Stage, fault: Fault, began: float) -> None:
    await asyncio.sleep(began + fault.at_s - time.monotonic())
    await stage.break_it(fault)


async def _until_begun(process: asyncio.subprocess.Process, folder: Path) -> None:
    deadline = time.monotonic() + START_S
    while not (folder / "began.json").exists():
        if process.returncode is not None:
            raise CannotRun(f"Locust did not begin: {_last_words(folder)}")
        if time.monotonic() > deadline:
            raise CannotRun(f"Locust did not begin within {START_S} s: see {folder / 'locust.log'}")
        await asyncio.sleep(POLL_S)


def _last_words(folder: Path) -> str:
    lines = (folder / "locust.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    told = [line for line in lines if not line.startswith("[")]
    return (told or lines or ["it said nothing"])[-1]


async def _read_completely(campaign: Campaign, folder: Path, stage: Stage) -> None:
    """Read every partition in every region from its first record to its last."""
    if not campaign.readers:
        return
    plan = written(
        folder / "plan-complete.json",
        campaign=folder / f"{campaign.name}.toml",
        endpoints=stage.endpoints_file,
        regions=campaign.topology.regions,
        folder=folder,
        worker="end",
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "loadtest.load.engine", "complete", str(plan), str(os.getpid())),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env=environment(stage.settings),
    )
    try:
        async with asyncio.timeout(COMPLETE_S):
            code = await process.wait()
    except TimeoutError as error:
        process.kill()
        await process.wait()
        raise CannotRun(f"not everything could be read within {COMPLETE_S} s") from error
    if code:
        raise CannotRun(f"the complete read ended with {code}")


def _keep_traces(folder: Path) -> None:
    """Keep the traces and the logs of a mesh that was started here; its data goes."""
    mesh = folder / "mesh"
    if (mesh / "mesh" / "traces").exists():
        shutil.move(mesh / "mesh" / "traces", folder / "traces")
    if (mesh / "mesh" / "logs").exists():
        shutil.move(mesh / "mesh" / "logs", folder / "logs")
    shutil.rmtree(mesh, ignore_errors=True)


def _report(folder: Path) -> None:
    """Make the report of the traces as anybody would. Raises CannotRun."""
    words = ("report", "--traces", str(folder / "traces"), "--out", str(folder / "report"), "--fail-on", "never")
    done = subprocess.run(
        (sys.executable, "-P", "-m", "georelay.cli", *words), capture_output=True, text=True, check=False
    )
    if done.returncode not in REPORT_DONE:
        raise CannotRun(f"georelay report ended with {done.returncode}: {done.stderr.strip()[-300:]}")


def _circumstances(folder: Path) -> dict[str, Any]:
    """Return where, when and with which code it runs."""
    here = Path(__file__).resolve().parent
    found = subprocess.run(
        ("/usr/bin/env", "git", "-C", str(here), "describe", "--always", "--dirty"),
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
        "code": found.stdout.strip() or "no checkout",
        "host": platform.node(),
        "machine": describe(folder),
        "load_average": list(os.getloadavg()),
    }
