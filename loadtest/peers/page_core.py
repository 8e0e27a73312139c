"""The page of a comparison: who is better at what, where we lose first, then every figure with its spread.

1. A cell is the median of the rounds, with the smallest and the largest in brackets.
2. What an acknowledgement promises stands beside every figure: a figure without it says nothing.
3. We lose a figure when another's median is better. Where the two spreads meet, that is said.
4. A figure whose producer was late itself, or whose client had no core left, is marked.
5. A run in which acknowledged records had not come in the end has no figures of delivery: its broker did not keep up.
   It neither wins nor loses with them.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from loadtest.bench.figures_core import spread

OURS: Final = "georelay"
FAR_OURS: Final = ("georelay, region", "georelay, geo:2")
BUSY: Final = "**Other work ran beside: latencies and rates below say little, CPU seconds and losses more.**"
BEHIND: Final = "did not keep up"
QUIET_LOAD: Final = 8.0  # three nodes, their clients and what runs them; the threads of Kafka alone come to 7
LAG_MS_MAX: Final = 2.0
CLIENT_CORES_MAX: Final = 0.85

Result = Mapping[str, Any]  # a result file: contender, version, workload, round, figures
Promise = tuple[str, str, bool]  # durability, client, whether it is durable on a majority


@dataclass(frozen=True, slots=True)
class Figure:
    """What is compared: a figure of a workload, how it is told, and whether less is better."""

    workload: str
    name: str
    title: str
    form: str = "{:.1f}"
    less_is_better: bool = True


SINGLE: Final = (
    Figure("single-1000", "p50_ms", "p50 ms at 1000/s", "{:.2f}"),
    Figure("single-1000", "p99_ms", "p99 ms at 1000/s"),
    Figure("single-1000", "p999_ms", "p99.9 ms at 1000/s"),
    Figure("single-1000", "cpu_s_per_100k", "CPU s per 100,000 at 1000/s"),
    Figure("single-100", "p50_ms", "p50 ms at 100/s", "{:.2f}"),
    Figure("single-100", "p99_ms", "p99 ms at 100/s"),
    Figure("single-100", "cpu_s_per_100k", "CPU s per 100,000 at 100/s"),
)
BULK: Final = (
    Figure("bulk-100", "records_per_s", "records/s of 100 B", "{:,.0f}", less_is_better=False),
    Figure("bulk-100", "cpu_s_per_100k", "CPU s per 100,000 of 100 B", "{:.2f}"),
    Figure("bulk-1024", "records_per_s", "records/s of 1 KiB", "{:,.0f}", less_is_better=False),
    Figure("bulk-1024", "cpu_s_per_100k", "CPU s per 100,000 of 1 KiB", "{:.2f}"),
    Figure("bulk-1024", "nodes_mib", "memory of the three nodes after it, MiB", "{:.0f}"),
)
FAULTS: Final = (
    Figure("kill", "max_ms", "longest wait of a record, kill -9, ms", "{:,.0f}"),
    Figure("stop", "max_ms", "longest wait of a record, SIGSTOP of 15 s, ms", "{:,.0f}"),
)
FAR: Final = (
    Figure("far", "us_p50_ms", "p50 ms in us"),
    Figure("far", "eu_p50_ms", "p50 ms in eu, above 35"),
    Figure("far", "eu_p99_ms", "p99 ms in eu, above 35"),
    Figure("far", "ap_p50_ms", "p50 ms in ap, above 75"),
    Figure("far", "ap_p99_ms", "p99 ms in ap, above 75"),
)
CUT: Final = (Figure("cut", "caught_up_s", "s from the heal until eu has all that was due before"),)
FAILOVER: Final = (
    Figure("failover", "lost", "acknowledged in us, not in eu", "{:,.0f}"),
    Figure("failover", "again", "read again in eu", "{:,.0f}"),
    Figure("failover", "skipped", "in eu and never read", "{:,.0f}"),
    Figure("failover", "flows_again_s", "s until what is published in eu is delivered"),
)
FAULTY: Final = frozenset(figure.workload for figure in (*FAULTS, *CUT, *FAILOVER))
DELIVERY: Final = frozenset({"p50_ms", "p99_ms", "p999_ms", "max_ms", *(figure.name for figure in FAR)})
ACCOUNT: Final = ("lost", "twice", "early", "unknown")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of the page that is measured.

    Args:
        begin, end: the lines around it. ours: our names, and what durable brokers of others are to each.
        accounts: faults whose records are told, by workload.
    """

    begin: str
    end: str
    ours: Mapping[str, str]
    tables: Sequence[tuple[str, Sequence[Figure]]]
    accounts: Mapping[str, str]


