"""Builds a bed whose paths the kernel makes, with another queueing discipline where netem would be; prints JSON.

For `unshare --net --pid --fork`. Whether the delay itself is right cannot be seen on a kernel without netem; that a bed
with wrong delays is found out can.
"""

from __future__ import annotations

import json
import socket
import sys

from mesh.testbed.kernel import inside
from mesh.testbed.kernel_paths import build_core, find_fault, kernel_has, paths_in
from mesh.testbed.path_core import PathSettings
from mesh.testbed.plan_core import BedPlan, parse_wan
from mesh.testbed.topology import attach_tuns, build

PORT = 9_100
WAIT_S = 0.3


def arrives(plan: BedPlan, networks: dict[str, int], one: str, other: str) -> bool:
    """Send one packet and say whether it came."""
    with inside(networks[one]):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with inside(networks[other]):
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with sender, receiver:
        sender.bind((plan.region(one).wan(1), 0))
        receiver.bind((plan.region(other).wan(2), PORT))
        receiver.settimeout(WAIT_S)
        sender.sendto(b"x", (plan.region(other).wan(2), PORT))
        try:
            return receiver.recv(10) == b"x"
        except TimeoutError:
            return False


def main() -> None:
    """Do everything and print what was seen."""
    plan = BedPlan(name="core", slot=0, spec=parse_wan("us-eu=70ms,us-ap=150ms,eu-ap=120ms"), token="t")
    topology = build(plan, host_network=None)
    core = build_core(plan, topology, leaf="pfifo")
    networks = topology.networks
    paths = paths_in(core, plan)
    seen = {
        "netem": kernel_has("netem"),
        "pfifo": kernel_has("pfifo"),
        "fault": find_fault(plan, networks),
        "all_arrive": all(
            arrives(plan, networks, one, other) for one in networks for other in networks if one != other
        ),
    }
    us_eu = paths[1, 2]
    us_eu.change(PathSettings(delay_us=35_000, is_cut=True))
    seen["cut"] = [arrives(plan, networks, *pair) for pair in (("us", "eu"), ("eu", "us"), ("us", "ap"))]
    us_eu.change(PathSettings(delay_us=35_000))
    seen["healed"] = arrives(plan, networks, "us", "eu")
    seen["counted"] = us_eu.counters.packets
    core.take_down()
    attach_tuns(plan, topology)
    seen["tuns_after"] = sorted(topology.tuns)
    sys.stdout.write(json.dumps(seen) + "\n")


if __name__ == "__main__":
    main()
