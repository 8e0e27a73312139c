"""The verdict of a run: PASS, BREACH or INVALID, with a line for everything that was judged. Pure.

Rule 1: INVALID comes first: numbers of a generator that was the bottleneck, of workers that were lost or of clocks that
        stepped say nothing about the mesh, good or bad.
Rule 2: a target without a measurement is a breach: nothing measured is nothing shown.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from loadtest.campaign.phases_core import spans_of
from loadtest.history.operation import Kind, Operation, Outcome
from loadtest.history.verdict import Category
from loadtest.history.verdict import Verdict as HistoryVerdict
from loadtest.load.books_core import Books
from loadtest.load.campaign import Campaign, Topic
from loadtest.load.engine_values import ABORT, DELIVER, PUBLISH
from loadtest.load.figures_core import Heal, seconds
from loadtest.load.orphans_core import Orphans
from loadtest.load.samples_core import Samples
from loadtest.quantile_core import quantile

PASS, BREACH, INVALID = "PASS", "BREACH", "INVALID"
EXIT_CODES: Final = {PASS: 0, BREACH: 1, INVALID: 2}
CLOCK_STEP_MS_MAX: Final = 1.0
TORN_SHOWN_MAX: Final = 5
WARM_S: Final = 2.0
NOISE_MS: Final = 10.0  # of the scheduler of a shared machine
BUSY_SHARE: Final = 0.9  # of the seconds of an engine, the others may be busier
OFFERED_SHARE_MIN: Final = 0.9
START_S_MAX: Final = 3.0  # until all users of a stage are there
POISSON_SIGMAS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One thing that was judged."""

    what: str
    wanted: str
    found: str
    is_kept: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """All of it. `invalid`: why the run says nothing; empty when it does."""

    lines: tuple[Line, ...]
    invalid: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """Return PASS, BREACH or INVALID."""
        if self.invalid:
            return INVALID
        return PASS if all(line.is_kept for line in self.lines) else BREACH

    def told(self) -> dict[str, Any]:
        """Return it as JSON."""
        rows = [
            {"what": line.what, "wanted": line.wanted, "found": line.found, "kept": line.is_kept} for line in self.lines
        ]
        return {"verdict": self.verdict, "invalid": list(self.invalid), "lines": rows}


def totals_of(told: Sequence[Mapping[str, Any]], *, from_s: float = 0.0) -> dict[tuple[str, str], Samples]:
    """Return the samples by (method, name) of the whole run, or of the seconds that begin at a time of the wall clock
    or later.
    """
    totals: dict[tuple[str, str], Samples] = defaultdict(Samples)
    for row in told:
        if row["second"] < from_s + 1:  # a row tells what was done in the second before it
            continue
        for done in row["done"]:
            totals[done["method"], done["name"]].extend(done)
    return totals


def faults_of_generator(
    campaign: Campaign,
    told: Sequence[Mapping[str, Any]],
    trouble: Sequence[Mapping[str, Any]],
    *,
    from_s: float,
    to_s: float,
) -> list[str]:
    """Return why the generator's numbers say nothing.

    Args:
        told: what engines told each second.
        from_s, to_s: the load's time on the wall clock; what engines did before and after is not judged.
    """
    bounds = campaign.generator
    found = [str(row["what"]) for row in trouble]
    of_engine: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in told:
        if from_s + 1 <= row["second"] <= to_s:
            of_engine[f"{row['role']} engine of {row['worker']}"].append(row)
    if not of_engine:
        found.append("no engine told anything while there was load")
    for name, rows in sorted(of_engine.items()):
        share = quantile([row["cpu_share"] for row in rows], BUSY_SHARE)
        if share > bounds.cpu_share_max:
            found.append(f"{name}: {share:.0%} of a core in its busier seconds, more than {bounds.cpu_share_max:.0%}")
        lag_ms = quantile([row["lag_p99_ms"] for row in rows if row["lag_p99_ms"] > 0] or [0.0], BUSY_SHARE)
        if lag_ms > bounds.lag_p99_ms_max:
            found.append(f"{name}: it sent {lag_ms:.1f} ms late (p99), more than {bounds.lag_p99_ms_max:g} ms")
    return found