ONE_REGION: Final = Part(
    begin="<!-- measured: written by `python -m loadtest.peers table` -->",
    end="<!-- measured: end -->",
    ours={OURS: "with the same durability"},
    tables=(
        ("Single records of 100 B, round eight topics, publish -> deliver from the intended time", SINGLE),
        ("As fast as it goes: one producer, eight topics", BULK),
        ("The leader of most topics fails at 200 records/s", FAULTS),
    ),
    accounts={"kill": "kill -9", "stop": "SIGSTOP"},
)
THREE_REGIONS: Final = Part(
    begin="<!-- regions: written by `python -m loadtest.peers table --regions` -->",
    end="<!-- regions: end -->",
    ours={FAR_OURS[0]: "with the same durability", FAR_OURS[1]: "that acknowledge what us alone has"},
    tables=(
        ("Three regions: 100 records/s of 100 B from us, publish -> deliver above the floor of the way", FAR),
        ("Three regions: eu is cut off from the others for 20 s, at 100 records/s", CUT),
        ("Three regions: us is lost at 200 records/s, clients go on in eu", FAILOVER),
    ),
    accounts={"cut": "eu cut off, read in eu"},
)


def page(
    results: Sequence[Result],
    machine: Sequence[str],
    promises: Mapping[str, Promise],
    old: str,
    part: Part = ONE_REGION,
) -> str:
    """Return the page: the measured part anew, and of the old page what stands around it."""
    before, _, rest = old.partition(part.begin)
    _, _, after = rest.partition(part.end)
    is_there = part.begin in old
    head = before if is_there else old or "# Benchmarks\n\n"
    text = measured(results, machine, promises, part)
    return f"{head}{part.begin}\n{text}\n{part.end}{after if is_there else chr(10)}"


def measured(
    results: Sequence[Result], machine: Sequence[str], promises: Mapping[str, Promise], part: Part = ONE_REGION
) -> str:
    """Return the measured part: where we lose, the tables, the machine."""
    there = [name for name in promises if any(result["contender"] == name for result in results)]
    shown = {name: promises[name] for name in there}
    parts = [lost(results, shown, part)]
    for title, figures in part.tables:
        rows = [figure for figure in figures if _values(results, there, figure)]
        if rows:
            parts.append(f"### {title}\n\n{_table(results, shown, rows)}")
    parts.append(_accounts(results, shown, part.accounts))
    parts.append("### Machine, versions, command\n\n" + "\n".join(f"- {line}" for line in _machine(results, machine)))
    return "\n\n".join(part for part in parts if part)


def lost(results: Sequence[Result], promises: Mapping[str, Promise], part: Part) -> str:
    """Return the first paragraph: what others do better than we, those with our durability first."""
    busy = max((result["figures"]["load_average"] for result in results), default=0) > QUIET_LOAD
    sentences = [BUSY] if busy else []
    figures = [figure for _, of_table in part.tables for figure in of_table]
    for ours, durable in part.ours.items():
        us = "We" if len(part.ours) == 1 else f"As {ours} we"
        for synced, who in ((True, durable), (False, "that acknowledge before a sync")):
            others = [name for name, promise in promises.items() if name not in part.ours and promise[2] is synced]
            found = []
            for figure in figures:
                better = [
                    _against(results, ours, name, figure) for name in others if _better(results, ours, name, figure)
                ]
                if better:
                    found.append(f"{figure.title}: {_cell(results, ours, figure)} against {', '.join(better)}")
            if found:
                sentences.append(f"**{us} lose to brokers {who}** in {'; '.join(found)}.")
            elif others:
                sentences.append(f"{us} lose nothing to brokers {who}.")
    return " ".join(sentences)


def _against(results: Sequence[Result], us: str, name: str, figure: Figure) -> str:
    ours, theirs = numbers_of(results, us, figure), numbers_of(results, name, figure)
    meet = min(ours) <= max(theirs) and min(theirs) <= max(ours)
    return f"{name} {_cell(results, name, figure)}{' (the spreads meet)' if meet else ''}"


