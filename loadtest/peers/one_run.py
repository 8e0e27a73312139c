"""One workload on one running cluster: clients started, the fault done, CPU counted, the result as it is stored."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import os
import signal
import time
from collections.abc import Callable
from typing import Any, Final

from loadtest.bench.machine import IdleWatch, cpu_seconds, resident_mib
from loadtest.peers.clients import ClientProcess
from loadtest.peers.cluster import Cluster, Node
from loadtest.peers.figures_core import Row, account, latency
from loadtest.peers.schedule_core import NS_PER_S, Load
from loadtest.peers.workloads import WARM_S, Fault, Workload

START_S: Final = 5.0  # for clients to come up
DRAIN_S: Final = 15.0  # after the last record is due


def measure(cluster: Cluster, workload: Workload) -> tuple[dict[str, Any], list[Row]]:
    """Run a workload; return its figures and, of one with a rate, the rows of what was delivered.

    Raises:
        RuntimeError: a client failed.
    """
    load = workload.load(cluster.protocol)
    watch = IdleWatch()
    watch.start()
    began = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    figures, rows = _at_a_rate(cluster, workload, load) if load.rate_per_s else (_at_full_speed(cluster, load), [])
    return {
        "began": began,
        **figures,
        "nodes_mib": sum(map(_resident_mib, cluster.nodes)),
        "idle_share": watch.share(),
        "load_average": os.getloadavg()[0],
    }, rows


def _at_full_speed(cluster: Cluster, load: Load) -> dict[str, Any]:
    wait_s = START_S + load.seconds + DRAIN_S
    cpu_s = _cpu_s(cluster)
    producer = cluster.client("produce", _order(cluster.servers(), load, wait_s))
    result = producer.result(wait_s)
    count = result["acknowledged_count"]
    return {
        "records_per_s": count / result["seconds"],
        "cpu_s_per_100k": (_cpu_s(cluster) - cpu_s) / max(1, count) * 1e5,
        "failed": result["sent"] - count,
        "client_cores": result["cpu_s"] / result["seconds"],
    }


def _at_a_rate(cluster: Cluster, workload: Workload, load: Load) -> tuple[dict[str, Any], list[Row]]:
    victim = cluster.leader(load.topics) if workload.fault else None
    servers = cluster.servers(without=victim)
    wait_s = START_S + load.seconds + DRAIN_S
    consumer = cluster.client("consume", _order(servers, load, wait_s) | {"expected": load.count})
    producer: ClientProcess | None = None
    try:
        consumer.wait_ready()
        cpu_s = _cpu_s(cluster)
        producer = cluster.client("produce", _order(servers, load, wait_s))
        if workload.fault and victim:
            _do(workload, workload.fault, victim)
        sent = producer.result(wait_s)
        used_s = 0 if workload.fault else _cpu_s(cluster) - cpu_s
        received = consumer.result(wait_s)
    finally:
        for client in (consumer, producer):
            if client is not None:
                client.stop()
    rows: list[Row] = [(number, due, delivered) for number, due, delivered in received["rows"]]
    counted_from = min((due for _, due, _ in rows), default=0) + round(WARM_S * NS_PER_S)
    return {
        **dataclasses.asdict(latency(rows, counted_from)),
        **dataclasses.asdict(account(sent["sent"], sent["acknowledged"], rows, len(load.topics))),
        "sent_again": sent["sent_again"],
        "cpu_s_per_100k": used_s / load.count * 1e5,
        "lag_p99_ms": sent["lag_p99_ms"],
        "client_cores": sent["cpu_s"] / sent["seconds"],
    }, rows


def _do(workload: Workload, fault: Fault, victim: Node) -> None:
    time.sleep(WARM_S + workload.fault_at_s)
    if fault is Fault.KILL:
        os.kill(victim.pid, signal.SIGKILL)
        return
    os.kill(victim.pid, signal.SIGSTOP)
    try:
        time.sleep(workload.heals_after_s)
    finally:
        os.kill(victim.pid, signal.SIGCONT)


def _order(servers: str, load: Load, wait_s: float) -> dict[str, Any]:
    end_ns = time.monotonic_ns() + round(wait_s * NS_PER_S)
    return {"servers": servers, "topics": list(load.topics), "load": dataclasses.asdict(load), "end_ns": end_ns}


def _cpu_s(cluster: Cluster) -> float:
    return sum(_of(cpu_seconds, node) for node in cluster.nodes)


def _resident_mib(node: Node) -> float:
    return _of(resident_mib, node)


def _of(measure: Callable[[int], float], node: Node) -> float:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, IndexError):  # it was killed on purpose
        return measure(node.pid)
    return 0.0
