"""Latency rows of targets of some topics or groups. DataFrame in, DataFrame out.

A broker with very many histograms open at once sums the rest without naming their topics. Such rows may be of any
target: they are kept apart (`is_untold`), and judged as unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from sla.targets import LatencyTarget
from sla.transforms.scopes import has_pair


def of_target(rows: DataFrame, target: LatencyTarget) -> DataFrame:
    """Return the rows whose records the target counts by their topic and group; all rows of one that names none."""
    return rows.where(_is_meant(target)) if target.is_narrowed else rows


def of_targets(rows: DataFrame, targets: Sequence[LatencyTarget]) -> DataFrame:
    """Return the rows of the stage of each target that it counts or may count, with `target` and `is_untold`.

    Args:
        targets: at least one, each of some topics or groups.
    """
    return reduce(lambda left, right: left.unionByName(right), (_of(rows, target) for target in targets))


def names(rows: DataFrame, targets: Sequence[LatencyTarget]) -> DataFrame:
    """Return per (is_now, target) the topics and groups that have records in its scope, of those that it names.

    Args:
        rows: of of_targets, with `is_now`. Where a target names no topics, or no groups, these are ''.
    """
    of_topics = [target.name for target in targets if target.topics]
    of_groups = [target.name for target in targets if target.groups]
    columns = [
        F.when(F.col("target").isin(meant), F.col(name)).otherwise("").alias(name)
        for name, meant in (("topic", of_topics), ("group", of_groups))
    ]
    is_meant = reduce(or_, ((F.col("target") == target.name) & has_pair(target.scope) for target in targets))
    counted = rows.where((F.col("n") > 0) & ~F.col("is_untold") & is_meant)
    return counted.select("is_now", "target", *columns).distinct()


def _of(rows: DataFrame, target: LatencyTarget) -> DataFrame:
    is_untold = F.col("topic") == ""
    meant = rows.where((F.col("stage") == target.stage.value) & (_is_meant(target) | is_untold))
    return meant.withColumns({"target": F.lit(target.name), "is_untold": is_untold})


def _is_meant(target: LatencyTarget) -> Column:
    is_meant = F.col("topic") != ""
    if target.topics:
        is_meant &= F.col("topic").isin(sorted(target.topics))
    return is_meant & F.col("group").isin(sorted(target.groups)) if target.groups else is_meant
