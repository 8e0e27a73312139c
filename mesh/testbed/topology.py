"""Network namespaces, devices, addresses and routes of a test bed (plan_core.py says which).

Rule 1: nothing has a name outside the kernel objects themselves: namespaces are held by descriptors of one process, so
        they are gone when it is, however it ended. Others reach them as /proc/PID/fd/N.
Rule 2: a region has two devices: wan0 (to the others: TUN to the router, or veth to the core) and mgmt0 (veth, to the
        bridge in the hub). A cut is made in the router: taking wan0 down would lose its routes.
Rule 3: connections that a killed process leaves half closed keep their namespace, and the host's device with it, for as
        long as the kernel tries to end them: a minute by default, one retry in the hub, three in a region.
Rule 4: who may not change the host (no root) leaves it as it is; then the hub is the way in.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from mesh.testbed.devices import add_address, device_index, set_sysctl, set_up
from mesh.testbed.kernel import inside, new_network, open_tun
from mesh.testbed.plan_core import BedPlan, RegionPlace

WAN_DEVICE: Final = "wan0"
MANAGEMENT_DEVICE: Final = "mgmt0"
_BRIDGE: Final = "mgmt"
_HOST_PORT: Final = "host0"
_PREFIX: Final = 20
_WAN_QUEUE_PACKETS: Final = 5_000


@dataclass(slots=True)
class Topology:
    """What was built; descriptors of this process.

    Args:
        networks: network namespace of each region.
        tuns: TUN device of each region, by its index.
        host_link: whether the host has an address in the management network.
    """

    networks: dict[str, int] = field(default_factory=dict)
    tuns: dict[int, int] = field(default_factory=dict)
    host_link: bool = False


def build(plan: BedPlan, *, host_network: int | None) -> Topology:
    """Build all but the paths between regions; the calling thread is in the hub's namespace, and stays there.

    Args:
        host_network: descriptor of the namespace that gets a way in, None for none.

    Raises:
        OSError, NetlinkError: the kernel refused; the caller ends, and what was built goes with it.
    """
    topology = Topology()
    set_sysctl("ipv6/conf/all/disable_ipv6", "1", optional=True)
    set_sysctl("ipv4/ip_forward", "1")
    set_sysctl("ipv4/tcp_orphan_retries", "1")
    with IPRoute() as hub:
        set_up(hub, "lo")
        hub.link("add", ifname=_BRIDGE, kind="bridge")
        add_address(hub, _BRIDGE, plan.hub_address, _PREFIX)
        set_up(hub, _BRIDGE)
        for place in plan.regions:
            topology.networks[place.name] = _build_region(hub, plan, place)
    if host_network is not None:
        topology.host_link = _link_host(plan, host_network)
    return topology


def _build_region(hub: Any, plan: BedPlan, place: RegionPlace) -> int:
    network = new_network()
    port = f"{_BRIDGE}{place.index}"
    hub.link("add", ifname=port, kind="veth", peer={"ifname": MANAGEMENT_DEVICE, "net_ns_fd": network})
    hub.link("set", index=device_index(hub, port), master=device_index(hub, _BRIDGE))
    set_up(hub, port)
    with inside(network):
        set_sysctl("ipv6/conf/all/disable_ipv6", "1", optional=True)
        # A link between brokers is idle for moments and must not begin anew each time; operators set the same.
        set_sysctl("ipv4/tcp_slow_start_after_idle", "0")
        set_sysctl("ipv4/tcp_orphan_retries", "3")
        if plan.congestion_control:
            set_sysctl("ipv4/tcp_congestion_control", plan.congestion_control)
        with IPRoute() as region:
            set_up(region, "lo")
            add_address(region, MANAGEMENT_DEVICE, place.management, _PREFIX)
            set_up(region, MANAGEMENT_DEVICE)
    hub.route("add", dst=place.network, gateway=place.management)
    return network


def attach_tuns(plan: BedPlan, topology: Topology) -> None:
    """Give every region a device to the router. Raises OSError, NetlinkError."""
    for place in plan.regions:
        with inside(topology.networks[place.name]), IPRoute() as region:
            topology.tuns[place.index] = open_tun(WAN_DEVICE)
            dress_wan(region, plan, place)


def dress_wan(region: Any, plan: BedPlan, place: RegionPlace, *, gateway: str = "") -> None:
    """Give a region's device to the others its addresses and the route; `gateway`: where that device is no wire."""
    wan = device_index(region, WAN_DEVICE)
    region.link("set", index=wan, mtu=plan.mtu_bytes, txqlen=_WAN_QUEUE_PACKETS)
    for number in range(1, plan.addresses + 1):
        add_address(region, WAN_DEVICE, place.wan(number), 32)
    set_up(region, WAN_DEVICE)
    via: dict[str, Any] = {}
    if gateway:
        region.route("add", dst=f"{gateway}/32", oif=wan, scope="link")
        via = {"gateway": gateway}
    region.route("add", dst=plan.wan_network, oif=wan, prefsrc=place.wan(1), **via)


def _link_host(plan: BedPlan, host_network: int) -> bool:
    """Give the host an address in the management network; False when this process may not."""
    try:
        with inside(host_network), IPRoute() as host:
            for stale in host.link_lookup(ifname=plan.host_device):  # of a bed that was killed a moment ago
                host.link("del", index=stale)
        with IPRoute() as hub:
            hub.link(
                "add", ifname=_HOST_PORT, kind="veth", peer={"ifname": plan.host_device, "net_ns_fd": host_network}
            )
            hub.link("set", index=device_index(hub, _HOST_PORT), master=device_index(hub, _BRIDGE))
            set_up(hub, _HOST_PORT)
        with inside(host_network), IPRoute() as host:
            add_address(host, plan.host_device, plan.host_address, _PREFIX)
            set_up(host, plan.host_device)
            host.route("add", dst=plan.wan_network, gateway=plan.hub_address)
    except (NetlinkError, PermissionError) as error:
        if getattr(error, "code", getattr(error, "errno", None)) in _FORBIDDEN:
            return False
        raise
    return True


_FORBIDDEN: Final = (1, 13)  # EPERM, EACCES
