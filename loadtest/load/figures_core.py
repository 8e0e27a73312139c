"""What a run measured, for people: latencies above the least possible, heals, CPU per record, the machine. Pure.

Rule 1: flowing again: the first delivery after a heal. Caught up: the first one that is at most CAUGHT_UP_MS above the
        floor of its pair; within a partition deliveries are in order, so nothing older is outstanding then.
Rule 2: of the partitions of a topic and the readers of a region the slowest counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from loadtest.campaign.phases_core import HEALED
from loadtest.history.operation import Kind, Operation
from loadtest.load.engine_values import DELIVER, method_of, origin_of
from loadtest.load.samples_core import Samples
from loadtest.table_core import table_lines

LATENCIES: Final = ("latency", "records", "p50 ms", "p99 ms", "max ms", "floor ms", "p50 above", "p99 above")
HEALS: Final = ("after", "reader in", "flowing s", "caught up s")
NEVER: Final = "never"
CAUGHT_UP_MS: Final = 250.0


class Delivery(NamedTuple):
    """A record at a reader: its offset, when it was due there at best and when it came, monotonic nanoseconds."""

    offset: int
    due_ns: int
    at_ns: int


def flowing_s(deliveries: Sequence[Delivery], healed_ns: int) -> float | None:
    """Return the seconds from the heal to the first delivery after it, None when there was none."""
    return next(((row.at_ns - healed_ns) / 1e9 for row in deliveries if row.at_ns > healed_ns), None)


def caught_up_s(deliveries: Sequence[Delivery], healed_ns: int) -> float | None:
    """Return the seconds from the heal until the reader was up to date, None when it never was."""
    for row in deliveries:
        if row.at_ns > healed_ns and (row.at_ns - row.due_ns) / 1e6 <= CAUGHT_UP_MS:
            return (row.at_ns - healed_ns) / 1e9
    return None


def latency_lines(totals: Mapping[tuple[str, str], Samples], floor_ms: Mapping[str, float]) -> list[str]:
    """Return a table of everything that was done and took time; floors by pair, or by topic for publishes."""
    rows = []
    for (method, name), samples in sorted(totals.items()):
        figures = [samples.quantile_ms(0.5), samples.quantile_ms(0.99), samples.max_ms]
        floor = floor_ms.get(name, 0.0)
        above = [f"{each - floor:.1f}" for each in figures[:2]]
        rows.append([f"{method} {name}", f"{samples.n:,}", *(f"{each:.1f}" for each in figures), f"{floor:g}", *above])
    return table_lines(LATENCIES, rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heal:
    """What readers in a region saw after a heal of something, in seconds; None: never."""

    of: str
    region: str
    flowing_s: float | None
    caught_up_s: float | None


def heals_of(
    operations: Sequence[Operation], events: Sequence[Mapping[str, Any]], floor_ms: Mapping[str, float]
) -> list[Heal]:
    """Return a row for each heal and region that reads.

    Args:
        events: {"what", "of", "ns": when it was done, monotonic}.
    """
    sent_ns = {operation.value: operation.invoked_ns for operation in operations if operation.kind is Kind.PRODUCE}
    read: dict[str, dict[tuple[str, str], list[Delivery]]] = defaultdict(lambda: defaultdict(list))
    for operation in operations:
        at_ns = operation.completed_ns
        if operation.kind is not Kind.FETCH or operation.final or at_ns is None:
            continue
        if method_of(operation.process) != DELIVER:
            continue
        rows = read[operation.site][operation.process, operation.key]
        for offset, value in operation.records:
            pair = f"{origin_of(value.rpartition(':')[0])}->{operation.site}"
            due_ns = sent_ns.get(value, at_ns) + int(floor_ms.get(pair, 0.0) * 1e6)
            rows.append(Delivery(offset, due_ns, at_ns))
    return [
        Heal(
            of=event["of"],
            region=region,
            flowing_s=_slowest([flowing_s(rows, event["ns"]) for rows in of_region.values()]),
            caught_up_s=_slowest([caught_up_s(rows, event["ns"]) for rows in of_region.values()]),
        )
        for event in events
        if event["what"] == HEALED and "ns" in event
        for region, of_region in sorted(read.items())
    ]


def heal_lines(heals: Sequence[Heal]) -> list[str]:
    """Return a table of them."""
    return table_lines(
        HEALS, [(heal.of, heal.region, seconds(heal.flowing_s), seconds(heal.caught_up_s)) for heal in heals]
    )


def seconds(value: float | None) -> str:
    """Return seconds for people."""
    return NEVER if value is None else f"{value:.2f}"


def _slowest(found: Sequence[float | None]) -> float | None:
    told = [each for each in found if each is not None]
    return max(told) if told and len(told) == len(found) else None


def machine_lines(
    cpu: Sequence[Mapping[str, Any]], bed: Mapping[str, Any], *, records: int, from_s: float, to_s: float
) -> list[str]:
    """Return what the mesh took for a record, by region, or each process of it where no record was acknowledged, and
    what the machine did meanwhile.

    Args:
        cpu: each second {"second", "cpu": shares of a core by process, "memory_mib", "idle": share of the machine}.
        bed: of a test bed: "lag_us" (at its worst in each second) and "realtime" of its router, "congestion_control".
        records: that were acknowledged.
        from_s, to_s: the load's time on the wall clock.
    """
    used_s: dict[str, float] = defaultdict(float)
    shares: dict[str, list[float]] = defaultdict(list)
    for row in cpu:
        if from_s <= row["second"] <= to_s:
            for name, share in row["cpu"].items():
                used_s[name.rpartition("-")[0] or name] += share
                shares[name].append(share)
    lines = []
    if records and used_s:
        each = ", ".join(f"{name} {used / records * 1e6:.0f}" for name, used in sorted(used_s.items()))
        lines.append(f"CPU us per record: {each}")
    elif shares:  # what a mesh costs that does nothing
        each = ", ".join(f"{name} {sum(of_it) / len(of_it):.1%}" for name, of_it in sorted(shares.items()))
        lines.append(f"CPU of a core: {each}")
        memory = ", ".join(f"{name} {mib:.0f}" for name, mib in sorted(cpu[-1].get("memory_mib", {}).items()))
        lines += [f"memory MiB: {memory}"] if memory else []
    if (idle := idle_share(cpu, from_s=from_s, to_s=to_s)) is not None:
        lines.append(f"idle CPU {idle:.0%}")
    if bed:
        real = "" if bed["realtime"] else " (no real-time priority)"
        lines[-1:] = [
            ", ".join([*lines[-1:], f"router lag at most {max(bed['lag_us'], default=0) / 1e3:.2f} ms{real}"])
            + f", congestion control {bed['congestion_control']}"
        ]
    return lines


def idle_share(cpu: Sequence[Mapping[str, Any]], *, from_s: float, to_s: float) -> float | None:
    """Return how much of the machine nobody used while there was load, None when that was not watched."""
    shares = [row["idle"] for row in cpu if "idle" in row and from_s <= row["second"] <= to_s]
    return sum(shares) / len(shares) if shares else None
