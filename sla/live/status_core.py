"""live.json: what the live view shows, made of a state. Pure.

Schema 1, stable: fields are added, never changed. Moments are seconds since 1970, times `_us` microseconds.

    made_at_s, state, batch, watermark_s, error       state: live | degraded; degraded has its reasons in `reasons`
    regions[]: region, state, newest_s, age_s, brokers[]: broker, newest_s, age_s
    pairs[]: origin, dest, state, last_5m, last_15m, since_start, late
    late_rows, rows: by kind

Rule 1: provisional: late rows are in no minute. Reports are made of the brokers' files.
Rule 2: a region is degraded when the newest row of any broker of it is older than `stale_s`, or nothing of it was read
        though it is known: what is shown of it is then of then, not of now.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from georelay.trace.histogram import is_quantile_meaningful, merge, quantile
from sla.live.state_core import MINUTE_S, Counts, LiveState

SCHEMA_VERSION: Final = 1
FORGET_S: Final = 3_600  # a broker that nobody names any more and that has been silent for so long
WINDOWS: Final = {"last_5m": 5 * MINUTE_S, "last_15m": 15 * MINUTE_S}
QUANTILES: Final = {"p50_us": 0.5, "p99_us": 0.99, "p99_9_us": 0.999}


def live_document(
    state: LiveState, *, known: Iterable[str], now_s: int, stale_s: int, silent: Iterable[str] = (), error: str = ""
) -> dict[str, Any]:
    """Return what live.json says.

    Args:
        known: brokers, as region/id, that should be read.
        now_s: wall clock.
        stale_s: age from which traces count as stale.
        silent: one line for each address that did not answer.
        error: why nothing is read at the moment, "" while it is.
    """
    regions = _regions(state, known, now_s=now_s, stale_s=stale_s)
    stale = {region["region"] for region in regions if region["state"] != "live"}
    reasons = [
        f"region {region['region']}: "
        + ("no traces yet" if region["age_s"] is None else f"newest traces are {region['age_s']} s old")
        for region in regions
        if region["region"] in stale
    ]
    reasons += [*silent, *([error] if error else [])]
    return {
        "schema_version": SCHEMA_VERSION,
        "made_at_s": now_s,
        "state": "degraded" if reasons or not regions else "live",
        "reasons": reasons or ([] if regions else ["no broker was found"]),
        "batch": state.batch,
        "watermark_s": state.watermark_s,
        "regions": regions,
        "pairs": _pairs(state, stale=stale, now_s=now_s),
        "rows": dict(state.rows),
        "late_rows": state.late_rows,
    }


def _regions(state: LiveState, known: Iterable[str], *, now_s: int, stale_s: int) -> list[dict[str, Any]]:
    listed = set(known)
    newest = {name: max(kinds.values(), default=0) for name, kinds in state.newest_s.items()}
    newest = {name: moment for name, moment in newest.items() if name in listed or now_s - moment <= FORGET_S}
    by_region: dict[str, list[dict[str, Any]]] = {}
    for name in sorted({*newest, *listed}):
        region, _, broker = name.partition("/")
        moment_s = newest.get(name)
        age_s = None if moment_s is None else max(0, now_s - moment_s)
        by_region.setdefault(region, []).append({"broker": broker, "newest_s": moment_s, "age_s": age_s})
    rows = []
    for region, brokers in by_region.items():
        ages = [broker["age_s"] for broker in brokers]
        is_live = all(age is not None and age <= stale_s for age in ages)
        moments = [broker["newest_s"] for broker in brokers if broker["newest_s"] is not None]
        oldest = max((age for age in ages if age is not None), default=None)
        rows.append(
            {
                "region": region,
                "state": "live" if is_live else "degraded",
                "newest_s": max(moments, default=None),
                "age_s": oldest,
                "brokers": brokers,
            }
        )
    return rows


def _pairs(state: LiveState, *, stale: set[str], now_s: int) -> list[dict[str, Any]]:
    rows = []
    for origin, dest in sorted(state.totals):
        row: dict[str, Any] = {
            "origin": origin,
            "dest": dest,
            "state": "degraded" if dest in stale else "live",
        }
        for name, length_s in WINDOWS.items():
            window = Counts()
            for (minute_s, *pair), counts in state.minutes.items():
                if pair == [origin, dest] and minute_s + MINUTE_S > now_s - length_s:
                    window.add(counts)
            row[name] = _shown(window) | _quantiles(window)
        row["since_start"] = _shown(state.totals[origin, dest])
        late = state.late.get((origin, dest), Counts())
        row["late"] = {"n": late.n, "n_good": late.n_good}
        rows.append(row)
    return rows


def _shown(counts: Counts) -> dict[str, Any]:
    names = ("n", "n_good", "n_good_lo", "n_good_hi", "n_clock_unknown", "lat_max_us", "probes_ok", "probes_bad")
    return {name: getattr(counts, name) for name in names}


def _quantiles(counts: Counts) -> dict[str, int | None]:
    hist: dict[int, int] = {}
    merge(hist, counts.hist.items())
    found: dict[str, int | None] = {}
    for name, q in QUANTILES.items():
        value = quantile(hist, q) if counts.n and is_quantile_meaningful(counts.n, q) else None
        found[name] = None if value is None else min(round(value), counts.lat_max_us)
    return found
