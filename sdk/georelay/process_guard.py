"""What a georelay process makes sure of before it does anything else.

Call these first in `main`, before heavy imports: they raise ConfigError (one line for the user) or end the process.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import importlib.util
import os
import signal
import stat
import sys
from pathlib import Path
from typing import Final

from georelay.errors import ConfigError

OWN_DISTRIBUTIONS: Final = frozenset({"georelay-server", "georelay"})
OWN_PACKAGES: Final = ("region", "gateway", "mesh", "loadtest", "sla")
_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER: Final = 36


class _LeftOut:
    """Answers the import system that some packages are not installed."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname in self._names:
            raise ModuleNotFoundError(f"{fullname} is left out of this process", name=fullname)


def leave_out(*names: str) -> None:
    """Have this process do without packages that a library of ours loads where they happen to be installed.

    Arrow loads numpy with itself and pandas with its first array, 65 MiB and a quarter of a second of both cores'
    interpreter lock, and works without either. Modules that are loaded already stay.
    """
    sys.meta_path.insert(0, _LeftOut(frozenset(names)))


def refuse_optimised_python() -> None:
    """Refuse `python -O`: asserts state our invariants, and a broker that breaks one must stop.

    Raises:
        ConfigError: asserts are switched off.
    """
    if sys.flags.optimize:
        raise ConfigError("georelay needs its assertions: start it without python -O and without PYTHONOPTIMIZE")


def close_files_to_others() -> None:
    """Let other users of the machine read nothing that this process makes from now on; groups as the shell says."""
    os.umask(os.umask(0) | stat.S_IRWXO)


@functools.cache  # a forked process has it from the one that has looked
def refuse_foreign_packages(names: tuple[str, ...] = OWN_PACKAGES) -> None:
    """Refuse a venv in which another distribution installed a package under one of our generic names.

    Takes 60 to 250 ms where distributions are installed beside ours, nothing in a checkout and the second time.

    Raises:
        ConfigError: names the package and the distribution that owns it.
    """
    if not any(_has_distributions_beside(name) for name in names):
        return
    owners = importlib.metadata.packages_distributions()
    for name in names:
        foreign = sorted(set(owners.get(name, ())) - OWN_DISTRIBUTIONS)
        if foreign:
            raise ConfigError(
                f"the package '{name}' here belongs to {foreign[0]}; install georelay-server into a venv of its own"
            )


def _has_distributions_beside(name: str) -> bool:
    """Return whether the package that is imported by a name lies where distributions are installed."""
    spec = importlib.util.find_spec(name)
    folders = () if spec is None else spec.submodule_search_locations or ()
    return any(any(Path(folder).parent.glob("*.*-info")) for folder in folders)


def die_with_parent(expected_parent_pid: int) -> None:
    """Have the kernel kill this process (SIGKILL) when its parent ends, however the parent ends. 0 does nothing.

    A parent that ended before this call is noticed by its pid: the process then exits with 1 at once. Linux only;
    the signal follows the parent's thread that made this process, so parents start children from their main thread.

    Raises:
        ConfigError: the kernel refused.
    """
    if expected_parent_pid == 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise ConfigError(f"prctl(PR_SET_PDEATHSIG): {os.strerror(ctypes.get_errno())}")
    if os.getppid() != expected_parent_pid:
        sys.exit(
            f"die_with_parent: this is no child of process {expected_parent_pid}, or that has ended. The file is of "
            "`georelay up`, which starts its brokers itself, one that ended by `georelay up --start NAME`; for a host "
            "`georelay broker config` writes a file"
        )


def adopt_orphans(adopts: bool) -> None:
    """Become the parent of what descends from this process and loses its parent, or no longer. Linux only.

    Raises:
        ConfigError: the kernel refused.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, int(adopts), 0, 0, 0) != 0:
        raise ConfigError(f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(ctypes.get_errno())}")
