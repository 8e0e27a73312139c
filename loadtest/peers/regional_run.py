"""One workload on a contender's three regions: delivery far away, a region cut off, the home lost."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import os
import signal
import subprocess
import time
from typing import Any, Final

from loadtest.bench import measured
from loadtest.bench.client_process import ClientProcess
from loadtest.bench.cluster import Cluster
from loadtest.bench.figures_core import Row
from loadtest.bench.machine import Meter
from loadtest.bench.schedule_core import NS_PER_S
from loadtest.peers.failover_core import after_loss, caught_up_s
from loadtest.peers.page_core import ACCOUNT
from loadtest.peers.regions import FLOORS_MS, HOME, MOVED_TO, Regions
from loadtest.peers.workloads import Fault, Workload
from loadtest.wan.wan_mesh import COMMAND

GROUP: Final = "moving"
DRAIN_S: Final = 60.0  # after the last record is due; what comes later is lost
COMMIT_MS: Final = 100
READS_ON_S: Final = 2.0  # the consumer of the home that is lost: longer than that takes
ALL: Final = 1 << 40  # records: readers go on until their time is up
# Of a failover, in seconds from its beginning: the home is about to be lost, all has been read.
LOST_AT_S: Final = 25.0
END_S: Final = 70.0
FOLLOWING_S: Final = 5.0  # what the producer sends that goes on elsewhere


def measure(regions: Regions, workload: Workload) -> tuple[dict[str, Any], list[Row]]:
    """Run a workload; return its figures, and the rows of what was delivered in the region that is cut or moved to.

    Raises:
        RuntimeError: a client failed.
    """
    began, began_ns = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), time.monotonic_ns()
    figures, rows = (_lose if workload.fault is Fault.LOSE else _read_everywhere)(regions, workload)
    late_ms = max(regions.bed.router_since(began_ns)["lag_us"], default=0) / 1e3
    return {"began": began, "router_lag_ms": late_ms, **figures}, rows


def _read_everywhere(regions: Regions, workload: Workload) -> tuple[dict[str, Any], list[Row]]:
    healed_ns = 0

    def cut() -> None:
        nonlocal healed_ns
        time.sleep(measured.WARM_S + workload.fault_at_s)
        regions.bed.wan("cut", MOVED_TO)
        time.sleep(workload.heals_after_s)
        healed_ns = int(regions.bed.wan("heal")["at_ns"])

    way = measured.Way(places=regions.places, load=workload.load(regions.protocol), drain_s=DRAIN_S)
    found, rows = measured.measure(way, cut if workload.fault else lambda: None)
    figures = dict(found[MOVED_TO])
    if workload.fault:
        return figures | ({} if figures["lost"] else {"caught_up_s": caught_up_s(rows, healed_ns)}), rows
    above = {
        f"{region}_{name}": each[name] - FLOORS_MS[region]
        for region, each in found.items()
        for name in ("p50_ms", "p99_ms")
    }
    return figures | above | {name: sum(each[name] for each in found.values()) for name in ACCOUNT}, rows


def _kill(regions: Regions) -> int:
    """Cut the home off and kill it as soon as that is said, before its command has ended; return when."""
    command = [*COMMAND, "cut", HOME, "--name", regions.bed.bed, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as cutting:
        assert cutting.stdout is not None
        cutting.stdout.readline()
        for pid in regions.places[HOME].pids.values():
            os.kill(pid, signal.SIGKILL)
        return time.monotonic_ns()


def _lose(regions: Regions, workload: Workload) -> tuple[dict[str, Any], list[Row]]:
    """Kill the home under load; a producer and a consumer go on in another region."""
    load, meter = workload.load(regions.protocol), Meter({})
    home, other = regions.places[HOME], regions.places[MOVED_TO]
    began_ns = time.monotonic_ns()
    lost_ns, end_ns = (began_ns + round(seconds * NS_PER_S) for seconds in (LOST_AT_S, END_S))
    following = dataclasses.replace(load, seconds=FOLLOWING_S)
    with contextlib.ExitStack() as stack:

        def client(cluster: Cluster, role: str, until_ns: int, **more: object) -> ClientProcess:
            order = {"servers": cluster.servers(), "topics": list(load.topics), "end_ns": until_ns}
            started = cluster.client(role, order | more)
            stack.callback(started.stop)
            return started

        def reader(cluster: Cluster, role: str, until_ns: int, **told: object) -> ClientProcess:
            return client(cluster, role, until_ns, expected=ALL, from_ns=began_ns, reader=told)

        position = {"group": GROUP, "commit_ms": COMMIT_MS, "reset": "earliest"}
        stays = reader(other, "consume", end_ns)
        moves = reader(home, "member", lost_ns + round(READS_ON_S * NS_PER_S), **position, leaves=False)
        for each in (stays, moves):
            each.said()
        first = client(home, "produce", lost_ns, load=dataclasses.asdict(load))
        time.sleep(max(0, lost_ns - time.monotonic_ns()) / NS_PER_S)
        lost_ns = _kill(regions)
        regions.promote(load.topics)
        moved = reader(other, "member", end_ns, **position)
        follows = client(other, "produce", end_ns, load=dataclasses.asdict(following))
        sent, before = first.result(END_S), moves.result(END_S)["rows"]
        follows.result(END_S)
        rows, after = ([(number, due, at) for number, due, at in each.result(END_S)["rows"]] for each in (stays, moved))
    figures = after_loss(
        acknowledged=sent["acknowledged"],
        stayed=rows,
        before=before,
        after=after,
        rate_per_s=load.rate_per_s,
        lost_ns=lost_ns,
    )
    told = {"sent": sent["sent"], "acknowledged": len(sent["acknowledged"]), "lag_p99_ms": sent["lag_p99_ms"]}
    return told | {"idle_share": meter.idle(), "load_average": os.getloadavg()[0]} | figures, rows
