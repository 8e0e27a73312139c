"""What the report of the traces judges a campaign by: its target, as a targets file of `georelay report`. Pure."""

from __future__ import annotations

from typing import Any, Final

from loadtest.load.campaign import Campaign
from loadtest.toml_core import toml_of

REPORT_TARGETS: Final = "report/targets.toml"  # in the folder of the results


def targets_of(campaign: Campaign) -> str:
    """Return the text of the targets file, "" where wrong clocks are to leave the report's own targets open.

    Every record of a pair of regions counts in the report, and 99 % of them must be in time: the same p99. Throughput
    is the campaign's own: the report judges minutes in which more than the target was offered.
    """
    if campaign.topology.clocks:
        return ""
    rows: list[dict[str, Any]] = [{"name": "integrity", "kind": "integrity"}]
    bound_ms, floors_ms = campaign.target.deliver_p99_ms_max, campaign.target.floor_ms
    if bound_ms is not None:
        latency = {"kind": "latency", "objective": 0.99}
        rows += [
            {
                "name": f"latency-{pair.replace('->', '-')}",
                **latency,
                "threshold_ms": bound_ms + floor_ms,
                "scope": [pair.replace("->", " -> ")],
            }
            for pair, floor_ms in floors_ms.items()
            if "->" in pair  # others are of topics
        ] or [{"name": "latency", **latency, "threshold_ms": bound_ms}]
    return toml_of({"schema_version": 1, "target": rows})
