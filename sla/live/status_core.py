"""live.json: what the live view shows, made of a state. Pure.

Schema 1, stable: fields are added, never changed. Moments are seconds since 1970, times `_us` microseconds.

    made_at_s, state, batch, watermark_s, error       state: live | degraded; degraded has its reasons in `reasons`
    regions[]: region, state, newest_s, age_s, brokers[]: broker, newest_s, age_s
    pairs[]: origin, dest, state, last_5m, last_15m, since_start, late
    gateways[]: region, gateway, state, newest_s, age_s
    requests[]: region, gateway ("": at the region's brokers), op, last_5m, last_15m, since_start
    late_rows, rows: by kind

Rule 1: provisional: late rows are in no minute. Reports are made of the brokers' files.
Rule 2: a region is degraded when the newest row of any broker of it is older than `stale_s`, or nothing of it was read
        though it is known: what is shown of it is then of then, not of now.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, Final

from georelay.trace.files import GATEWAY_WRITER_FIRST
from georelay.trace.histogram import is_quantile_meaningful, merge, quantile
from sla.live.requests_core import RequestCounts
from sla.live.state_core import MINUTE_S, Counts, LiveState

SCHEMA_VERSION: Final = 1
FORGET_S: Final = 3_600  # a broker that nobody names any more and that has been silent for so long
WINDOWS: Final = {"last_5m": 5 * MINUTE_S, "last_15m": 15 * MINUTE_S}
QUANTILES: Final = {"p50_us": 0.5, "p99_us": 0.99, "p99_9_us": 0.999}


def live_document(
    state: LiveState,
    *,
    known: Iterable[str],
    now_s: int,
    stale_s: int,
    silent: Iterable[str] = (),
    error: str = "",
    gateways: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return what live.json says.

    Args:
        known: brokers and gateways, as region/id, that should be read.
        now_s: wall clock.
        stale_s: age from which traces count as stale.
        silent: one line for each address that did not answer.
        error: why nothing is read at the moment, "" while it is.
        gateways: names of gateways, by region/id.
    """
    newest = _newest(state, known, now_s=now_s)
    regions = _regions({name: moment for name, moment in newest.items() if not _is_gateway(name)}, now_s, stale_s)
    edges = {name: moment for name, moment in newest.items() if _is_gateway(name)}
    edge_rows = _gateways(edges, gateways or {}, now_s, stale_s)
    stale = {region["region"] for region in regions if region["state"] != "live"}
    reasons = [
        f"region {region['region']}: "
        + ("no traces yet" if region["age_s"] is None else f"newest traces are {region['age_s']} s old")
        for region in regions
        if region["region"] in stale
    ]
    reasons += [
        f"gateway {gateway['gateway']} of region {gateway['region']}: "
        + ("no traces yet" if gateway["age_s"] is None else f"newest traces are {gateway['age_s']} s old")
        for gateway in edge_rows
        if gateway["state"] != "live"
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
        "gateways": edge_rows,
        "pairs": _pairs(state, stale=stale, now_s=now_s),
        "requests": _requests(state, now_s=now_s),
        "rows": dict(state.rows),
        "late_rows": state.late_rows,
    }


def _newest(state: LiveState, known: Iterable[str], *, now_s: int) -> dict[str, int | None]:
    """Return the newest moment of each writer that is known, or was heard of not long ago."""
    newest = {name: max(kinds.values(), default=0) for name, kinds in state.newest_s.items()}
    heard = {name for name, moment in newest.items() if now_s - moment <= FORGET_S}
    return {name: newest.get(name) for name in sorted({*heard, *known})}


def _is_gateway(name: str) -> bool:
    return int(name.partition("/")[2]) >= GATEWAY_WRITER_FIRST


def _age_s(moment_s: int | None, now_s: int) -> int | None:
    return None if moment_s is None else max(0, now_s - moment_s)


def _regions(newest: Mapping[str, int | None], now_s: int, stale_s: int) -> list[dict[str, Any]]:
    by_region: dict[str, list[dict[str, Any]]] = {}
    for name, moment_s in newest.items():
        region, _, broker = name.partition("/")
        by_region.setdefault(region, []).append(
            {"broker": broker, "newest_s": moment_s, "age_s": _age_s(moment_s, now_s)}
        )
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


def _gateways(
    newest: Mapping[str, int | None], names: Mapping[str, str], now_s: int, stale_s: int
) -> list[dict[str, Any]]:
    rows = []
    for name, moment_s in newest.items():
        region, _, number = name.partition("/")
        age_s = _age_s(moment_s, now_s)
        rows.append(
            {
                "region": region,
                "gateway": names.get(name) or number,
                "state": "live" if age_s is not None and age_s <= stale_s else "degraded",
                "newest_s": moment_s,
                "age_s": age_s,
            }
        )
    return rows


def _requests(state: LiveState, *, now_s: int) -> list[dict[str, Any]]:
    windows = {name: state.requests.since(now_s - length_s) for name, length_s in WINDOWS.items()}
    rows = []
    for key, total in sorted(state.requests.totals.items()):
        row: dict[str, Any] = dict(zip(("region", "gateway", "op"), key, strict=True))
        for name, counts in windows.items():
            row[name] = asdict(counts.get(key, RequestCounts()))
        rows.append(row | {"since_start": asdict(total)})
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
