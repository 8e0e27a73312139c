"""The lab's network: a bridge for each region, and between regions what a WAN takes.

Rule 1: all of it is in the network namespace of this process, and nothing leads out of it.
Rule 2: what the lab itself says to a host (SSH, clients of the load) is not delayed: it stands beside every region.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from deploy.lab.hosts import HostPlan
from deploy.lab.needs import run


def make_network(plans: Iterable[HostPlan]) -> None:
    """Make the bridge of each region that one of the hosts is in. Raises LabError."""
    what = "the lab's network was not made"
    run(["mount", "-t", "tmpfs", "tmpfs", "/run/netns"], what)
    run(["ip", "link", "set", "lo", "up"], what)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    made: set[str] = set()
    for plan in plans:
        if plan.region not in made:
            made.add(plan.region)
            _make_bridge(plan)


def _make_bridge(plan: HostPlan) -> None:
    what, bridge = f"no network for region {plan.region}", f"br-{plan.region}"[:15]
    run(["ip", "link", "add", bridge, "type", "bridge"], what)
    run(["ip", "addr", "add", f"{plan.router}/{plan.prefix}", "dev", bridge], what)
    run(["ip", "link", "set", bridge, "up"], what)
