"""What a load costs brokers and how long its records take: clients started, CPU counted, figures by place.

Rule 1: everything that brokers use while the producers live counts, what they do without a load included.
Rule 2: latency counts from when a record was due (open model), after a time to warm up; producers tell how late they
        sent, and the clients how much of a core they took.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from loadtest.bench.client_process import ClientProcess
from loadtest.bench.cluster import Cluster, Node
from loadtest.bench.figures_core import Row, account, latency, spread
from loadtest.bench.machine import IDLE_SHARE_MIN, Meter
from loadtest.bench.schedule_core import NS_PER_S, Load
from loadtest.table_core import table_lines

START_S: Final = 5.0  # for clients to come up
DRAIN_S: Final = 15.0  # after the last record is due
WARM_S: Final = 2.0  # of a load with a rate; it is sent, and its latencies are not counted
COLUMNS: Final = {  # of the report: figure, form
    "records/s": ("records_per_s", "{:,.0f}"),
    "p50 ms": ("p50_ms", "{:.2f}"),
    "p99 ms": ("p99_ms", "{:.1f}"),
    "CPU s per 100,000": ("cpu_s_per_100k", "{:.3f}"),
    "cores": ("cores", "{:.2f}"),
    "switches": ("switches", "{:.1f}"),
    "syncs": ("syncs", "{:.2f}"),
    "sent late, p99 ms": ("lag_p99_ms", "{:.2f}"),
}
LATENCIES: Final = ("p50_ms", "p99_ms")  # of a load that somebody read
Figures = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A load, and where it goes.

    Args:
        places: by region, the home first: there producers are, and readers everywhere.
        load: of each of the producers.
        readers: what each reader of a place is told besides its "role" (consume) and how many "sharers" it is one of.
        victim: a node that fails meanwhile. drain_s: how long readers wait after the last record is due.
    """

    places: Mapping[str, Cluster]
    load: Load
    producers: int = 1
    readers: Sequence[Mapping[str, Any]] = ({},)
    victim: Node | None = None
    drain_s: float = DRAIN_S


def measure(way: Way, meanwhile: Callable[[], None] = lambda: None) -> tuple[dict[str, Figures], list[Row]]:
    """Send a load; return the figures of each place, and what the readers of the last one got.

    Raises:
        RuntimeError: a client failed.
    """
    load, wait_s = way.load, START_S + way.load.seconds + way.drain_s
    with contextlib.ExitStack() as stack:

        def client(role: str, cluster: Cluster, **more: object) -> ClientProcess:
            end_ns = time.monotonic_ns() + round(wait_s * NS_PER_S)
            order = {"servers": cluster.servers(without=way.victim), "topics": list(load.topics), "end_ns": end_ns}
            started = cluster.client(role, order | {"load": dataclasses.asdict(load)} | more)
            stack.callback(started.stop)
            return started

        readers = {
            region: [
                client(
                    reader.get("role", "consume"),
                    cluster,
                    expected=load.count * way.producers // reader.get("sharers", 1),
                    reader=_told(load, reader),
                )
                for reader in way.readers
            ]
            for region, cluster in way.places.items()
        }
        for reader in (each for of_place in readers.values() for each in of_place):
            reader.said()
        meters = {region: Meter(cluster.pids) for region, cluster in way.places.items()}
        syncs = {region: cluster.syncs() for region, cluster in way.places.items()}
        home = next(iter(way.places.values()))
        producers = [client("produce", home) for _ in range(way.producers)]
        meanwhile()
        sent = [producer.result(wait_s) for producer in producers]
        costs = {
            region: _cost(meters[region], cluster, syncs[region], sent, is_whole=way.victim is None)
            for region, cluster in way.places.items()
        }
        got = {region: [each.result(wait_s) for each in of_place] for region, of_place in readers.items()}
    found, rows = dict[str, Figures](), list[Row]()
    for region, results in got.items():
        rows = [(number, due, at) for result in results for number, due, at in result["rows"]]
        first_ns = min((due for _, due, _ in rows), default=0) + round(WARM_S * NS_PER_S)
        found[region] = {
            **costs[region],
            **dataclasses.asdict(latency(rows, first_ns)),
            **_books(load, sent, rows),
            "read": sum(result["count"] for result in results),
        }
    return found, rows


