"""A report of two days of three regions, made by hand: every kind of row and verdict, names that try to break out."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator
from typing import Final

from sla.judging.verdict import Verdict
from sla.report import model as m

START: Final = datetime.datetime(2026, 11, 20, tzinfo=datetime.UTC)
MINUTES: Final = 2 * 24 * 60
STEP_S: Final = 300
REGIONS: Final = ("us", "eu", "ap")
FLOOR_MS: Final = {("eu", "us"): 35.4, ("ap", "us"): 75.2, ("ap", "eu"): 60.4}
HOSTILE: Final = "<script>document.title='owned'</script>"
P, B, I, N = Verdict.PASS, Verdict.BREACH, Verdict.INCONCLUSIVE, Verdict.NO_DATA  # noqa: E741


def interval(value: float | None, lo: float | None = None, hi: float | None = None) -> m.Interval:
    """Return an interval; without bounds it is certain."""
    certain = 0.0 if value is None else value
    return m.Interval(value=value, lo=certain if lo is None else lo, hi=certain if hi is None else hi)


def at(minutes: float) -> str:
    return (START + datetime.timedelta(minutes=minutes)).isoformat()


def floor_ms(origin: str, dest: str) -> float:
    first, second = sorted((origin, dest))
    return FLOOR_MS.get((first, second), 0.2)


def pair(origin: str, dest: str) -> m.LatencyPair:
    floor = floor_ms(origin, dest)
    is_feasible = floor < 50
    n = 8_640_000
    bad = 3_110 if origin == dest else 21_700 if is_feasible else n
    doubt = 0 if origin == dest else 44_000 if is_feasible else 0
    p50 = floor + 2.6
    stages = []
    for stage, share in (("commit", 0.04), ("replicate", 0.9), ("deliver", 0.03), ("total", 1.0)):
        if stage == "replicate" and origin == dest:
            continue
        middle = p50 * share + 0.4
        good = n - bad if stage == "total" else n
        stages.append(
            m.StageLatency(
                stage=stage,
                n=n,
                quantiles=m.Quantiles(
                    p50_ms=middle,
                    p90_ms=middle * 1.1,
                    p95_ms=middle * 1.15,
                    p99_ms=middle * 1.3,
                    p99_9_ms=middle * 2.2,
                    p99_99_ms=middle * 6 if stage == "total" else None,
                ),
                mean_ms=middle * 1.03,
                max_ms=middle * 40,
                n_good=good,
                within=interval(good / n, max(0, good - doubt) / n, min(n, good + doubt // 4) / n),
                clock_error_ms=None if {origin, dest} == {"us", "ap"} else 0.0 if origin == dest else 1.9,
            )
        )
    return m.LatencyPair(
        origin=origin,
        dest=dest,
        home=None,
        is_intra=origin == dest,
        floor_ms=None if origin == dest else floor,
        is_feasible=True if origin == dest else is_feasible,
        own_limit_ms=None if is_feasible else floor + 20,
        n_clock_unknown=5_200 if {origin, dest} == {"us", "ap"} else 0,
        n_clock_revised=1_200 if (origin, dest) == ("us", "eu") else 0,
        there_and_back_mean_ms=None if origin == dest else 2 * p50 * 1.02,
        stages=tuple(stages),
    )


def burn(rate_long: float | None, rate_short: float | None, firing_minutes: int = 0) -> tuple[m.BurnWindow, ...]:
    windows = (("1h+5m", "page", 60, 5, 14.4), ("6h+30m", "page", 360, 30, 6.0), ("3d+6h", "ticket", 4_320, 360, 1.0))
    return tuple(
        m.BurnWindow(
            name=name,
            severity=severity,
            long_minutes=long,
            short_minutes=short,
            threshold=threshold,
            long_rate=rate_long,
            short_rate=rate_short,
            covered_minutes=min(long, MINUTES),
            is_burning=bool(rate_long and rate_short and min(rate_long, rate_short) > threshold),
            is_firing=bool(rate_long and rate_short and min(rate_long, rate_short) > threshold) and long <= MINUTES,
            is_partial=long > MINUTES,
            firing_minutes=firing_minutes if threshold > 10 else 0,
            worst_rate=19.2 if firing_minutes else rate_long,
            worst_at=at(1_900) if firing_minutes else None,
        )
        for name, severity, long, short, threshold in windows
    )


def budget(unit: m.Unit, allowed: float, used: int, exhausted_at: str | None = None) -> m.Budget:
    left = 1 - used / allowed
    return m.Budget(
        unit=unit,
        allowed=allowed,
        used=used,
        left_share=left,
        full_outage_minutes_left=max(0.0, left) * 28.8,
        exhausted_at=exhausted_at,
    )


def latency_subjects() -> tuple[m.Subject, ...]:
    subjects = []
    for origin in REGIONS:
        for dest in REGIONS:
            one = pair(origin, dest)
            n = one.stages[-1].n
            bad = 3_110 if origin == dest else 21_700 if one.is_feasible else 92_000
            is_doubtful = (origin, dest) == ("ap", "us")
            subjects.append(
                m.Subject(
                    name=f"{origin} -> {dest}",
                    total=n,
                    bad=bad,
                    threshold_ms=one.own_limit_ms or 50.0,
                    is_own_limit=one.own_limit_ms is not None,
                    measured=interval(1 - bad / n, 0.9871 if is_doubtful else 1 - 1.2 * bad / n, 1 - 0.9 * bad / n),
                    verdict=I if is_doubtful else B if one.own_limit_ms else P,
                    reason="the clock error is larger than the margin"
                    if is_doubtful
                    else f"{1 - bad / n:.4%} within {one.own_limit_ms:.1f} ms"
                    if one.own_limit_ms
                    else "",
                    budget=budget(m.Unit.RECORDS, n / 100, bad),
                    burn=burn(0.25, 0.1),
                )
            )
    return tuple(subjects)


def target(
    name: str, kind: m.TargetKind, sentence: str, subjects: tuple[m.Subject, ...], **changes: object
) -> m.TargetResult:
    worst = max(subjects, key=lambda one: one.bad, default=None)
    fields: dict[str, object] = {
        "name": name, "kind": kind, "scope": "all", "objective": 0.9999, "sentence": sentence, "is_required": True,
        "measured": worst.measured if worst else None, "verdict": worst.verdict if worst else N,
        "reason": worst.reason if worst else "nothing was counted", "budget": worst.budget if worst else None,
        "worst_subject": worst.name if worst else None, "burning": (), "subjects": subjects,
    }  # fmt: skip
    return m.TargetResult(**(fields | changes))  # type: ignore[arg-type]


def subject(name: str, total: int, bad: int, verdict: Verdict, reason: str = "", **changes: object) -> m.Subject:
    fields: dict[str, object] = {
        "name": name, "total": total, "bad": bad, "threshold_ms": None, "is_own_limit": False,
        "measured": interval(1 - bad / total, 1 - 1.3 * bad / total - 1e-5, 1 - 0.8 * bad / total), "verdict": verdict,
        "reason": reason, "budget": None, "burn": (),
    }  # fmt: skip
    return m.Subject(**(fields | changes))  # type: ignore[arg-type]


def targets() -> tuple[m.TargetResult, ...]:
    probes = (
        subject(
            "us -> eu", 172_800, 9, P, budget=budget(m.Unit.PROBES, 17.28, 9), burn=burn(0.2, 0.0, firing_minutes=3)
        ),
        subject(
            "us -> ap",
            172_800,
            61,
            B,
            "99.9647 % of probes",
            budget=budget(m.Unit.PROBES, 17.28, 61, at(MINUTES + 30)),
            burn=burn(21.5, 33.0, firing_minutes=22),
        ),
    )
    return (
        target(
            "latency-50ms",
            m.TargetKind.LATENCY,
            "99 % of records within 50 ms, every pair that light allows; others within their floor + 20 ms",
            latency_subjects(),
            objective=0.99,
        ),
        target(
            "throughput",
            m.TargetKind.THROUGHPUT,
            "1,000 records per second delivered in 99 % of the minutes in which they are offered",
            (subject("eu", 1_440, 0, P, measured=interval(1.0, 1.0, 1.0)),),
            objective=0.99,
        ),
        target(
            "integrity",
            m.TargetKind.INTEGRITY,
            "no record lost, repeated without saying so, or out of order",
            (subject("orders/0 in eu", 8_640_000, 0, P, measured=None),),
            objective=None,
            measured=None,
        ),
        target(
            "requests",
            m.TargetKind.REQUESTS,
            "99.99 % of valid requests succeed",
            (
                subject(
                    "us, publish", 86_400_000, 1_000, P, budget=budget(m.Unit.REQUESTS, 8_640, 1_000), burn=burn(0.1, 0)
                ),
            ),
        ),
        target(
            "probes",
            m.TargetKind.PROBES,
            "99.99 % of probes come in time, every pair",
            probes,
            burning=("us -> ap: 1h+5m page",),
        ),
        target(
            "minutes",
            m.TargetKind.MINUTES,
            "99.99 % of minutes up, every pair",
            (
                subject(
                    "us -> ap",
                    MINUTES,
                    0,
                    I,
                    "coverage is 99.7917 %, a pass needs 99.9 %",
                    measured=interval(1.0, 0.9979, 1.0),
                    budget=budget(m.Unit.MINUTES, 0.288, 0),
                ),
            ),
        ),
    )


def series(points: int) -> Iterator[m.Series]:
    steps = tuple(int(START.timestamp()) + step * STEP_S for step in range(points))

    def line(plot: str, name: str, values: list[float | None]) -> m.Series:
        return m.Series(plot=plot, name=name, step_s=STEP_S, at_s=steps, values=tuple(values))

    for origin in REGIONS:
        for dest in REGIONS:
            base = floor_ms(origin, dest) + 2.6
            swing = [1 + 0.05 * math.sin(step / 40) for step in range(len(steps))]
            incident = [6.0 if 380 <= step < 392 and dest == "ap" else 1.0 for step in range(len(steps))]
            gone = [440 <= step < 452 and dest == "ap" for step in range(len(steps))]
            name = f"{origin} -> {dest}"
            p50 = [None if lost else base * a for a, lost in zip(swing, gone, strict=True)]
            p99 = [None if lost else base * 1.3 * a * b for a, b, lost in zip(swing, incident, gone, strict=True)]
            within = [None if lost else 0.7 if b > 1 else 0.998 for b, lost in zip(incident, gone, strict=True)]
            yield line("latency_p50_ms", name, p50)
            yield line("latency_p99_ms", name, p99)
            yield line("within_share", name, within)
            failed = [0.4 if b > 1 and origin == "us" else 0.0 for b in incident]
            yield line("probe_bad_share", name, [None if lost else f for f, lost in zip(failed, gone, strict=True)])
    for region in REGIONS:
        offered = [1_000 + 300 * math.sin(step / 60) for step in range(len(steps))]
        yield line("offered_per_s", region, [*offered])
        yield line("delivered_per_s", region, [value * 0.999 for value in offered])


def integrity() -> m.Integrity:
    readers = tuple(
        m.IntegrityStream(
            topic=topic, origin=origin, partition=0, dest=dest, group=group, published=8_639_970,
            sessions=3, delivered=8_640_120,
            delivered_once=8_640_000,
            dup_flagged=120, dup_unflagged=0, gaps=2, gap_records=40, healed_records=10, lost=lost, unexplained=0,
            aborted=25, expired=5 - lost, order_violations=0, pending=12, verdict=B if lost else P,
            reason=f"{lost} lost" if lost else "",
        )
        for topic, origin, dest, group, lost in (
            ("orders", "", "eu", "billing", 0),
            ("orders", "", "ap", "", 3),
            (HOSTILE, "us", "eu", "$x$ | *y*", 0),
        )
    )  # fmt: skip
    return m.Integrity(
        totals=m.IntegrityTotals(
            committed=8_640_000, aborted=25, expired=5, mirror_missing=0, delivered=25_920_360, dup_flagged=360,
            dup_unflagged=0, lost=3, unexplained=0, healed_records=30, order_violations=0, pending=36,
        ),
        readers=readers,
        streams=(
            m.StreamTotal(
                topic="orders", origin="", partition=0, committed=8_640_000, aborted=25, expired=5, epochs=2
            ),
        ),
        mirrors=(m.MirrorTotal(topic="orders", origin="", partition=0, region="eu", replicated=8_640_000, missing=0),),
    )  # fmt: skip


def availability() -> m.Availability:
    return m.Availability(
        requests=tuple(
            m.RequestRow(
                region="us", source=source, op="publish", attempts=86_400_500, ok=86_399_000, client_error=500,
                server_error=800, timeout=200, offered=86_400_000, writers=3, success=interval(0.99998842, 0.9999, 1.0),
            )
            for source in ("broker", "gateway")
        ),
        pairs=tuple(
            m.PairAvailability(
                origin="us", dest=dest, probes=172_800, probes_ok=172_800 - lost, probes_late=2, probes_lost=lost - 2,
                probes_refused=0, success=interval(1 - lost / 172_800, 0.9994, 0.99996), minutes=MINUTES,
                minutes_up=MINUTES - unknown, minutes_down=0, minutes_unknown=unknown, coverage=1 - unknown / MINUTES,
                up_share=interval(1.0, 1 - unknown / MINUTES, 1.0), longest_down_minutes=0, longest_down_at=None,
            )
            for dest, lost, unknown in (("eu", 9, 0), ("ap", 61, 6))
        ),
    )  # fmt: skip


def clocks() -> tuple[m.ClockRow, ...]:
    return tuple(
        m.ClockRow(
            region=region, peer=peer, exchanges=172_800, offset_us=offset, offset_spread_us=spread, drift_ppm=drift,
            bound_max_us=bound, rtt_min_us=round(2_000 * floor_ms(region, peer)), steps=steps, unsync=0,
        )
        for region, peer, offset, spread, drift, bound, steps in (
            ("eu", "us", -128, 310, -3.3, 1_900, 0),
            ("ap", "us", None, None, None, None, 1),
        )
    )  # fmt: skip


def inputs() -> m.Inputs:
    return m.Inputs(
        rows=(
            m.InputRow(
                kind="latency_hist", region="us", files=1_728, bytes=412_331_904, rows=5_184_000, quarantined_files=0,
                missing_rows=0, dropped_rows=0, gone_rows=0, writers=("us/1001", "us/1002", "us/1003"),
                silent_writer_hours=0, completeness=1.0,
            ),
            m.InputRow(
                kind="ledger", region="ap", files=1_720, bytes=99_614_720, rows=1_036_800, quarantined_files=1,
                missing_rows=1_812, dropped_rows=40, gone_rows=1_832, writers=("ap/3001", "ap/3002"),
                silent_writer_hours=2, completeness=0.998251,
            ),
        ),
        quarantined=(
            m.QuarantinedFile(
                file=f"date=2026-11-21/hour=08/region=ap/{HOSTILE}.parquet",
                reason="could not verify page integrity, CRC checksum verification failed",
            ),
        ),
        hours=47, hours_expected=48, hours_revised=1, hours_not_final=1,
    )  # fmt: skip


def sample_report(points: int = MINUTES * 60 // STEP_S) -> m.Report:
    """Return the report with so many points in every line of its plots."""
    return m.Report(
        schema_version=m.REPORT_SCHEMA_VERSION,
        made=m.Made(
            generated_at=at(MINUTES + 16),
            code_version="0.1.0",
            targets_file="targets.toml",
            period_from=at(0),
            period_to=at(MINUTES),
            asked_from=None,
            asked_to=at(MINUTES),
            minutes=MINUTES,
            integrity_from=at(0),
            integrity_to=at(MINUTES),
            settle_s=900,
        ),
        verdict=B,
        headline="BREACH: us -> ap: 99.9647 % of probes; ap -> eu: 98.9352% within 80.4 ms; orders/0 in ap: 3 lost",
        targets=targets(),
        latency=tuple(pair(origin, dest) for origin in REGIONS for dest in REGIONS),
        throughput=tuple(
            m.ThroughputRegion(
                region=region, delivered=172_627_200, offered=172_800_000, active_minutes=MINUTES, mean_per_s=999.0,
                max_1s=1_431, max_10s_mean=1_301.2, offered_max_10s_mean=1_302.0, max_60s_mean=1_299.9,
                loaded_seconds=86_400, loaded_seconds_met=86_395, loaded_minutes=1_440, loaded_minutes_met=1_440,
            )
            for region in REGIONS
        ),
        integrity=integrity(),
        availability=availability(),
        clocks=clocks(),
        inputs=inputs(),
        worst=tuple(
            m.WorstRow(target=target, what=what, name=name, at=when, total=total, bad=bad, bad_share=bad / total)
            for target, what, name, when, total, bad in (
                ("latency-50ms", "minute", "us -> ap", at(1_901), 3_000, 2_900),
                ("latency-50ms", "pair", "us -> ap", None, 8_640_000, 92_000),
                ("probes", "pair", "us -> ap", None, 172_800, 61),
                ("latency-50ms", "topic", HOSTILE, None, 900, 9),
            )
        ),
        changes=(
            m.Change(
                target="probes", subject="us -> ap", before=interval(0.99998, 0.9999, 0.99999),
                now=interval(0.999647, 0.9994, 0.99972), verdict_before=P, verdict_now=B, is_proven=True,
            ),
            m.Change(
                target="minutes", subject="us -> ap", before=None, now=interval(1.0, 0.9979, 1.0), verdict_before=N,
                verdict_now=I, is_proven=False,
            ),
        ),
        series=tuple(series(points)),
        notes=(
            m.Note(code="INFEASIBLE", text="us -> ap: 50 ms are out of reach; judged by 95.2 ms", is_warning=False),
            m.Note(code="HOUR_MISSING", text="hour 2026-11-21 14:00 UTC has no traces from ap", is_warning=True),
            m.Note(code="BUDGET_BURNING", text="probes: us -> ap: 1h+5m page", is_warning=True),
        ),
    )  # fmt: skip
