"""If a region died now: which records only it has, and which homes it takes along. Pure.

Rule 1: what only the region itself has is what its homes know that no mirror acknowledged, at one moment: each row of
        its own answer, so that two answers of different moments are never subtracted.
Rule 2: of a region that is silent already the last answer counts, with its age.
Rule 3: homes that fail over by themselves go to a region with the longest log; the others wait for an operator. What a
        region has of its own (homes=every) stands still until it is back: the others go on with theirs.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from gateway.console.samples import JsonObject, MeshSamples, rows_of
from gateway.routing.region_view_core import RankedRegion
from georelay.cli.mesh_status_core import INTERNAL_PREFIX

NOBODY: Final = ""


def if_lost(samples: MeshSamples) -> list[JsonObject]:
    """Return one row per region."""
    return [_of_region(samples, region) for region in sorted(samples.regions, key=lambda region: region.name)]


def _of_region(samples: MeshSamples, region: RankedRegion) -> JsonObject:
    names = {int(other.number): other.name for other in samples.regions}
    asked = [sample for _, sample in samples.of_region(region)]
    asked_ns = max((sample.last_at_ns for sample in asked), default=0)
    rows = [row for sample in asked for row in rows_of(sample.last_status, "streams")]
    at_home = [row for row in rows if row.get("is_home") and not str(row["topic"]).startswith(INTERNAL_PREFIX)]
    homes = {(str(row["topic"]), int(row["partition"])) for row in at_home}
    # What else is in its links is the brokers' own, or of a home that moved away; older brokers' rows had no name.
    mine = {str(row["stream"]) for row in at_home if "stream" in row}
    is_named = any("stream" in row for row in rows)
    missing: dict[str, dict[str, tuple[int, float]]] = {}  # stream -> region -> (records, ms) that it lacks
    for row in (row for sample in asked for row in rows_of(sample.last_status, "links")):
        other, stream = names.get(int(row.get("region", 0)), NOBODY), str(row.get("stream"))
        if row.get("role") == "home" and other and (stream in mine or not is_named):
            missing.setdefault(stream, {}).setdefault(other, (int(row["lag_records"]), float(row["lag_ms"])))
    behind = [lacks for lacks in missing.values() if min(lacks.values())[0] > 0]
    automatic, manual = _policies(samples, region.name)
    return {
        "region": region.name,
        "known": bool(asked_ns),
        "age_ms": (samples.now_ns - asked_ns) // 1_000_000 if asked_ns else None,
        "records": sum(min(lacks.values())[0] for lacks in behind),
        "records_streams": len(behind),
        "records_ms": round(max((min(lacks.values())[1] for lacks in behind), default=0.0), 1),
        "homes": len(homes),
        "automatic": automatic,
        "manual": manual,
        "own": max(0, len(homes) - automatic - manual),
        "heir": _heir(missing),
        "command": f"georelay home failover --region {region.name}",
    }


def _heir(missing: dict[str, dict[str, tuple[int, float]]]) -> str:
    """Return the region that has the longest log of most streams, "" when there is none."""
    longest: Counter[str] = Counter()
    for lacks in missing.values():
        least = min(lacks.values())[0]
        longest.update(sorted(region for region, (records, _) in lacks.items() if records == least))
    return longest.most_common(1)[0][0] if longest else NOBODY


def _policies(samples: MeshSamples, region: str) -> tuple[int, int]:
    """Return (homes that go by themselves, homes that wait for an operator)."""
    here = [row for row in samples.homes if row.get("home") == region]
    automatic = sum(1 for row in here if isinstance(row.get("failover"), dict) and row["failover"].get("in_force"))
    return automatic, len(here) - automatic
