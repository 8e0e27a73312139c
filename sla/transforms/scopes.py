"""Scopes of targets as conditions on rows, the same as `Scope` says of single pairs."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from sla.targets import ARROW, Scope


def has_pair(scope: Scope) -> Column:
    """Return whether the pair of a row (`origin`, `dest`) is meant."""
    if scope.names:
        return F.concat_ws(ARROW, "origin", "dest").isin(sorted(scope.names))
    is_intra = F.col("origin") == F.col("dest")
    return {"all": F.lit(True), "intra": is_intra, "inter": ~is_intra}[scope.word]
