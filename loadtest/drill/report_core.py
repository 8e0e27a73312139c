"""A drill's result as JSON and as Markdown, and its verdict against the goals. Pure.

Rule 1: `broken`: a promise was not kept; the drill failed. `missed`: a goal in seconds was not met; said, with what the
        machine was doing. `invalid`: why a run says nothing about the mesh; what was broken in it fails no drill.
Rule 2: an audit that was not run is never called clean.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

RTO_MEDIAN_S_MAX: Final = 5.0
RTO_WORST_S_MAX: Final = 8.0
CAUGHT_UP_S_MAX: Final = 2.0
KEPT, FAILED, INVALID = "KEPT", "FAILED", "INVALID"
EXIT_CODES: Final = {KEPT: 0, FAILED: 1, INVALID: 2}
REPORT_VERSION: Final = 1
SUMMED: Final = (
    *("geo_acknowledged", "geo_lost", "region_acknowledged", "region_orphaned", "region_lost"),
    *("duplicated", "reordered"),
)


Run = Mapping[str, Any]  # what came of a run, as loadtest.drill.drill_run writes it


def document_of(head: Mapping[str, Any], runs: Sequence[Run]) -> dict[str, Any]:
    """Return everything as one JSON document."""
    return {"version": REPORT_VERSION, **head, "summary": summary_of(runs), "runs": list(runs)}


def summary_of(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the figures over all runs, the promises broken and the goals missed."""
    rtos = [run["rto_s"] for run in runs if run["rto_s"] is not None]
    broken, invalid = (
        [f"run {number}: {text}" for number, run in enumerate(runs, start=1) for text in run[what]]
        for what in ("broken", "invalid")
    )
    verdict = INVALID if invalid else KEPT
    if any(run["broken"] and not run["invalid"] for run in runs):
        verdict = FAILED
    summary: dict[str, Any] = {
        "runs": len(runs),
        "rto_median_s": statistics.median(rtos) if rtos else None,
        "rto_worst_s": max(rtos, default=None),
        **{name: sum(run[name] for run in runs) for name in SUMMED},
        "rpo_worst_s": max((run["rpo_s"] for run in runs), default=0.0),
        "audit": ", ".join(sorted({run["audit"]["result"] for run in runs})),
        "broken": broken,
        "invalid": invalid,
    }
    return summary | {"missed": _missed(summary, runs), "verdict": verdict}


def _missed(summary: Mapping[str, Any], runs: Sequence[Run]) -> list[str]:
    median, worst = summary["rto_median_s"], summary["rto_worst_s"]
    missed = []
    if median is not None and median > RTO_MEDIAN_S_MAX:
        missed.append(f"median RTO {median:.2f} s, goal {RTO_MEDIAN_S_MAX:g} s")
    if worst is not None and worst > RTO_WORST_S_MAX:
        missed.append(f"worst RTO {worst:.2f} s, goal {RTO_WORST_S_MAX:g} s")
    if "not run" in summary["audit"]:
        missed.append("the audit was not run in every run")
    for number, run in enumerate(runs, start=1):
        for heal in run["after_heal"]:
            late = heal["caught_up_s"]
            if late is None or late > CAUGHT_UP_S_MAX:
                shown = "never" if late is None else f"after {late:.2f} s"
                missed.append(f"run {number}: {heal['region']} caught up {shown}, goal {CAUGHT_UP_S_MAX:g} s")
    return missed


# --- Markdown -----------------------------------------------------------------------------------------


def markdown_of(document: Mapping[str, Any]) -> str:
    """Return the document as a person reads it."""
    summary = document["summary"]
    lines = [
        f"# Drill {document['kind']}: {summary['verdict']}",
        "",
        f"{document['began']}, mesh {document['mesh']}, {document['where']}. {document['machine']}",
        "",
        *_verdict(summary),
        "",
        *_table(document["runs"]),
        "",
    ]
    for number, row in enumerate(document["runs"], start=1):
        lines += _run_lines(number, row)
    return "\n".join(lines).rstrip() + "\n"


