"""The last drill of each kind: what `georelay drill --out DIRECTORY` left, for the first screen. Pure.

Source: loadtest/drill/report_core.py, version 1 of the document.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

REPORT_VERSION: Final = 1
KINDS_MAX: Final = 10
_NAME: Final = re.compile(r"drill-([a-z][a-z-]{0,30})-([0-9]{8}T[0-9]{6}Z)\.json", re.ASCII)
_BEGAN: Final = "%Y%m%dT%H%M%SZ"
_FIGURES: Final = ("runs", "rto_median_s", "rto_worst_s", "rpo_worst_s", "geo_lost", "region_orphaned", "region_lost")


def newest(names: Iterable[str]) -> list[str]:
    """Return the name of the newest report of each kind, newest first."""
    found: dict[str, tuple[str, str]] = {}
    for name in names:
        if (match := _NAME.fullmatch(name)) is not None:
            kind, began = match.groups()
            found[kind] = max(found.get(kind, ("", "")), (began, name))
    return [name for _, name in sorted(found.values(), reverse=True)][:KINDS_MAX]


def drill_row(name: str, document: Mapping[str, Any], *, mesh: str) -> dict[str, Any] | None:
    """Return what the first screen shows of a report, None where it is none; `mesh`: which one this is.

    `began_ms` counts from 1970. `is_this_mesh`: False for a drill that started a mesh of its own.
    """
    match, summary = _NAME.fullmatch(name), document.get("summary")
    if match is None or document.get("version") != REPORT_VERSION or not isinstance(summary, Mapping):
        return None
    figures = {figure: summary.get(figure) for figure in _FIGURES}
    if not all(value is None or type(value) in (int, float) for value in figures.values()):
        return None
    try:
        began = datetime.strptime(match[2], _BEGAN).replace(tzinfo=UTC)
    except ValueError:
        return None
    broken = summary.get("broken")
    return {
        "kind": match[1],
        "began_ms": int(began.timestamp() * 1000),
        "where": str(document.get("where", ""))[:200],
        "is_this_mesh": document.get("mesh") == mesh,
        "kept": summary.get("verdict") == "KEPT",
        "broken": [str(text)[:300] for text in broken[:5]] if isinstance(broken, list) else [],
        **figures,
    }
