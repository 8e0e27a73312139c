"""The lab's network: a bridge for each region, and between regions what a WAN takes.

Rule 1: all of it is in the network namespace of this process, and nothing leads out of it.
Rule 2: what the lab itself says to a host (SSH, clients of the load) is not delayed: it stands beside every region.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

from deploy.lab.layout import HostPlan, Layout
from deploy.lab.needs import ROOT, LabError, run

END_S: Final = 5
_DEVICE_CHARACTERS: Final = 15  # of a name, in Linux


def device(kind: str, region: str) -> str:
    """Return the name of a region's device of one kind ("br", "wan")."""
    return f"{kind}-{region}"[:_DEVICE_CHARACTERS]


def make_network(layout: Layout) -> None:
    """Make the bridge of each region that one of the hosts is in. Raises LabError."""
    what = "the lab's network was not made"
    run(["mount", "-t", "tmpfs", "tmpfs", "/run/netns"], what)
    run(["ip", "link", "set", "lo", "up"], what)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    made: set[str] = set()
    for plan in layout.hosts:
        if plan.region not in made:
            made.add(plan.region)
            _make_bridge(plan)


def _make_bridge(plan: HostPlan) -> None:
    what, bridge = f"no network for region {plan.region}", device("br", plan.region)
    run(["ip", "link", "add", bridge, "type", "bridge"], what)
    run(["ip", "addr", "add", f"{plan.router}/{plan.network.prefixlen}", "dev", bridge], what)
    run(["ip", "link", "set", bridge, "up"], what)


class Wan:
    """The router between the regions; it ends with this process. Raises LabError when it does not start."""

    def __init__(self) -> None:
        words = [sys.executable, "-m", "deploy.lab.wan"]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        said = self._process.stdout.readline().strip() if self._process.stdout is not None else ""
        if said != "ready":
            raise LabError(f"the WAN was not made: {said or 'its router said nothing'}")

    def end(self) -> str:
        """End it and return one line: how late it was."""
        said, _ = self._process.communicate(timeout=END_S)
        state = json.loads(said)
        worst = sorted((lag_us for _, lag_us in state["lag_seconds_us"]), reverse=True)
        above = sum(lag_us > 2_000 for lag_us in worst)
        return (
            f"router between the regions: {state['lag_worst_us'] / 1000:.1f} ms late at worst, "
            f"above 2 ms in {above} of the last {len(worst)} seconds"
        )
