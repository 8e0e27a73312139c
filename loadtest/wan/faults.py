"""A link that is cut, cut one way, loses packets or is narrow: what readers on the other side see, and after the heal.

Published in the home region at a steady rate; the link home - first mirror is wounded for `fault_s`, then healed.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from loadtest.quantile_core import quantile
from loadtest.wan.floors_core import one_way_ms
from loadtest.wan.load import Outcome, Stream, run_load
from loadtest.wan.tally_core import Delivery, caught_up_s, flowing_s, tally
from loadtest.wan.wan_mesh import WanMesh

BEFORE_S: Final = 3.0
AFTER_S: Final = 15.0
WORDS: Final = {
    "cut": ("cut", "{home}", "{mirror}"),
    "one-way-out": ("cut", "{home}", "{mirror}", "--one-way"),
    "one-way-back": ("cut", "{mirror}", "{home}", "--one-way"),
    "loss": ("slow", "{home}", "{mirror}", "--loss", "{loss}"),
    "cap": ("slow", "{home}", "{mirror}", "--rate", "{rate}", "--queue", "100ms"),
}


@dataclass(slots=True)
class _Times:
    """When it happened, on the monotonic clock."""

    wounded_ns: int = 0
    healed_ns: int = 0


async def measure(
    mesh: WanMesh, fault: str, *, rate_per_s: int, fault_s: float, loss: str = "1%", rate: str = "50mbit", run: int = 1
) -> list[str]:
    """Return report lines of one run with one fault."""
    home, mirror, other = mesh.regions[:3]
    topic = f"{fault}-{run}"
    await mesh.create_topic(topic, home=home)
    stream = Stream(topic=topic, region=home, read_as=topic)
    words = [word.format(home=home, mirror=mirror, loss=loss, rate=rate) for word in WORDS[fault]]
    times = _Times()

    async def during() -> None:
        await asyncio.sleep(BEFORE_S)
        times.wounded_ns = await mesh.wan_at_ns(*words)
        await asyncio.sleep(fault_s)
        times.healed_ns = await mesh.wan_at_ns("heal", home, mirror)
        await asyncio.sleep(AFTER_S)

    # Commands take a moment to start; the load must outlive them.
    outcome = await run_load(
        mesh, [stream], rate_per_s=rate_per_s, seconds=BEFORE_S + fault_s + AFTER_S + 4, during=during
    )
    lines = [f"{fault}: `georelay wan {' '.join(words)}` for {fault_s:g} s: {outcome.conditions.describe()}"]
    for region in (home, mirror, other):
        lines += _reader(mesh, home, region, outcome, times, stream)
    lines += _publisher(outcome, times)
    return lines


def _reader(mesh: WanMesh, home: str, region: str, outcome: Outcome, times: _Times, stream: Stream) -> list[str]:
    rows = outcome.delivered[region, stream.read_as]
    floor = one_way_ms(mesh.rtts, home, region)
    acknowledged = [number for number, _, at_ns in outcome.sent[0] if at_ns]
    first = min((row.number for row in rows), default=0)  # readers began at the end of an empty topic
    found = tally([number for number in acknowledged if number >= first], rows)
    flowing, caught_up = flowing_s(rows, times.healed_ns), caught_up_s(rows, times.healed_ns, floor)
    during = [row for row in rows if times.wounded_ns <= row.due_ns < times.healed_ns]
    above = [(row.at_ns - row.due_ns) / 1e6 - floor for row in during]
    return [
        f"  reader in {region}: {found.delivered} delivered, {found.lost} lost, {found.duplicated} duplicated, "
        f"{found.reordered} reordered; from heal to flowing {_seconds(flowing)}, to caught up {_seconds(caught_up)} "
        f"(5 RTT are {5 * 2 * floor / 1_000:.2f} s)",
        f"    records of the time of the fault, above the floor of {floor:g} ms: p50 {quantile(above, 0.5):.1f} ms, "
        f"p99 {quantile(above, 0.99):.1f} ms; longest silence {_silence_s(rows, times):.2f} s",
    ]


def _publisher(outcome: Outcome, times: _Times) -> list[str]:
    rows = outcome.sent[0]
    late = [(at - due) / 1e6 for _, due, at in rows if at and times.wounded_ns <= due < times.healed_ns]
    missing = sum(not at for _, _, at in rows)
    return [
        f"  publisher: {len(rows)} sent, {missing} not acknowledged; acknowledged during the fault after p50 "
        f"{quantile(late, 0.5):.1f} ms, p99 {quantile(late, 0.99):.1f} ms"
    ]


def _silence_s(rows: list[Delivery], times: _Times) -> float:
    """Return the longest time without a delivery from the wound on."""
    moments = [times.wounded_ns, *(row.at_ns for row in rows if row.at_ns >= times.wounded_ns)]
    return max((later - earlier for earlier, later in pairwise(moments)), default=0) / 1e9


def _seconds(value: float | None) -> str:
    return "NEVER" if value is None else f"{value:.2f} s"
