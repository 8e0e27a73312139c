"""Single calls of `broker.Broker` Publish through the gateway: CPU per call by process, latency, and the floor.

`python -m loadtest.bench.calls --help` has the options; `python -m loadtest.bench calls` runs it with its defaults.
Open model: a call is due every 1/RATE s, whatever became of those before it, and latency counts from when it was due.
The client and the consumer are processes of their own. The floor is what gRPC itself costs in the same topology: the
same client calls a relay that does nothing but call a server that does nothing (loadtest.bench.calls_client).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from loadtest.bench.client_process import ClientProcess, ask
from loadtest.bench.cluster import clusters_of
from loadtest.bench.figures_core import latency
from loadtest.bench.machine import Meter, add_directory, disk_of
from loadtest.bench.mesh_asks import SYNCS, create_topic, metric, pids_of
from loadtest.bench.schedule_core import NS_PER_S
from loadtest.mesh_process import MeshProcess
from loadtest.scratch import scratch_directory

RATE_PER_SECOND: Final = 300
SECONDS: Final = 8
RUNS: Final = 3
PARTITIONS: Final = 3
WARM_UP_SECONDS: Final = 2
AFTER_SECONDS: Final = 3
WRITES: Final = "georelay_log_writes_total"

_Costs: TypeAlias = dict[str, list[float]]  # by process: ms per call, of each run


def run(mesh: MeshProcess, *, rate: int = RATE_PER_SECOND, seconds: int = SECONDS, runs: int = RUNS) -> list[str]:
    """Return report lines of `runs` runs, each followed by one of the floor."""
    return compare({"": mesh}, rate=rate, seconds=seconds, runs=runs)


def compare(meshes: Mapping[str, MeshProcess], *, rate: int, seconds: int, runs: int, floor: bool = True) -> list[str]:
    """Return report lines of runs that go to the meshes in turn; the order changes with every round."""
    lines = []
    costs: dict[str, _Costs] = {name: defaultdict(list) for name in meshes}
    floors: _Costs = defaultdict(list)
    for mesh in meshes.values():
        create_topic(mesh, "calls", PARTITIONS)
    time.sleep(AFTER_SECONDS)
    for name, mesh in meshes.items():
        resting = Meter(_pids(mesh))
        time.sleep(AFTER_SECONDS)
        shares = ", ".join(f"{process} {resting.share(process):.1%}" for process in resting.pids)
        lines.append(f"{name} CPU without calls: {shares}".strip())
        _paced(mesh.endpoints["gateway"]["grpc"][0], rate, WARM_UP_SECONDS, {}, defaultdict(list))
    for number in range(runs):
        for name in list(meshes)[:: -1 if number % 2 else 1]:
            lines.append(f"run {number + 1} {name}: {_run(meshes[name], rate, seconds, costs[name])}")
        if floor:
            _floor(rate, seconds, floors)
    lines += [f"{name} CPU ms per call: {_table(rows)}".strip() for name, rows in costs.items()]
    if floor:
        lines.append(f"floor, CPU ms per call: {_table(floors)}")
    return lines


def _pids(mesh: MeshProcess) -> dict[str, int]:
    return {"gateway": mesh.pid_of("gateway"), **pids_of(mesh)}


def _run(mesh: MeshProcess, rate: int, seconds: int, costs: _Costs) -> str:
    reader = clusters_of(mesh)["us"].client("consume", _order(mesh, rate * seconds, WARM_UP_SECONDS + seconds))
    reader.said()
    syncs, writes = _counted(mesh, SYNCS), _counted(mesh, WRITES)
    meter = Meter({})
    outcome = _paced(mesh.endpoints["gateway"]["grpc"][0], rate, seconds, _pids(mesh), costs)
    idle = meter.idle()
    answered = max(1, outcome["ok"])
    syncs, writes = (_counted(mesh, SYNCS) - syncs) / answered, (_counted(mesh, WRITES) - writes) / answered
    delivered = latency([tuple(row) for row in reader.result()["rows"]])
    return (
        f"{outcome['due']} calls at {rate}/s, {outcome['answers']}, answered p50 {outcome['p50_ms']:.1f} ms, "
        f"p99 {outcome['p99_ms']:.1f} ms; {delivered.count} delivered p50 {delivered.p50_ms:.1f} ms, "
        f"p99 {delivered.p99_ms:.1f} ms; per call {syncs:.2f} syncs, {writes:.2f} writes (3 brokers); "
        f"idle CPU {idle:.0%}" + "".join(f"; {code}: {text}" for code, text in outcome["said"].items())
    )


def _order(mesh: MeshProcess, expected: int, seconds: int) -> dict[str, Any]:
    end_ns = time.monotonic_ns() + (seconds + 3 * AFTER_SECONDS) * NS_PER_S
    servers = ",".join(mesh.endpoints["regions"]["us"]["kafka"])
    told = {"servers": servers, "topics": ["calls"], "end_ns": end_ns}
    return told | {"expected": expected, "reader": {"partitions": PARTITIONS}}


def _counted(mesh: MeshProcess, name: str) -> float:
    return sum(metric(mesh, "us", name))


def _floor(rate: int, seconds: int, costs: _Costs) -> None:
    echo = ClientProcess("loadtest.bench.calls_client", "echo")
    relay = None
    try:
        relay = ClientProcess("loadtest.bench.calls_client", "relay", echo.said())
        _paced(relay.said(), rate, seconds, {"relay": relay.pid, "echo": echo.pid}, costs)
    finally:
        for process in (relay, echo):
            if process is not None:
                process.stop()


def _paced(address: str, rate: int, seconds: int, pids: Mapping[str, int], costs: _Costs) -> dict[str, Any]:
    """Let a client call for so long; add what each process took per call that was answered, in ms, to `costs`."""
    meter = Meter(pids)
    outcome: dict[str, Any] = ask("loadtest.bench.calls_client", "call", address, "calls", rate, seconds)
    answered = max(1, outcome["ok"])
    for name in pids:
        costs[name].append(meter.cpu_s(name) * 1e3 / answered)
    costs["client"].append(outcome["cpu_s"] * 1e3 / answered)
    return outcome


def _table(costs: Mapping[str, list[float]]) -> str:
    servers = [column for name, column in costs.items() if name != "client"]
    sums = [sum(row) for row in zip(*servers, strict=True)]
    rows = [*costs.items(), ("all but the client", sums)]
    return "; ".join(
        f"{name} {statistics.median(column):.2f} ({', '.join(f'{one:.2f}' for one in column)})" for name, column in rows
    )


async def _measure(directory: Path, options: argparse.Namespace) -> None:
    checkouts = {"old": options.old.resolve(), "new": None} if options.old else {"": None}
    async with contextlib.AsyncExitStack() as stack:
        meshes = {}
        for name, checkout in checkouts.items():
            mesh = MeshProcess(directory / (name or "new"), regions="us", brokers_per_region=3, checkout=checkout)
            meshes[name] = await stack.enter_async_context(mesh)
        measured = partial(compare, rate=options.rate, seconds=options.seconds, runs=options.runs)
        print("\n".join(await asyncio.to_thread(measured, meshes, floor=not options.no_floor)), flush=True)


def main() -> int:
    """Run it alone."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.calls", description=__doc__)
    parser.add_argument("--rate", type=int, default=RATE_PER_SECOND, help="calls per second")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="of one run")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--no-floor", action="store_true", help="do not measure what gRPC alone costs")
    parser.add_argument("--old", type=Path, help="a checkout, made ready by `make setup`, to measure in turn with this")
    add_directory(parser)
    options = parser.parse_args()
    with scratch_directory("georelay-calls-", disk_of(parser, options)) as scratch:
        asyncio.run(_measure(scratch, options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
