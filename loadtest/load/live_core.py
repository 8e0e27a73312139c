"""The table of Locust's page while a campaign runs: latency of each region pair, its bounds, the verdict so far. Pure.

Rule: the same judges as at the end, on what was counted so far. What histories and reports say comes with the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from loadtest.load.books_core import Books
from loadtest.load.campaign import Campaign
from loadtest.load.engine_values import PUBLISH
from loadtest.load.samples_core import Samples
from loadtest.load.verdict_core import Judgement, Line, faults_of_generator, judge_latencies, judge_throughput

COLUMNS: Final = {
    "what": "what",
    "records": "records",
    "failed": "failed",
    "p50": "p50 ms",
    "p99": "p99 ms",
    "max": "max ms",
    "wanted": "wanted",
    "found": "found",
    "verdict": "verdict",
}
BEGIN_S: Final = 3.0  # before that nothing is judged: clients are still finding their brokers
Row = dict[str, str]


def live_rows(
    campaign: Campaign,
    totals: Mapping[tuple[str, str], Samples],
    seconds: Sequence[Mapping[str, Any]],
    trouble: Sequence[Mapping[str, Any]],
    *,
    began_s: float,
    now_s: float,
) -> list[Row]:
    """Return a row for the verdict, for what makes it invalid, for each thing that was done, and for each bound.

    Args:
        totals: by (method, name).
        seconds: what engines told each second, without what was done in it.
        began_s, now_s: wall clock; the load that is judged lies between.
    """
    load_s = min(now_s - began_s, campaign.seconds)
    if load_s < BEGIN_S:
        return [_row(what="verdict so far", found="the load is just beginning")]
    books = Books()
    for (method, name), samples in totals.items():
        if method == PUBLISH:
            books.acked[name] += samples.n
    lines = judge_latencies(campaign, totals) + judge_throughput(campaign, totals, books, load_s=load_s)
    invalid = faults_of_generator(campaign, seconds, trouble, from_s=began_s, to_s=now_s)
    judgement = Judgement(lines=tuple(lines), invalid=tuple(invalid))
    at = f"{load_s:.0f} of {campaign.seconds:g} s; histories are judged at the end"
    rows = [_row(what="verdict so far", found=at, verdict=judgement.verdict)]
    rows += [_row(what="generator", found=why, verdict="INVALID") for why in invalid]
    by_what = {line.what: line for line in lines}
    for (method, name), samples in sorted(totals.items()):
        line = by_what.pop(f"{method} {name} p99", None)
        rows.append(_measured(f"{method} {name}", samples) | (_judged(line) if line else {}))
    return rows + [_row(what=line.what) | _judged(line) for line in by_what.values()]


def _measured(what: str, samples: Samples) -> Row:
    return _row(
        what=what,
        records=f"{samples.n:,}",
        failed=f"{samples.failed:,}",
        p50=f"{samples.quantile_ms(0.5):g}",
        p99=f"{samples.quantile_ms(0.99):g}",
        max=f"{samples.max_ms:.1f}",
    )


def _judged(line: Line) -> Row:
    return {"wanted": line.wanted, "found": line.found, "verdict": "kept" if line.is_kept else "BROKEN"}


def _row(**cells: str) -> Row:
    return dict.fromkeys(COLUMNS, "") | cells
