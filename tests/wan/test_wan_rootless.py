"""A test bed of a user who is not root: namespaces of their own, and nothing of the host's changed.

Run by root these tests become nobody, in a mount namespace where /dev/net/tun may be opened by anybody (it is 0666 on
most distributions) and the interpreter can be read. Run by anybody else, every test of this folder is such a test.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NOBODY = 65_534
SCRIPT = """
import json, os, subprocess, sys
from mesh.testbed.bed_client import BedClient
from mesh.testbed.bed_process import BedOptions, open_bed
from mesh.testbed.plan_core import parse_wan
with open_bed(BedOptions(spec=parse_wan("us-eu=70ms"), name="rootless")) as bed:
    words = bed.record.enter_argv("us", contained=True)
    inside = subprocess.check_output([*words, "cat", "/proc/net/dev"], text=True)
    print(json.dumps({
        "uid": os.getuid(), "rootless": bed.record.rootless, "realtime": bed.record.realtime,
        "host_link": bed.record.host_link, "inside": "wan0" in inside, "cut": bool(BedClient("rootless").cut("us")),
    }))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="the whole folder runs without root then")
def test_who_is_not_root_runs_a_bed_too(tmp_path: Path) -> None:
    prefix = Path(os.path.realpath(sys.executable)).parents[1]
    home = Path("/root")
    script, tun, run, shown = (tmp_path / name for name in ("script.py", "tun", "run", "python"))
    script.write_text(SCRIPT)
    run.mkdir()
    shown.mkdir()
    for path in (tmp_path, *tmp_path.parents[:3]):
        if path != Path("/tmp"):
            path.chmod(0o755)
    run.chmod(0o777)
    os.mknod(tun, 0o600 | 0o020000, os.makedev(10, 200))
    tun.chmod(0o666)
    show = ""
    if prefix.is_relative_to(home):  # an interpreter below root's home, which others may not enter
        show = (
            f"mount --bind {prefix} {shown} && mount -t tmpfs -o mode=755 none {home} && mkdir -p {prefix} "
            f"&& mount --bind {shown} {prefix} && "
        )
    command = f"setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups {sys.executable} {script}"
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", f"mount --bind {tun} /dev/net/tun && {show}exec {command}"],
        env={"PATH": os.environ["PATH"], "XDG_RUNTIME_DIR": str(run), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "uid": NOBODY,
        "rootless": True,
        "realtime": False,
        "host_link": False,
        "inside": True,
        "cut": True,
    }