def _better(results: Sequence[Result], us: str, name: str, figure: Figure) -> bool:
    ours, theirs = numbers_of(results, us, figure), numbers_of(results, name, figure)
    if not ours or not theirs:
        return False
    mine, other = statistics.median(ours), statistics.median(theirs)
    return other < mine if figure.less_is_better else other > mine


def numbers_of(results: Sequence[Result], name: str, figure: Figure) -> list[float]:
    """Return a figure of a contender in each round in which there is one."""
    return [row[figure.name] for row in _rows(results, name, figure) if figure.name in row and _kept_up(row, figure)]


def _rows(results: Sequence[Result], name: str, figure: Figure) -> list[Mapping[str, Any]]:
    return [row["figures"] for row in results if row["contender"] == name and row["workload"] == figure.workload]


def _kept_up(row: Mapping[str, Any], figure: Figure) -> bool:
    return figure.name not in DELIVERY or figure.workload in FAULTY or not row["lost"] + row["unknown"]


def _values(results: Sequence[Result], names: Sequence[str], figure: Figure) -> list[float]:
    return [number for name in names for number in numbers_of(results, name, figure)]


def _cell(results: Sequence[Result], name: str, figure: Figure) -> str:
    numbers = numbers_of(results, name, figure)
    if not numbers:
        return BEHIND if _rows(results, name, figure) else "-"
    return spread(numbers, figure.form)


def _table(results: Sequence[Result], promises: Mapping[str, Promise], figures: Sequence[Figure]) -> str:
    rows = [["", "an acknowledged record is", *(figure.title for figure in figures)]]
    for name, (durability, client, _) in promises.items():
        cells = [_cell(results, name, figure) + _mark(results, name, figure) for figure in figures]
        if any(cell != "-" for cell in cells):
            rows.append([f"{name} ({client})", durability, *cells])
    return markdown(rows)


def _mark(results: Sequence[Result], name: str, figure: Figure) -> str:
    own = _rows(results, name, figure)
    is_paced = figure.name in DELIVERY and figure.workload not in FAULTY
    late = is_paced and any(row["lag_p99_ms"] > LAG_MS_MAX for row in own)
    full = figure.name == "records_per_s" and any(row["client_cores"] > CLIENT_CORES_MAX for row in own)
    return (" late" if late else "") + (" client" if full else "")


def _accounts(results: Sequence[Result], promises: Mapping[str, Promise], faults: Mapping[str, str]) -> str:
    rows = [["", "fault", "runs", "sent", "acknowledged", "lost", "twice", "out of order", "unknown"]]
    for name in promises:
        for key, fault in faults.items():
            own = [row["figures"] for row in results if row["contender"] == name and row["workload"] == key]
            if own:
                sums = [f"{sum(row[what] for row in own):,}" for what in ("sent", "acknowledged", *ACCOUNT)]
                rows.append([name, fault, str(len(own)), *sums])
    if len(rows) == 1:
        return ""
    return "What became of the records of these runs, all rounds together:\n\n" + markdown(rows)


def _machine(results: Sequence[Result], machine: Sequence[str]) -> list[str]:
    versions = dict.fromkeys(f"{result['contender'].partition(',')[0]} {result['version']}" for result in results)
    idle = [result["figures"]["idle_share"] for result in results]
    load = [result["figures"]["load_average"] for result in results]
    rounds = len({result["round"] for result in results})
    began = sorted(result["figures"]["began"] for result in results)
    late = [result["figures"]["router_lag_ms"] for result in results if "router_lag_ms" in result["figures"]]
    router = "router of the test bed at its latest: median of the runs {:.1f} ms, worst {:.1f} ms"
    return [
        *machine,
        f"brokers: {', '.join(versions)}",
        f"{len(results)} runs in {rounds} round{'s' if rounds > 1 else ''}, from {began[0]} to {began[-1]}",
        f"idle CPU in a run: median {statistics.median(idle):.0%}, least {min(idle):.0%}; load average up to "
        f"{max(load):.1f}",
        *([router.format(statistics.median(late), max(late))] if late else []),
    ]


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return a table; the first row is its head."""
    head, *body = rows
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *body))