def _verdict(summary: Mapping[str, Any]) -> list[str]:
    lines = [
        f"- RTO: median {_s(summary['rto_median_s'])}, worst {_s(summary['rto_worst_s'])} over {summary['runs']} runs "
        f"(goals {RTO_MEDIAN_S_MAX:g} s and {RTO_WORST_S_MAX:g} s)",
        f"- records that several regions acknowledged: {summary['geo_acknowledged']}, lost {summary['geo_lost']}",
        f"- records that the home alone acknowledged: {summary['region_acknowledged']}, "
        f"in orphan branches {summary['region_orphaned']}, lost {summary['region_lost']}; "
        f"oldest of them acknowledged {_s(summary['rpo_worst_s'])} before the fault",
        f"- stored twice {summary['duplicated']}, out of order {summary['reordered']}; audit: {summary['audit']}",
    ]
    lines += [f"- BROKEN: {text}" for text in summary["broken"]]
    lines += [f"- INVALID: {text}" for text in summary["invalid"]]
    return lines + [f"- goal missed: {text}" for text in summary["missed"]]


def _table(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    head = (
        "run", "victim", "how", "led control", "RTO", "geo lost", "orphaned", "orphan records", "old home stopped",
        "fail-back", "audit",
    )  # fmt: skip
    rows = [
        (
            str(number), row["victim"], row["how"], "yes" if row["victim"] == row["control_leader"] else "no",
            _s(row["rto_s"]), str(row["geo_lost"]), str(row["region_orphaned"]), str(row["orphan_records"]),
            _s(row["old_home_s"]), _s(row["marks"].get("fail_back_s")), row["audit"]["result"],
        )
        for number, row in enumerate(runs, start=1)
    ]  # fmt: skip
    return ["| " + " | ".join(cells) + " |" for cells in (head, ("---",) * len(head), *rows)]


def _run_lines(number: int, row: Mapping[str, Any]) -> list[str]:
    lines = [f"## Run {number}: {row['victim']}, {row['how']}", ""]
    by = ", ".join(f"{name} {_s(each)}" for name, each in row["rto_by_publisher_s"].items())
    silent = ", ".join(f"{name} {_s(each)}" for name, each in row["silence_s"].items())
    lines += [
        f"- answered again: {by}; longest silence of the whole run: {silent}",
        f"- sent {row['sent']}: region {row['region_acknowledged']}, geo {row['geo_acknowledged']}, "
        f"pending {row['pending']}, never stored for certain {row['unanswered']}",
        f"- orphan branches: {row['orphan_records']} records: {row['region_orphaned']} acknowledged "
        f"({row['orphaned_after_fault']} of them after the fault), "
        f"{row['orphan_unacknowledged']} not acknowledged there, {row['orphan_strangers']} of nobody",
    ]
    if row["overlap_s"] is not None:
        side = "before" if row["overlap_s"] <= 0 else "AFTER"
        lines.append(
            f"- last acknowledgement of what only the old home had: {abs(row['overlap_s']):.2f} s {side} "
            "the first of the new epoch"
        )
    lines += [f"- {text}" for text in row["judged"]]
    lines += [f"- {name}: {seconds:.2f} s" for name, seconds in row["marks"].items()]
    for heal in row["after_heal"]:
        seconds = f"flowing {_s(heal['flowing_s'])}, caught up {_s(heal['caught_up_s'])}"
        lines.append(f"- {heal['region']} after the heal: {seconds}")
    lines += [f"- {note}" for note in row["notes"]]
    said = row["audit"]["said"]
    lines.append(f"- audit: {row['audit']['result']}" + (f" ({said})" if said else ""))
    lines += [f"- BROKEN: {text}" for text in row["broken"]]
    return [*lines, *(f"- INVALID: {text}" for text in row["invalid"]), ""]


def _s(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2f} s"