def faults_of_endings(told: Sequence[Mapping[str, Any]], ended: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return why what engines said last says nothing.

    Args:
        told: what engines told each second.
        ended: their last words, by role and worker, such as "read-us".
    """
    found = []
    for role, worker in sorted({(row["role"], row["worker"]) for row in told}):
        if f"{role}-{worker}" not in ended:
            found.append(f"{role} engine of {worker}: it was ended, or its last words were not brought here")
    for row in ended.values():
        if row["clock_stepped_ms"] > CLOCK_STEP_MS_MAX:
            found.append(f"the clock of the generator stepped by {row['clock_stepped_ms']:.1f} ms")
        if row.get("unanswered"):
            found.append(f"{row['unanswered']} records were never answered nor given up")
    return found


def faults_of_offer(campaign: Campaign, totals: Mapping[tuple[str, str], Samples]) -> list[str]:
    """Return whether clearly less was offered than the stages say: somebody ended them, or a sender stood still.

    A transaction counts once for each of its topics, so more is no fault.
    """
    due = sum(stage.seconds * stage.rate for stage in campaign.stages)
    peak = max((stage.rate for stage in campaign.stages), default=0.0)
    least = OFFERED_SHARE_MIN * due - START_S_MAX * peak - POISSON_SIGMAS * math.sqrt(due)
    offered = sum(samples.n + samples.failed for (method, _), samples in totals.items() if method in (PUBLISH, ABORT))
    return [] if offered >= least else [f"{offered:,} records were offered, the stages say {due:,.0f}"]


def faults_of_machine(campaign: Campaign, *, idle: float | None, lag_us: Sequence[float]) -> list[str]:
    """Return why the machine's state makes the numbers say nothing.

    Args:
        idle: share of the machine, None where nobody watched it.
        lag_us: how late the router was at its worst in each second, nothing where there is none.
    """
    bounds, found = campaign.generator, []
    if bounds.idle_share_min is not None and (idle is None or idle < bounds.idle_share_min):
        said = "nobody watched how much" if idle is None else f"only {idle:.0%}"
        found.append(f"{said} of the CPU was idle, wanted {bounds.idle_share_min:.0%}")
    late_ms = quantile(lag_us, BUSY_SHARE, none=0.0) / 1e3
    if bounds.router_lag_ms_max is not None and late_ms > bounds.router_lag_ms_max:
        most = f"more than {bounds.router_lag_ms_max:g} ms"
        found.append(f"the router was {late_ms:.1f} ms late in its busier seconds, {most}")
    return found


def judge_heals(heals: Sequence[Heal], bound_s: float) -> Line:
    """Judge how long readers needed after heals."""
    late = max(heals, key=lambda heal: math.inf if heal.caught_up_s is None else heal.caught_up_s, default=None)
    found = "nothing was healed" if late is None else f"{seconds(late.caught_up_s)} s ({late.region}, {late.of})"
    kept = late is not None and late.caught_up_s is not None and late.caught_up_s <= bound_s
    return _line("caught up", f"<= {bound_s:g} s after a heal", found, is_kept=kept)


def judge_latencies(campaign: Campaign, totals: Mapping[tuple[str, str], Samples]) -> list[Line]:
    """Judge how long everything took."""
    target = campaign.target
    lines = []
    for method, bound_ms in ((DELIVER, target.deliver_p99_ms_max), (PUBLISH, target.publish_p99_ms_max)):
        for (kind, name), samples in sorted(totals.items()):
            if kind == method and bound_ms is not None:
                lines.append(_latency(f"{method} {name} p99", samples, bound_ms + target.floor_ms.get(name, 0.0)))
    bound_ms = target.deliver_p99_ms_max
    if bound_ms is not None:
        read = {pair for method, pair in totals if method == DELIVER}
        for pair in [pair for pair in pairs_of(campaign) if pair not in read] or ([] if read else ["anywhere"]):
            lines.append(_line(f"deliver {pair} p99", f"<= {bound_ms:g} ms", "nothing was read", is_kept=False))
    return lines


def judge_throughput(
    campaign: Campaign, totals: Mapping[tuple[str, str], Samples], books: Books, *, load_s: float
) -> list[Line]:
    """Judge how much was acknowledged."""
    target = campaign.target
    lines = []
    if target.records_per_s_min is not None:
        rate = books.acked_total / load_s if load_s else 0.0
        kept = rate >= target.records_per_s_min
        lines.append(_line("acknowledged", f">= {target.records_per_s_min:g}/s", f"{rate:.1f}/s", is_kept=kept))
    if target.published_share_min is not None:
        offered = sum(samples.n + samples.failed for (method, _), samples in totals.items() if method == PUBLISH)
        share = books.acked_total / offered if offered else 0.0
        found = f"{share:.4%} of {offered:,}"
        kept = share >= target.published_share_min
        lines.append(_line("acknowledged", f">= {target.published_share_min:.4%} of what was due", found, is_kept=kept))
    return lines


def pairs_of(campaign: Campaign) -> list[str]:
    """Return `us->eu` for each region that publishes what prompt readers of another one read."""
    regions = campaign.topology.regions
    return sorted(
        {
            f"{origin}->{dest}"
            for users in campaign.users
            for readers in campaign.readers
            if not readers.is_late and set(users.topics) & set(readers.topics)
            for origin in users.regions or regions
            for dest in readers.regions or regions
            if origin in regions and dest in regions
        }
    )


def judge_checks(
    campaign: Campaign, history: HistoryVerdict | None, books: Books, ended: Sequence[Mapping[str, Any]] = ()
) -> list[Line]:
    """Judge what must be kept; `ended`: last words of the engines."""
    lines = []
    told = [row["has_all"] for row in ended if "has_all" in row]
    if campaign.readers and told and not campaign.checks.finds_loss:  # nobody has what is lost
        found = "everything" if all(told) else "not everything"
        wanted = f"everything, {campaign.checks.settle_s:g} s after the load"
        lines.append(_line("every reader has", wanted, found, is_kept=all(told)))
    if history is not None:
        words = (
            f"{history.acknowledged:,} acknowledged, {history.records_read:,} read"
            if history.is_valid
            else "; ".join(f"{count:,} x {category.name}" for category, count in history.counts.items())
        )
        if campaign.checks.finds_loss:
            is_lost = history.count(Category.LOST_WRITE, Category.UNSEEN) > 0
            lines.append(_line("history", "the loss is found", words, is_kept=is_lost))
        else:
            lines.append(_line("history", "nothing lost, twice, out of order", words, is_kept=history.is_valid))
    bound_s = campaign.checks.silence_s_max
    if bound_s is not None:
        found_s = books.longest_silence_ms / 1e3
        found = f"{found_s:.2f} s ({books.silent_key})" if books.silent_key else "nothing was acknowledged"
        kept = bool(books.silent_key) and found_s <= bound_s
        lines.append(_line("longest silence", f"<= {bound_s:g} s", found, is_kept=kept))
    return lines


def judge_ends(topics: Sequence[Topic], operations: Iterable[Operation]) -> Line:
    """Judge whether brokers told the ends of each partition at all; the history judges what they told."""
    told = Counter(each.key for each in operations if each.kind is Kind.END and each.outcome is Outcome.OK)
    keys = [f"{topic.name}/{row}" for topic in topics if not topic.filled_mb for row in range(topic.partitions)]
    untold = [key for key in keys if not told[key]]
    found = f"{told.total():,} told" + (f", none of {', '.join(untold)}" if untold else "")
    return _line("ends of partitions", "told of each", found, is_kept=not untold)


def judge_slowdown(
    told: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]], factor: float, *, from_s: float
) -> list[Line]:
    """Judge deliveries while each fault held by those before the first: a record belongs to the second it came in.

    Args:
        told: what engines told each second. events: as `spans_of` takes them.
    """
    spans, _ = spans_of(events)

    def delivered(from_s: float, to_s: float) -> Samples:
        rows = totals_of([row for row in told if from_s + 1 <= row["second"] <= to_s + 1])
        found = Samples()
        for (method, _), samples in rows.items():
            if method == DELIVER:
                found.extend(samples.told())
        return found

    before = delivered(from_s + WARM_S, min((span.begin_s for span in spans), default=from_s) - 1)
    before_ms = before.quantile_ms(0.99)
    bound_ms = max(factor * before_ms, before_ms + NOISE_MS)
    lines = []
    for what, of, begin_s, end_s in spans:
        line = _latency(f"deliver p99 under {what} {of}", delivered(begin_s, end_s), bound_ms)
        lines.append(replace(line, is_kept=line.is_kept and before.n > 0))
    return lines or [_line("deliver p99 under faults", f"<= {factor:g} x before", "nothing was broken", is_kept=False)]


def judge_transactions(begun: int, there: int, torn: Sequence[str]) -> Line:
    """Judge whether transactions are there as a whole."""
    found = f"{begun:,} begun, {there:,} there, {', '.join(torn[:TORN_SHOWN_MAX]) or 'none'} torn"
    return _line("transactions", "whole or not at all", found, is_kept=there > 0 and not torn)


def judge_endings(ended: Sequence[str]) -> list[Line]:
    """Judge brokers that ended by themselves: no line where none has."""
    return [_line("brokers that ended by themselves", "none", ", ".join(ended), is_kept=False)] if ended else []


def judge_orphans(orphans: Orphans) -> Line:
    """Judge whether everything that was acknowledged is in the stream, or orphaned where it may be."""
    counts = f"{orphans.records:,} in orphan branches, {len(orphans.orphaned):,} of them acknowledged there"
    broken = orphans.broken()
    return _line("orphan branches", "what is not in the stream", "; ".join((counts, *broken)), is_kept=not broken)


def judge_replicas(rows: Sequence[Mapping[str, Any]]) -> Line:
    """Judge whether replicas, or regions, were equal whenever they were compared.

    Args:
        rows: {"of": topic and partition, "compared": brokers, "differ": those of them that hold something else}.
    """
    count = sum(len(row["compared"]) for row in rows if len(row["compared"]) > 1)  # one alone is equal to itself
    differ = [f"{broker} {row['of']}" for row in rows for broker in row["differ"]]
    found = f"{count:,} compared, {', '.join(differ) or 'none'} differs"
    return _line("replicas", "equal, record by record", found, is_kept=count > 0 and not differ)


def judge_agreement(what: str, count: int, differences: Sequence[str]) -> Line:
    """Judge whether others counted the same."""
    found = f"{count:,} equal" if not differences else f"{len(differences)} differences: {differences[0]}"
    return _line(what, "equal, record by record", found, is_kept=not differences and count > 0)


def judge_report(verdict: str, headline: str) -> Line:
    """Judge the verdict of the report of the traces: what it cannot say yet is told, and no breach."""
    return _line("verdict of the report", f"no {BREACH}", headline, is_kept=verdict != BREACH)


def _latency(what: str, samples: Samples, bound_ms: float) -> Line:
    p99 = samples.quantile_ms(0.99)
    return _line(what, f"<= {bound_ms:g} ms", f"{p99:g} ms of {samples.n:,}", is_kept=samples.n > 0 and p99 <= bound_ms)


def _line(what: str, wanted: str, found: str, *, is_kept: bool) -> Line:
    return Line(what=what, wanted=wanted, found=found, is_kept=is_kept)
