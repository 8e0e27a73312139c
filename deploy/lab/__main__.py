"""`make lab`: hosts with systemd on this machine, deploy/ansible on them, and what an operator does, under load.

Rule 1: everything is in namespaces of one process: its end, whatever it is, takes hosts, networks and mounts away.
Rule 2: plays, release, clients and hosts' systemd are those of a real mesh; what the lab adds stands in its inventory.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from deploy.lab.hosts import Host, release_disks
from deploy.lab.layout import Layout, layout
from deploy.lab.needs import KEPT, ROOT, LabError, ansible, missing, root_file_system, run
from deploy.lab.network import Wan, make_network
from deploy.lab.operator import Operator
from deploy.lab.releases import broken_release, renamed_release
from deploy.lab.steps import Act, asked, carry_out, chosen
from deploy.lab.table import Table

INSIDE = "GEORELAY_LAB_INSIDE"


def main() -> int:
    """Return 0 when every step did what it should and no record is lost or doubled, else 1 with one line."""
    parser = argparse.ArgumentParser(prog="make lab", description="Deploy to hosts with systemd on this machine.")
    parser.add_argument("--release", type=Path, help="archive of make release to install first; default: made here")
    parser.add_argument("--next", type=Path, help="archive to upgrade to; default: the same, one comment changed")
    parser.add_argument(
        "--steps", default="", help="names of steps, with commas; -: as lines of standard input come; default: all"
    )
    parser.add_argument("--regions", type=int, choices=(1, 3), default=1, help="3: with the delays of a WAN")
    parser.add_argument("--rate", type=int, default=500, help="records per second")
    options = parser.parse_args()
    lacking = missing()
    if lacking:
        print(f"make lab needs: {', '.join(lacking)}", file=sys.stderr)
        return 1
    try:
        steps: Iterable[tuple[str, Act]] = (
            asked(sys.stdin, regions=options.regions)
            if options.steps == "-"
            else chosen(options.steps, regions=options.regions).items()
        )
        if not os.environ.get(INSIDE):
            return _outside(sys.argv[1:])
        return _inside(options, steps)
    except LabError as error:
        print(f"georelay lab: {error}", file=sys.stderr)
        return 1


def _outside(arguments: list[str]) -> int:
    root_file_system()
    ansible()
    if "--release" not in arguments and not list((ROOT / "dist").glob("georelay-[0-9]*.tar.gz")):
        run([sys.executable, "-m", "deploy.release"], "no release to install")
    release_disks(KEPT)
    Path("/run/netns").mkdir(exist_ok=True)
    command = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-m"]
    try:
        done = subprocess.run([*command, "deploy.lab", *arguments], check=False, env={**os.environ, INSIDE: "1"})
    finally:
        release_disks(KEPT)
    return done.returncode


def _inside(options: argparse.Namespace, steps: Iterable[tuple[str, Act]]) -> int:
    plan = layout(options.regions)
    release = options.release or max((ROOT / "dist").glob("georelay-[0-9]*.tar.gz"))
    scratch = Path(tempfile.mkdtemp(prefix="run-", dir=KEPT))
    table = Table()
    try:
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(scratch / "key")], "no SSH key")
        make_network(plan)
        wan = Wan() if plan.has_wan else None
        hosts = _boot(plan, scratch)
        operator = Operator(scratch, hosts, members=plan.founders, release=release.resolve())
        newer = options.next or renamed_release(operator.release, scratch)
        operator.releases = {"next": newer.resolve(), "broken": broken_release(operator.release, scratch)}
        carry_out(operator, table, rate=options.rate, steps=steps)
        if wan is not None:
            print(wan.end())
    finally:
        print(table.text(), flush=True)
        _take_down(scratch)
    return 0 if table.is_good else 1


def _boot(plan: Layout, scratch: Path) -> dict[str, Host]:
    """Make all hosts, and boot the founders, one after the other: units of ten that boot at once fail now and then."""
    public_key, base = (scratch / "key.pub").read_text(), root_file_system()
    hosts = {
        host.name: Host(host, base=base, folder=scratch / host.name, index=index, public_key=public_key)
        for index, host in enumerate(plan.hosts, start=1)
    }
    for name in plan.founders:
        hosts[name].boot()
        hosts[name].wait_booted()
    keys = [path.read_text() for path in base.glob("etc/ssh/ssh_host_*.pub")]
    (scratch / "known_hosts").write_text("".join(f"{host.address} {key}" for host in plan.hosts for key in keys))
    return hosts


def _take_down(scratch: Path) -> None:
    """Keep what consoles said; the hosts end with this process."""
    for log in scratch.glob("*/console.log"):
        shutil.copy(log, scratch / f"{log.parent.name}.log")


if __name__ == "__main__":
    sys.exit(main())
