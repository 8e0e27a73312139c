"""Paths between regions in the kernel itself, where it has netem: no packet passes through a process of ours.

Regions are joined by a namespace of their own, the core. On the core's device to region B there is an HTB class per
source region A, chosen by the source address, and below it netem. Delays are made in the core and not in the region
that sends: netem on a sender's own device would count against its socket's share of the queue.

Rule 1: nothing is believed: `find_fault` sends packets over every path, and a bed whose delays are wrong is built anew
        with the router.
Rule 2: a cut of A to B is a routing rule in the core that discards what comes from A's device for B's addresses.
Rule 3: `leaf` is the one thing that kernels lack; tests put another queueing discipline in its place.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any, Final

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from mesh.testbed.devices import device_index, set_sysctl, set_up
from mesh.testbed.kernel import inside, new_network
from mesh.testbed.netem_core import netem_arguments
from mesh.testbed.path_core import PathCounters, PathSettings
from mesh.testbed.plan_core import BedPlan, RegionPlace
from mesh.testbed.topology import WAN_DEVICE, Topology, dress_wan

LATE_US_MAX: Final = 5_000  # of the best of PROBES packets
EARLY_US_MAX: Final = 200
PROBES: Final = 5
PROBE_PORT: Final = 9
PROBE_WAIT_S: Final = 1.0
_RATE: Final = "100gbit"  # of the classes: they only sort
_ROOT: Final = 0x1_0000
_DISCARD: Final = "FR_ACT_BLACKHOLE"
_SO_TIMESTAMPNS: Final = 35
_STAMP: Final = struct.Struct("!BBQ")


def kernel_has(leaf: str) -> bool:
    """Try a queueing discipline, in a namespace that is thrown away."""
    scratch = new_network()
    try:
        with inside(scratch), IPRoute() as route:
            try:
                arguments = netem_arguments(PathSettings(delay_us=1_000)) if leaf == "netem" else {}
                route.tc("add", leaf, 1, _ROOT, **arguments)
            except NetlinkError:
                return False
            return True
    finally:
        os.close(scratch)


class KernelPath:
    """One direction; behaves as Path does for whoever controls it."""

    def __init__(self, core: KernelCore, source: RegionPlace, destination: RegionPlace, settings: PathSettings) -> None:
        self._core = core
        self._source = source
        self._destination = destination
        self.settings = settings

    @property
    def counters(self) -> PathCounters:
        """Return what the kernel counted; it does not tell lost from overflown, nor count what a cut discards."""
        return self._core.counters(self._source, self._destination)

    def change(self, settings: PathSettings) -> None:
        """Behave otherwise from now on. Raises ConfigError, before anything was changed."""
        self._core.change(self._source, self._destination, self.settings, settings)
        self.settings = settings


class KernelCore:
    """The namespace between the regions; made by `build_core`."""

    def __init__(self, plan: BedPlan, network: int, leaf: str) -> None:
        self.network = network
        self._plan = plan
        self._leaf = leaf
        with inside(network):
            self._route: Any = IPRoute()  # its socket stays in the namespace in which it was made
        self._devices: dict[int, int] = {}

    def connect(self, place: RegionPlace, region: int) -> None:
        """Join a region: a veth pair, an address of the core at its end, and classes for all sources."""
        port, gateway = f"w{place.index}", self._plan.core_address
        with inside(self.network):
            self._route.link("add", ifname=port, kind="veth", peer={"ifname": WAN_DEVICE, "net_ns_fd": region})
            device = self._devices[place.index] = device_index(self._route, port)
            self._route.link("set", index=device, mtu=self._plan.mtu_bytes)
            self._route.addr("add", index=device, address=gateway, prefixlen=32)
            set_up(self._route, port)
            self._route.route("add", dst=place.network, oif=device, scope="link")
        self._route.tc("add", "htb", device, _ROOT, default=0xFFFF)
        for source in self._plan.regions:
            if source != place:
                self._add_class(device, source, PathSettings(delay_us=self._plan.delay_us(source.name, place.name)))

    def _add_class(self, device: int, source: RegionPlace, settings: PathSettings) -> None:
        handle = _ROOT + source.index
        self._route.tc("add-class", "htb", device, handle, parent=_ROOT, rate=_RATE, ceil=_RATE)
        self._route.tc("add", self._leaf, device, source.index << 20, parent=handle, **self._arguments(settings))
        octets = [int(octet) for octet in source.wan(0).split(".")]
        network = f"0x{bytes(octets).hex()}/0xffffff00+12"  # source address of an IPv4 header
        self._route.tc(
            "add-filter", "u32", device, parent=_ROOT, prio=1, protocol=0x0800, target=handle, keys=[network]
        )

    def _arguments(self, settings: PathSettings) -> dict[str, Any]:
        arguments = netem_arguments(settings)
        return dict(arguments) if self._leaf == "netem" else {"limit": arguments["limit"]}

    def change(self, source: RegionPlace, destination: RegionPlace, old: PathSettings, new: PathSettings) -> None:
        """Make a path as `new` says. Raises ConfigError (nothing was changed)."""
        arguments = self._arguments(new)
        device, handle = self._devices[destination.index], _ROOT + source.index
        self._route.tc("change", self._leaf, device, source.index << 20, parent=handle, **arguments)
        if old.is_cut != new.is_cut:
            self._route.rule(
                "add" if new.is_cut else "del",
                iifname=f"w{source.index}",
                dst=destination.wan(0),
                dst_len=24,
                action=_DISCARD,
                priority=100 + 16 * source.index + destination.index,
            )

    def counters(self, source: RegionPlace, destination: RegionPlace) -> PathCounters:
        """Return the counters of a class."""
        for row in self._route.get_classes(index=self._devices[destination.index]):
            if row["handle"] == _ROOT + source.index:
                found = row.get_attr("TCA_STATS")
                return PathCounters(packets=found["packets"], bytes=found["bytes"], lost=found["drop"])
        return PathCounters()

    def take_down(self) -> None:
        """Take the regions' devices away, so that others can be put there."""
        for device in self._devices.values():
            self._route.link("del", index=device)
        self._route.close()
        os.close(self.network)


