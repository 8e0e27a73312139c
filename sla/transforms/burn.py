"""Burn-rate windows over minute counts, by running sums on a dense grid of minutes. DataFrame in, DataFrame out.

Counts have one row per (target, a, b, ts_s): `total` events of a subject (a, b) in that minute and the `bad` ones, and
`allowed`, the bad share that the target allows. Minutes without a row have no events; they are filled in, because then
a window is the difference of two running sums that lie a fixed number of rows apart: one sort for all windows, where
range frames sort and sum each window alone (15 times slower over three days).

A window is covered when the subject's first event is at least its length old. Minutes without events inside it do not
count against that: an outage leaves them too, and must not silence its own alert. Only a covered window can be on: the
rates of the rules are shares of a budget spent in the whole window, and of a part nobody knows the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from sla.tables import MINUTE_S
from sla.targets import BurnRule

SUBJECT = ["target", "a", "b"]


def burn_alerts(
    counts: DataFrame, rules: Sequence[BurnRule], *, start_s: int, end_s: int, events_min: int
) -> DataFrame:
    """Return one row per (target, a, b, rule) with the alert's state at the end and over [start_s, end_s).

    Columns: long_bad, long_total, short_bad, short_total at `end_s`; covered_minutes (of the long window then, its
    length at most); firing_minutes; worst_rate, worst_s (when the highest rate of a covered window was, first of
    equals; null when none was covered and had enough events).

    Args:
        counts: may begin before `start_s`; what lies before fills the windows.
        rules: at least one.
        events_min: events in the long window before the alert may be on.
    """
    minutes = sorted({length for rule in rules for length in (rule.long_minutes, rule.short_minutes)})
    windowed = _with_windows(_dense(counts, end_s=end_s), minutes)
    period = windowed.where(F.col("ts_s") >= start_s)
    # All rules in one row per subject, turned into rows when only a few are left.
    sums = period.groupBy(*SUBJECT).agg(
        *(_alert(rule, end_s=end_s, events_min=events_min).alias(rule.name) for rule in rules)
    )
    return sums.select(*SUBJECT, F.inline(F.array(*(F.col(f"`{rule.name}`") for rule in rules)))).orderBy(
        *SUBJECT, "rule"
    )


def _dense(counts: DataFrame, *, end_s: int) -> DataFrame:
    """Return every minute of every subject from its first row to the end of the period; 0 where it has no row."""
    known = counts.where(F.col("ts_s") < end_s).repartition(*SUBJECT)  # the one shuffle: all below is by subject
    subjects = known.groupBy(*SUBJECT, "allowed").agg(F.min("ts_s").alias("first_s"))
    minutes = F.sequence("first_s", F.lit(end_s - MINUTE_S).cast("bigint"), F.lit(MINUTE_S).cast("bigint"))
    nothing = F.lit(0).cast("bigint")
    grid = subjects.select(
        *SUBJECT, "allowed", F.explode(minutes).alias("ts_s"), nothing.alias("total"), nothing.alias("bad")
    )
    return (
        known.select(*grid.columns)
        .unionByName(grid)
        .groupBy(*SUBJECT, "ts_s")
        .agg(F.max("allowed").alias("allowed"), F.sum("total").alias("total"), F.sum("bad").alias("bad"))
    )


def _with_windows(dense: DataFrame, minutes: Sequence[int]) -> DataFrame:
    """Add `bad_<m>` and `total_<m>`, the sums over the last m minutes, for every length."""
    by_time = Window.partitionBy(*SUBJECT).orderBy("ts_s")
    through = by_time.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    running = dense.withColumns({f"{name}_sum": F.sum(name).over(through) for name in ("bad", "total")})
    first = {"first_s": F.first("ts_s").over(through)}
    return running.withColumns(
        first
        | {
            f"{name}_{length}": F.col(f"{name}_sum") - F.lag(f"{name}_sum", length, 0).over(by_time)
            for name in ("bad", "total")
            for length in minutes
        }
    )


def _alert(rule: BurnRule, *, end_s: int, events_min: int) -> Column:
    """Return one rule's state over the minutes of a subject; rates count where the long window says enough."""
    long_bad, long_total = F.col(f"bad_{rule.long_minutes}"), F.col(f"total_{rule.long_minutes}")
    short_bad, short_total = F.col(f"bad_{rule.short_minutes}"), F.col(f"total_{rule.short_minutes}")
    limit = F.lit(rule.rate) * F.col("allowed")
    age_minutes = (F.col("ts_s") - F.col("first_s")) / MINUTE_S + 1
    is_telling = (long_total >= events_min) & (age_minutes >= rule.long_minutes)
    rate = F.when(is_telling, long_bad / long_total / F.col("allowed"))
    worst = F.max(F.when(is_telling, F.struct(rate.alias("rate"), (-F.col("ts_s")).alias("before_s"))))

    def at_end(column: Column) -> Column:
        return F.max(F.when(F.col("ts_s") == end_s - MINUTE_S, column))

    return F.struct(
        F.lit(rule.name).alias("rule"),
        at_end(long_bad).alias("long_bad"),
        at_end(long_total).alias("long_total"),
        at_end(short_bad).alias("short_bad"),
        at_end(short_total).alias("short_total"),
        at_end(F.least(F.lit(rule.long_minutes), age_minutes)).cast("int").alias("covered_minutes"),
        F.count_if(is_telling & (long_bad > limit * long_total) & (short_bad > limit * short_total)).alias(
            "firing_minutes"
        ),
        worst["rate"].alias("worst_rate"),
        (MINUTE_S - worst["before_s"]).alias("worst_s"),
    )
