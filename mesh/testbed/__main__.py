"""The process of a test bed: `unshare --net --pid --fork --kill-child=KILL python -P -m mesh.testbed SOCKET [HOST_FD]`.

It is alone in a new network namespace (the hub) and the first process of a new process namespace. Its standard input
is a lifeline: one line of JSON, the plan, and then nothing until its writer is gone. On standard output it says in one
line of JSON that the bed is ready, or what is wrong. When it ends, however that is, the kernel takes the namespaces and
every process in them away.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path

import structlog
from pyroute2.netlink.exceptions import NetlinkError

from georelay.errors import GeorelayError, Unavailable
from georelay.fields import FieldError, JsonObject
from mesh.testbed.kernel import current_network
from mesh.testbed.kernel_bed import KernelBed
from mesh.testbed.kernel_paths import KernelCore, build_core, find_fault, kernel_has
from mesh.testbed.plan_core import HUB, BedPlan, Engine
from mesh.testbed.router import Router
from mesh.testbed.topology import Topology, attach_tuns, build

log = structlog.get_logger()

PLAN_BYTES_MAX = 64 * 1024


def main(arguments: list[str]) -> int:
    """Build the bed and run its router; returns the exit code."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
    )
    socket_path = Path(arguments[0])
    host_network = int(arguments[1]) if len(arguments) > 1 else None
    # The first process of its namespace: signals it does not ask for are ignored, children of others become its own.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        plan = _read_plan()
        topology = build(plan, host_network=host_network)
        if host_network is not None:
            os.close(host_network)
        core = _kernel_core(plan, topology)
        control = _listen(socket_path)
        router: Router | KernelBed
        if core is None:
            attach_tuns(plan, topology)
            router = Router(plan, topology.tuns, control=control, lifeline=0)
        else:
            router = KernelBed(plan, core, control=control, lifeline=0)
        router.prepare()
    except (OSError, NetlinkError, FieldError, GeorelayError) as error:
        _say({"error": str(error) or type(error).__name__})
        return 1
    networks = {HUB: current_network(), **topology.networks}
    pid = int(os.readlink("/proc/self"))  # as whoever mounted /proc sees it; ours is 1
    _say({"pid": pid, "networks": networks, "realtime": router.is_realtime, "host_link": topology.host_link})
    try:
        router.run()
    finally:
        socket_path.unlink(missing_ok=True)
    return 0


def _kernel_core(plan: BedPlan, topology: Topology) -> KernelCore | None:
    """Return the kernel's delay line, None where the router is to be used.

    Raises:
        Unavailable: the plan wants netem and nothing else.
    """
    if plan.engine is Engine.ROUTER:
        return None
    why = "this kernel has no netem"
    if kernel_has("netem"):
        core = build_core(plan, topology)
        why = find_fault(plan, topology.networks)
        if not why:
            return core
        core.take_down()
        log.warning("bed.netem_refused", reason=why)
    if plan.engine is Engine.NETEM:
        raise Unavailable(f"--engine netem: {why}")
    return None


def _read_plan() -> BedPlan:
    raw = b""
    while not raw.endswith(b"\n") and len(raw) < PLAN_BYTES_MAX:
        piece = os.read(0, PLAN_BYTES_MAX)
        if not piece:
            break
        raw += piece
    try:
        return BedPlan.from_json(json.loads(raw))
    except ValueError as error:
        raise FieldError(f"the plan is not JSON: {error}") from error


def _listen(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    control = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    control.bind(str(path))
    path.chmod(0o600)
    control.setblocking(False)
    return control


def _say(answer: JsonObject) -> None:
    os.write(1, json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
