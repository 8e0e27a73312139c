"""The folder of a run's results: what is in it, how it is read, and the judgement that is made of it alone.

NAME.toml       the campaign as it was run            run.json       when, where, with which code
seconds-*.jsonl what engines did each second           histories/     what clients sent, were told and read
events.jsonl    faults as they happened                locust.json    what Locust counted; locust.html its page
cpu.jsonl       CPU of every process, each second      traces/        what `georelay report` reads; report/ its result
replicas.jsonl  replicas and regions that were compared        bed.json      how the test bed was
programs.jsonl  what came of programs beside the load  orphans.jsonl  orphan branches, with their records
verdict.json    the judgement                          result.html    the page
differences.txt where the report says something else   history.txt    what the checker says
trouble-*.jsonl what makes the run invalid             played.json    there when everything was done that is judged
ended-*.json    last words of engines                  began.json     when the load began
plan-*.json     what engines were told

Rule: where Locust was alone nothing was broken and nobody read everything once more, made programs or kept traces. What
      needs that is not judged then, which a line says.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pyarrow.parquet import ParquetFile

from loadtest.campaign.phases_core import PhaseReport, phases_of, report
from loadtest.history.checker_core import check
from loadtest.history.history_file import read_history
from loadtest.history.operation import HistoryError, Operation
from loadtest.history.verdict import Verdict as HistoryVerdict
from loadtest.load import verdict_core
from loadtest.load.books_core import (
    Books,
    books_of,
    differences_to_locust,
    differences_to_report,
    faults_of_integrity,
    shares_in_time,
)
from loadtest.load.campaign import Campaign
from loadtest.load.campaign_file import CampaignError, load
from loadtest.load.clock_verdict_core import IN_TIME_MS, clock_faults
from loadtest.load.figures_core import heal_lines, heals_of, idle_share, latency_lines, machine_lines
from loadtest.load.orphans_core import Orphans, excused, orphans_of
from loadtest.load.programs_core import torn
from loadtest.load.report_targets_core import REPORT_TARGETS

KILLS: Final = ("kill", "region-loss", "power-cut", "disk-lies", "disk-lost")  # by kill -9
WRITER: Final = "transactional-writer"
ENDED: Final = "ended"  # a broker, by itself
PLAYED: Final = "played.json"
RUN_FORMAT: Final = 2  # of run.json: from 2 on there is a PLAYED of a run that came to its end
NOT_ALONE: Final = ("run.json", "cpu.jsonl", "events.jsonl")  # no run.json is in the runs of a drill
ALONE: Final = "Locust alone: nothing was broken, and neither the traces nor a complete read are judged"
UNTRACED_S_MAX: Final = 0.2  # of a partition's records: what a killed broker had not noted yet


class Results:
    """A folder that a run has filled. Raises CampaignError: there is no run in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        files = sorted(folder.glob("*.toml"))
        if len(files) != 1:
            raise CampaignError(f"{folder} is no folder of a run's results: it has {len(files)} campaigns, not one")
        whole = load(files[0])
        self.is_alone = not any((folder / name).exists() for name in NOT_ALONE)
        self.campaign: Campaign = _alone(whole, folder) if self.is_alone else whole
        self._offers_all = self.campaign.topology.regions == whole.topology.regions  # else others offer the rest
        self.seconds = [row for path in sorted(folder.glob("seconds-*.jsonl")) for row in _rows(path)]
        self.trouble = [row for path in sorted(folder.glob("trouble*.jsonl")) for row in _rows(path)]
        self.events = _rows(folder / "events.jsonl")
        self.cpu = _rows(folder / "cpu.jsonl")
        self.replicas = _rows(folder / "replicas.jsonl")
        self.programs = _rows(folder / "programs.jsonl")
        self.branches = _rows(folder / "orphans.jsonl")
        self.orphans: Orphans | None = None
        self.operations: Sequence[Operation] = ()
        self.history: HistoryVerdict | None = None
        self.bed = self._document("bed.json")
        self.phases: list[PhaseReport] = []
        self.figures: list[str] = []
        self.ended = {
            path.stem.removeprefix("ended-"): json.loads(path.read_text())
            for path in sorted(folder.glob("ended-*.json"))
        }
        self.began_s = float(self._document("began.json").get("wall_ns", 0)) / 1e9

    def judge(self) -> verdict_core.Judgement:
        """Judge the run and write verdict.json."""
        campaign = self.campaign
        to_s = self.began_s + campaign.seconds
        invalid = verdict_core.faults_of_generator(campaign, self.seconds, self.trouble, from_s=self.began_s, to_s=to_s)
        invalid += verdict_core.faults_of_endings(self.seconds, self.ended)
        if self._document("run.json").get("format", 0) >= RUN_FORMAT and not (self.folder / PLAYED).exists():
            invalid.append("the run did not come to its end: what it did not do cannot be judged")
        idle = idle_share(self.cpu, from_s=self.began_s, to_s=to_s)
        invalid += verdict_core.faults_of_machine(campaign, idle=idle, lag_us=self.bed.get("lag_us", []))
        operations, history = self.operations, self.history = self._histories(invalid)
        self.phases = report(phases_of(self.events, operations), operations)
        books = books_of(operations)
        totals = verdict_core.totals_of(self.seconds)
        if self._offers_all:
            invalid += verdict_core.faults_of_offer(campaign, totals)
        warm_s = campaign.generator.warm_up_s
        timed = verdict_core.totals_of(self.seconds, from_s=self.began_s + warm_s) if warm_s else totals
        lines = verdict_core.judge_latencies(campaign, timed)
        lines += verdict_core.judge_throughput(campaign, totals, books, load_s=campaign.seconds)
        lines += verdict_core.judge_checks(campaign, history, books, list(self.ended.values()))
        if campaign.checks.ends:
            lines.append(verdict_core.judge_ends(campaign.topics, operations))
        self.figures = [ALONE] if self.is_alone else []
        self.figures += latency_lines(timed, campaign.target.floor_ms)
        if campaign.checks.caught_up_s_max is not None:
            heals = heals_of(operations, self.events, campaign.target.floor_ms)
            self.figures += heal_lines(heals)
            lines.append(verdict_core.judge_heals(heals, campaign.checks.caught_up_s_max))
        self.figures += machine_lines(self.cpu, self.bed, records=books.acked_total, from_s=self.began_s, to_s=to_s)
        if self.orphans is not None:
            lines.append(verdict_core.judge_orphans(self.orphans))
        if any(row.kind == WRITER for row in campaign.programs):
            lines.append(verdict_core.judge_transactions(*torn(operations)))
        lines += [
            verdict_core.Line(what=row["what"], wanted=row["wanted"], found=row["found"], is_kept=row["kept"])
            for row in self.programs
        ]
        if len(self.programs) < sum(row.kind != WRITER for row in campaign.programs):
            invalid.append("a program beside the load did not come to its end")
        if campaign.checks.slowdown_max is not None:
            bound = campaign.checks.slowdown_max
            lines += verdict_core.judge_slowdown(self.seconds, self.events, bound, from_s=self.began_s)
        if campaign.checks.replicas or self.replicas:
            lines.append(verdict_core.judge_replicas(self.replicas))
        lines += verdict_core.judge_endings([row["of"] for row in self.events if row["what"] == ENDED])
        if not any(stage.rate for stage in campaign.stages):
            return self._kept(lines, invalid)  # nothing was offered: there is nothing to count
        entries = self._document("locust.json").get("entries", [])
        lines.append(
            verdict_core.judge_agreement(
                "Locust and histories",
                sum(row["n"] for row in entries),
                differences_to_locust(books, entries),
            )
        )
        if campaign.checks.report:
            lines += self._report_lines(books, operations)
        return self._kept(lines, invalid)

    def _kept(self, lines: list[verdict_core.Line], invalid: list[str]) -> verdict_core.Judgement:
        judgement = verdict_core.Judgement(lines=tuple(lines), invalid=tuple(invalid))
        (self.folder / "verdict.json").write_text(json.dumps(judgement.told(), indent=1) + "\n", encoding="utf-8")
        return judgement

    def _histories(self, invalid: list[str]) -> tuple[Sequence[Operation], HistoryVerdict | None]:
        try:
            operations = read_history(sorted((self.folder / "histories").glob("*.history")))
            judged: Sequence[Operation] = operations
            if self.campaign.checks.orphans:
                self.orphans = orphans_of(operations, self.branches, self.campaign.users)
                judged = excused(operations, self.orphans)
            verdict = check(judged) if self.campaign.checks.history else None
        except HistoryError as error:
            invalid.append(f"the histories cannot be judged: {error}")
            return (), None
        if verdict is not None:
            (self.folder / "history.txt").write_text(verdict.describe() + "\n", encoding="utf-8")
        return operations, verdict

    def _report_lines(self, books: Books, operations: Sequence[Operation]) -> list[verdict_core.Line]:
        told = self._document("report/report.json")
        if not told:
            return [verdict_core.judge_agreement("report and histories", 0, ["there is no report"])]
        campaign, integrity = self.campaign, told["integrity"]
        killed = Counter(str(row["of"]).partition("-")[0] for row in self.events if row.get("what") in KILLS)
        most_per_s = max((stage.rate for stage in campaign.stages), default=0.0)
        compared, differences = differences_to_report(
            books,
            integrity["accounts"],
            untraced_max={region: int(times * UNTRACED_S_MAX * most_per_s) for region, times in killed.items()},
            sent_once=campaign.sent_once(),
        )
        lines = [verdict_core.judge_agreement("report and histories", compared, differences)]
        found = faults_of_integrity(integrity["readers"])
        lines.append(verdict_core.judge_agreement("sessions in the report", len(integrity["readers"]), found))
        if (self.folder / REPORT_TARGETS).exists():
            lines.append(verdict_core.judge_report(told["verdict"], told["headline"]))
        if campaign.topology.clocks:
            checked, wrong = clock_faults(
                self._latencies(),
                campaign.topology.clocks,
                told["targets"],
                shares_in_time(operations, limit_ms=IN_TIME_MS),
            )
            lines.append(verdict_core.judge_agreement("corrections and clocks", checked, wrong))
            differences = [*differences, *wrong]
        (self.folder / "differences.txt").write_text("".join(f"{each}\n" for each in (*differences, *found)))
        return lines

    def _latencies(self) -> list[dict[str, Any]]:
        """Return the corrected latencies of every pair and second, as the brokers wrote them."""
        columns = ["stage", "origin", "dest", "n", "clock_offset_us", "clock_err_us"]
        paths = sorted(self.folder.glob("traces/date=*/hour=*/region=*/latency_hist-*.parquet"))
        rows = [row for path in paths for row in ParquetFile(path).read(columns=columns).to_pylist()]
        return [row for row in rows if row["stage"] == "total"]

    def _document(self, name: str) -> Mapping[str, Any]:
        path = self.folder / name
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        return document


def _alone(campaign: Campaign, folder: Path) -> Campaign:
    """Return what of a campaign Locust does and can be judged by without anybody else, in the regions where it was."""
    plans = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("plan-*.json")]
    here = {region for plan in plans for region in plan["regions"]} or set(campaign.topology.regions)
    regions = tuple(region for region in campaign.topology.regions if region in here)
    checks = replace(
        campaign.checks,
        caught_up_s_max=None,  # nothing heals
        slowdown_max=None,
        report=False,
        replicas=False,
        ends=False,
        finds_loss=False,  # nothing loses anything
        orphans=False,  # which a complete read tells from what is lost
    )
    generator = replace(campaign.generator, idle_share_min=None, router_lag_ms_max=None)
    topology = replace(campaign.topology, regions=regions)
    return replace(campaign, checks=checks, generator=generator, topology=topology, faults=(), programs=())


def _rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file, none where there is no file. Raises CampaignError: a line is torn."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    try:
        return [json.loads(line) for line in lines]
    except ValueError as error:
        raise CampaignError(f"{path} cannot be read: a line of it is no JSON ({error})") from error
