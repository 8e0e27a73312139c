"""`python -m deploy.lab.wan`: the router of the test bed between the regions of the lab, in the lab's own network.

A host's packet to another region goes from its region's bridge into that region's TUN device, waits in the router, and
leaves by the device of its destination. Standard input is a lifeline; one line says that it is ready, and one at the
end how late it was.
"""

from __future__ import annotations

import json
import os
import random
import socket
import sys

from deploy.lab.layout import REGIONS, Layout, addressing, layout, networks
from deploy.lab.needs import LabError, run
from deploy.lab.network import device
from mesh.testbed.kernel import open_tun
from mesh.testbed.plan_core import BedPlan, parse_wan
from mesh.testbed.router import Router


def main() -> int:
    """Move packets until the lifeline ends."""
    layout_ = layout(3)
    plan = BedPlan(name="lab", slot=0, spec=parse_wan(layout_.round_trips).require(REGIONS), token="lab")  # noqa: S106 - no secret: it marks processes, and there are none
    try:
        tuns = {place.index: _device(place.name, place.index, layout_) for place in plan.regions}
    except (OSError, LabError) as error:
        print(error, flush=True)
        return 1
    control = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    control.bind(f"\0georelay-lab-{os.getpid()}-{random.getrandbits(32)}")  # nobody asks it anything
    control.setblocking(False)
    indexes = {place.name: place.index for place in plan.regions}
    known = addressing(networks(layout_.hosts), indexes)
    router = Router(plan, tuns, control=control, lifeline=0, addressing=known)
    router.prepare()
    print("ready", flush=True)
    router.run()
    print(json.dumps(router.state()), flush=True)
    return 0


def _device(region: str, index: int, layout_: Layout) -> int:
    """Make a region's way to the others, for what comes from its bridge alone: the lab itself is not delayed."""
    name, table, what = device("wan", region), str(100 + index), f"no WAN for region {region}"
    descriptor = open_tun(name)
    run(["ip", "link", "set", name, "up", "txqueuelen", "5000"], what)
    for other, network in networks(layout_.hosts).items():
        if other != region:
            run(["ip", "route", "add", str(network), "dev", name, "table", table], what)
    run(["ip", "rule", "add", "iif", device("br", region), "lookup", table], what)
    return descriptor


if __name__ == "__main__":
    sys.exit(main())
