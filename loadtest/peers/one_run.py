"""One workload on one running cluster: the load, the fault, the result as it is stored."""

from __future__ import annotations

import datetime
import os
import signal
import time
from typing import Any

from loadtest.bench import measured
from loadtest.bench.cluster import Cluster, Node
from loadtest.bench.figures_core import Row
from loadtest.peers.workloads import Fault, Workload


def measure(cluster: Cluster, workload: Workload) -> tuple[dict[str, Any], list[Row]]:
    """Run a workload; return its figures and, of one with a rate, the rows of what was delivered.

    Raises:
        RuntimeError: a client failed.
    """
    load = workload.load(cluster.protocol)
    began = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    victim = cluster.leader(load.topics) if workload.fault else None
    way = measured.Way(places={"": cluster}, load=load, readers=[] if load.window else [{}], victim=victim)
    figures, rows = measured.measure(way, lambda: _do(workload, victim))
    return {"began": began, **figures[""]}, rows


def _do(workload: Workload, victim: Node | None) -> None:
    if victim is None:
        return
    time.sleep(measured.WARM_S + workload.fault_at_s)
    if workload.fault is Fault.KILL:
        os.kill(victim.pid, signal.SIGKILL)
        return
    os.kill(victim.pid, signal.SIGSTOP)
    try:
        time.sleep(workload.heals_after_s)
    finally:
        os.kill(victim.pid, signal.SIGCONT)