def build_core(plan: BedPlan, topology: Topology, *, leaf: str = "netem") -> KernelCore:
    """Join the regions of a topology by the kernel. Raises OSError, NetlinkError."""
    network = new_network()
    with inside(network):
        set_sysctl("ipv6/conf/all/disable_ipv6", "1", optional=True)
        set_sysctl("ipv4/ip_forward", "1")
    core = KernelCore(plan, network, leaf)
    for place in plan.regions:
        core.connect(place, topology.networks[place.name])
        with inside(topology.networks[place.name]), IPRoute() as region:
            dress_wan(region, plan, place, gateway=plan.core_address)
    return core


def paths_in(core: KernelCore, plan: BedPlan) -> dict[tuple[int, int], KernelPath]:
    """Return both directions of every pair."""
    return {
        (one.index, other.index): KernelPath(
            core, one, other, PathSettings(delay_us=plan.delay_us(one.name, other.name))
        )
        for one in plan.regions
        for other in plan.regions
        if one != other
    }


def find_fault(plan: BedPlan, networks: Mapping[str, int]) -> str:
    """Send packets over every path and return the first delay that is wrong, "" when all are right."""
    sockets = {place.index: _probe_socket(networks[place.name], place) for place in plan.regions}
    names = {place.index: place.name for place in plan.regions}
    best_us: dict[tuple[int, int], float] = {}
    try:
        for _ in range(PROBES):
            for source in plan.regions:
                for destination in plan.regions:
                    if source != destination:
                        stamp = _STAMP.pack(source.index, destination.index, time.time_ns())
                        sockets[source.index].sendto(stamp, (destination.wan(1), PROBE_PORT))
        wait_s = PROBE_WAIT_S + max(plan.spec.rtt_us.values()) / 2e6
        deadline = time.monotonic() + wait_s
        expected = len(plan.regions) * (len(plan.regions) - 1) * PROBES
        while expected and (left_s := deadline - time.monotonic()) > 0:
            for ready in select.select(list(sockets.values()), [], [], left_s)[0]:
                raw, ancillary, _, _ = ready.recvmsg(_STAMP.size, 64)
                source_index, destination_index, sent_ns = _STAMP.unpack(raw)
                second, nanosecond = struct.unpack("qq", ancillary[0][2])
                took_us = (second * 1_000_000_000 + nanosecond - sent_ns) / 1_000
                pair = source_index, destination_index
                best_us[pair] = min(took_us, best_us.get(pair, took_us))
                expected -= 1
    finally:
        for one in sockets.values():
            one.close()
    for one_place in plan.regions:
        for other in plan.regions:
            if one_place == other:
                continue
            wanted, found = plan.delay_us(one_place.name, other.name), best_us.get((one_place.index, other.index))
            if found is None or not wanted - EARLY_US_MAX <= found <= wanted + LATE_US_MAX:
                took = "nothing arrived" if found is None else f"{found / 1_000:.2f} ms"
                return f"{names[one_place.index]} to {names[other.index]}: {took}, not {wanted / 1_000:g} ms"
    return ""


def _probe_socket(network: int, place: RegionPlace) -> socket.socket:
    with inside(network):
        probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    probe.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    probe.bind((place.wan(1), PROBE_PORT))
    return probe