def _told(load: Load, reader: Mapping[str, Any]) -> dict[str, Any]:
    more = {"partitions": load.partitions} if load.partitions > 1 and reader.get("role") != "member" else {}
    return more | {key: value for key, value in reader.items() if key not in ("role", "sharers")}


def _cost(
    meter: Meter, cluster: Cluster, syncs: float, sent: Sequence[Mapping[str, Any]], *, is_whole: bool
) -> dict[str, Any]:
    records = max(1, sum(each["acknowledged_count"] for each in sent))
    seconds = max(each["seconds"] for each in sent)
    used_s = meter.cpu_s() if is_whole else 0.0  # of a node that was killed nobody knows
    return {
        "records_per_s": records / seconds,
        "cpu_s_per_100k": used_s / records * 1e5,
        "cores": used_s / meter.seconds,
        "switches": meter.switches() / records if is_whole else 0.0,
        "syncs": (cluster.syncs() - syncs) / records * 1e3 if is_whole else 0.0,
        "nodes_mib": meter.resident_mib() if is_whole else 0.0,
        "idle_share": meter.idle(),
        "load_average": os.getloadavg()[0],
        "lag_p99_ms": max(each["lag_p99_ms"] for each in sent),
        "sent_again": sum(each["sent_again"] for each in sent),
        "failed": sum(each["sent"] - each["acknowledged_count"] for each in sent),
        "client_cores": max(each["cpu_s"] / each["seconds"] for each in sent),
    }


def _books(load: Load, sent: Sequence[Mapping[str, Any]], rows: Sequence[Row]) -> dict[str, Any]:
    """Return the account of a load that is told record by record."""
    if load.window:
        return {}
    (of_one,) = sent
    return dataclasses.asdict(account(of_one["sent"], of_one["acknowledged"], rows, len(load.topics) * load.partitions))


def in_turns(ways: Mapping[str, Way], runs: int) -> dict[str, list[dict[str, Figures]]]:
    """Run every way `runs` times, in another order with every round; return what each found.

    Raises:
        RuntimeError: a client failed, or not every record was stored.
    """
    found: dict[str, list[dict[str, Figures]]] = {label: [] for label in ways}
    for number in range(runs):
        for label in [*ways][:: -1 if number % 2 else 1]:
            figures, _ = measure(ways[label])
            if failed := max(each["failed"] for each in figures.values()):
                raise RuntimeError(f"{label}: {failed} records were not acknowledged")
            found[label].append(figures)
    return found


def report(found: Mapping[str, Sequence[Mapping[str, Figures]]]) -> list[str]:
    """Return a table with a line for each way and place: medians, and what lies between the runs' extremes."""
    rows, idle = [], 1.0
    for label, runs in found.items():
        for region in runs[0]:
            of_place = [run[region] for run in runs]
            cells = [
                spread([each[name] for each in of_place], form)
                if of_place[0]["count"] or name not in LATENCIES
                else "-"
                for name, form in COLUMNS.values()
            ]
            rows.append([f"{label}, {region}", *cells])
            idle = min([idle, *(each["idle_share"] for each in of_place)])
    note = [f"  note: only {idle:.0%} of the CPU was idle: clients and brokers shared the cores"]
    return table_lines(["", *COLUMNS], rows) + (note if idle < IDLE_SHARE_MIN else [])


def median(runs: Sequence[Mapping[str, Figures]], region: str, name: str) -> float:
    """Return the median of a figure."""
    return float(statistics.median(run[region][name] for run in runs))
