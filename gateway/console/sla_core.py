"""PASS, BREACH or NOT PROVEN of every directed pair, from the live view. Pure.

Rule 1: PASS when the share that was surely in time meets the objective, BREACH when even the share that perhaps was
        does not; between the two, without records, or from a view that nobody keeps any more: NOT PROVEN.
Rule 2: it is the last five minutes and provisional; claims are made by `georelay-sla report`.
"""

from __future__ import annotations

from typing import Any, Final

from gateway.console.samples import JsonObject, rows_of

OBJECTIVE: Final = 0.9999  # of the latency targets that a report judges by default (docs/sla/targets.md)
OLD_VIEW_S: Final = 60.0
PASS, BREACH, NOT_PROVEN = "PASS", "BREACH", "NOT PROVEN"

Judged = dict[tuple[str, str], JsonObject]


def judge(live: JsonObject | None, *, now_s: float, no_live: str = "") -> tuple[Judged, str]:
    """Return what is known of each pair, and why nothing is known of any ("" else; `no_live`: why there is no view)."""
    if live is None:
        return {}, no_live
    age_s = now_s - float(live.get("made_at_s", 0.0))
    if age_s > OLD_VIEW_S:
        return {}, f"the live view is {_ago(age_s)} old: is georelay-sla live still running?"
    judged = {(str(row.get("origin")), str(row.get("dest"))): _pair(row) for row in rows_of(live, "pairs")}
    return judged, ""


def _pair(row: JsonObject) -> JsonObject:
    window: dict[str, Any] = row.get("last_5m") or {}
    n = int(window.get("n", 0))
    p99_us = window.get("p99_us")
    state, words = NOT_PROVEN, "no record arrived in the last 5 minutes"
    if row.get("state") == "degraded":
        words = "traces of the destination are old or missing"
    elif n:
        surely, perhaps = int(window.get("n_good_lo", 0)), int(window.get("n_good_hi", 0))
        if surely >= OBJECTIVE * n:
            state, words = PASS, f"{surely:,} of {n:,} surely within 50 ms"
        elif perhaps < OBJECTIVE * n:
            state, words = BREACH, f"{n - perhaps:,} of {n:,} surely later than 50 ms"
        else:
            words = f"clocks are too uncertain: {surely:,} surely, {perhaps:,} perhaps within 50 ms, of {n:,}"
    return {
        "state": state,
        "words": words,
        "records": n,
        "p50_ms": _ms(window.get("p50_us")),
        "p99_ms": _ms(p99_us),
    }


def _ms(us: object) -> float | None:
    return round(us / 1000, 2) if isinstance(us, int | float) else None


def _ago(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
