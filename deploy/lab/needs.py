"""What the lab needs of this machine, and the two things that it makes once: a root file system and ansible-core.

Rule 1: what is missing is named before anything is made.
Rule 2: both are kept in build/lab, whole or not at all; `make clean` removes them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
KEPT: Final = ROOT / "build" / "lab"
SUITE: Final = "bookworm"
PACKAGES: Final = (
    *("systemd", "systemd-sysv", "dbus", "openssh-server", "python3", "python3-venv", "sudo", "iproute2"),
    *("ca-certificates", "chrony", "e2fsprogs", "prometheus-node-exporter"),
)
COMMANDS: Final = {
    "systemd-nspawn": "systemd-container",
    "mmdebstrap": "mmdebstrap",
    "ip": "iproute2",
    "ssh": "openssh-client",
    "unshare": "util-linux",
    "curl": "curl",
    "mkfs.ext4": "e2fsprogs",
}
INOTIFY: Final = 512  # each systemd has about ten
ANSIBLE: Final = "ansible-core>=2.15,<2.20"
SERVICES_OFF: Final = ("apt-daily.timer", "apt-daily-upgrade.timer", "systemd-networkd-wait-online.service")


class LabError(Exception):
    """The lab cannot go on; the text is the one line for who runs it."""


def missing() -> list[str]:
    """Return what this machine lacks, each as a few words; empty: nothing."""
    found = [] if os.geteuid() == 0 else ["root"]
    packages = [package for command, package in COMMANDS.items() if shutil.which(command) is None]
    found += [f"Debian package {package}" for package in packages]
    allowed = int(Path("/proc/sys/fs/inotify/max_user_instances").read_text())
    return found + ([] if allowed >= INOTIFY else [f"sysctl fs.inotify.max_user_instances={INOTIFY} (it is {allowed})"])


def root_file_system() -> Path:
    """Return the root file system that all hosts have below their own changes, made by mmdebstrap the first time.

    Raises:
        LabError: mmdebstrap failed.
    """
    made = KEPT / "base"
    if made.exists():
        return made
    scratch = KEPT / "base.part"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.parent.mkdir(parents=True, exist_ok=True)
    run(["mmdebstrap", "--variant=apt", f"--include={','.join(PACKAGES)}", SUITE, str(scratch)], "mmdebstrap failed")
    for service in SERVICES_OFF:
        run(["systemctl", f"--root={scratch}", "mask", service], "systemctl failed")
    for service in ("chrony.service", "prometheus-node-exporter.service"):
        run(["systemctl", f"--root={scratch}", "disable", service], "systemctl failed")
    (scratch / "etc/sudoers.d/admin").write_text("admin ALL=(ALL) NOPASSWD: ALL\n")
    run(["chroot", str(scratch), "useradd", "--create-home", "--shell", "/bin/bash", "admin"], "useradd failed")
    scratch.replace(made)
    return made


def ansible() -> Path:
    """Return the folder with ansible-playbook of ansible-core alone, in an environment of its own.

    Raises:
        LabError: pip did not get it.
    """
    home = KEPT / "ansible"
    if not (home / "bin" / "ansible-playbook").exists():
        shutil.rmtree(home, ignore_errors=True)
        run([sys.executable, "-m", "venv", str(home)], "no environment for ansible-core")
        run([str(home / "bin" / "pip"), "install", "--quiet", ANSIBLE], "pip did not get ansible-core")
    return home / "bin"


def run(command: list[str], what: str) -> str:
    """Run a command and return what it printed. Raises LabError with `what` and its last line when it fails."""
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines() or ["it said nothing"]
        raise LabError(f"{what}: {said[-1]}")
    return done.stdout
