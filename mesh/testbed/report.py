"""`georelay wan stat` for people: one line for the router, one for each direction."""

from __future__ import annotations

from typing import Any, Final

from georelay.fields import JsonObject
from mesh.testbed.run_directory import BedRecord

RECENT_S: Final = 10
LAG_LATE_US: Final = 2_000  # measurements taken while the router is later are thrown away


def stat_lines(record: BedRecord, found: JsonObject) -> list[str]:
    """Return the lines for what the bed answered."""
    router: Any = found["router"]
    paths: Any = found["paths"]
    recent = max((lag for _, lag in router["lag_seconds_us"][-RECENT_S:]), default=0)
    busy = router["cpu_ms"] / max(1, router["up_ms"])
    late = "; LATE: measurements of that second are worth nothing" if recent > LAG_LATE_US else ""
    rows = [
        ("from", "to", "delay", "jitter", "loss", "cap", "state", "packets", "MB", "lost", "queue full", "cut off"),
        *(_row(path) for path in paths),
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    how = "real-time" if router["realtime"] else "not real-time"
    if router["engine"] == "netem":
        return [f"test bed {record.plan.name}: delays by the kernel (netem), process {record.pid}", *table]
    return [
        f"test bed {record.plan.name}: router pid {record.pid}, {how}, CPU {busy:.1%} since its start",
        f"lag of the router: worst {router['lag_worst_us'] / 1000:.2f} ms, in the last {RECENT_S} s "
        f"{recent / 1000:.2f} ms{late}",
        *table,
    ]


def _row(path: Any) -> tuple[str, ...]:
    return (
        path["from"],
        path["to"],
        f"{path['delay_us'] / 1000:g} ms",
        f"{path['jitter_us'] / 1000:g} ms" if path["jitter_us"] else "-",
        f"{path['loss_ppm'] / 10_000:g} %" if path["loss_ppm"] else "-",
        f"{path['rate_bits_s'] / 1e6:g} Mbit/s" if path["rate_bits_s"] else "-",
        "CUT" if path["cut"] else "open",
        str(path["packets"]),
        f"{path['bytes'] / 1e6:.2f}",
        str(path["lost"]),
        str(path["queue_full"]),
        str(path["cut_off"]),
    )
