"""Publish -> deliver of every pair of regions, above the least possible; acknowledgements likewise; CPU per record."""

from __future__ import annotations

from typing import Final

from loadtest.quantile_core import quantile
from loadtest.wan.floors_core import acknowledgement_ms, one_way_ms
from loadtest.wan.load import Outcome, Stream, run_load
from loadtest.wan.wan_mesh import WanMesh

HOMES: Final = ("one", "every", "first")


def streams_of(mesh: WanMesh, homes: str, prefix: str) -> list[Stream]:
    """Return what is published for a value of --homes.

    "one": a topic for each region with its home there. "every": one topic with a stream per region. "first": one topic
    at home in the first region, so that home and mirrors are different brokers and can be told apart.
    """
    prefix = f"{prefix}-{homes}"
    if homes == "every":
        topic = prefix
        return [Stream(topic=topic, region=region, read_as=f"{region}.{topic}") for region in mesh.regions]
    regions = mesh.regions if homes == "one" else mesh.regions[:1]
    return [Stream(topic=f"{prefix}-{region}", region=region, read_as=f"{prefix}-{region}") for region in regions]


async def create(mesh: WanMesh, homes: str, streams: list[Stream], *, geo: int = 1) -> None:
    """Create the topics of `streams_of`; `geo`: regions that must have a record before it is acknowledged and seen."""
    config = {"min.insync.regions": str(geo)} if geo > 1 else None
    if homes == "every":
        await mesh.create_topic(streams[0].topic, homes="every", config=config)
        return
    for stream in streams:
        await mesh.create_topic(stream.topic, home=stream.region, config=config)


async def measure(
    mesh: WanMesh, homes: str, *, rate_per_s: int, seconds: float, geo: int = 1, run: int = 1
) -> list[str]:
    """Return report lines of one run."""
    streams = streams_of(mesh, homes, f"geo{geo}-{run}" if geo > 1 else f"region-{run}")
    await create(mesh, homes, streams, geo=geo)
    outcome = await run_load(mesh, streams, rate_per_s=rate_per_s, seconds=seconds)
    level = f"geo:{geo}" if geo > 1 else "region"
    return [
        f"homes={homes}, {level}, {rate_per_s} single records/s in all, {seconds:g} s: {outcome.conditions.describe()}",
        *_pairs(mesh, streams, outcome),
        *_acknowledgements(mesh, streams, outcome, geo),
        *_cpu(mesh, homes, outcome, rate_per_s),
        f"  clients: {outcome.failed} publishes failed, own lag p99 {outcome.lag_p99_ms:.2f} ms",
    ]


def _pairs(mesh: WanMesh, streams: list[Stream], outcome: Outcome) -> list[str]:
    lines, worst = [], [0.0, 0.0]
    for stream in streams:
        for region in mesh.regions:
            floor = one_way_ms(mesh.rtts, stream.region, region)
            rows = outcome.delivered[region, stream.read_as]
            above = [(row.at_ns - row.due_ns) / 1e6 - floor for row in rows if row.due_ns >= outcome.measured_from_ns]
            if not above:
                raise RuntimeError(f"no record came from {stream.region} to {region} while it was measured")
            p50, p99 = quantile(above, 0.5), quantile(above, 0.99)
            if region != stream.region:
                worst = [max(worst[0], p50), max(worst[1], p99)]
            lines.append(
                f"  {stream.region} -> {region}: floor {floor:g} ms, above it p50 {p50:.2f} ms, p99 {p99:.2f} ms, "
                f"most {max(above):.1f} ms ({len(above)} records)"
            )
    lines.append(f"  worst pair of different regions: p50 {worst[0]:.2f} ms, p99 {worst[1]:.2f} ms above the floor")
    return lines


def _acknowledgements(mesh: WanMesh, streams: list[Stream], outcome: Outcome, geo: int) -> list[str]:
    lines = []
    for stream, rows in zip(streams, outcome.sent, strict=True):
        floor = acknowledgement_ms(mesh.rtts, stream.region, geo)
        above = [(at - due) / 1e6 - floor for _, due, at in rows if at and due >= outcome.measured_from_ns]
        lines.append(
            f"  acknowledged in {stream.region}: floor {floor:g} ms, above it p50 {quantile(above, 0.5):.2f} ms, "
            f"p99 {quantile(above, 0.99):.2f} ms"
        )
    return lines


def _cpu(mesh: WanMesh, homes: str, outcome: Outcome, rate_per_s: int) -> list[str]:
    records = rate_per_s * outcome.measured_s
    each = {name: used / records * 1e6 for name, used in outcome.cpu_s.items()}
    brokers = sum(each[region] for region in mesh.regions)
    roles = "home and mirror of others"
    parts = [f"{region} {each[region]:.0f} ({roles})" for region in mesh.regions]
    if homes == "first":
        home, *mirrors = mesh.regions
        parts = [f"{home} {each[home]:.0f} (home)", *(f"{region} {each[region]:.0f} (mirror)" for region in mirrors)]
    return [
        f"  CPU us per record: brokers {brokers:.0f} in all: {', '.join(parts)}; gateway {each['gateway']:.0f}, "
        f"router {each['router']:.0f}"
    ]
