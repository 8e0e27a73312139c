"""Starting a test bed from the process that wants it, and ending it with that process.

Rule 1: the bed runs inside unshare(1): own network and process namespaces, and a user namespace for who is not root.
        It ends when its lifeline (a pipe) does, so a kill -9 of the owner is enough; the kernel then kills what runs in
        its process namespace and frees networks, devices and addresses.
Rule 2: what is missing on this machine is said in one line, with what to do.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from georelay.errors import ConfigError, Unavailable
from georelay.fields import FieldError, Fields
from mesh.testbed.kernel import CLONE_NEWNET, CLONE_NEWUSER, TUN_DEVICE, current_network, enter
from mesh.testbed.plan_core import ADDRESSES_DEFAULT, HUB, MTU_DEFAULT, BedPlan, Engine, WanSpec
from mesh.testbed.run_directory import TOKEN_VARIABLE, BedRecord, RunDirectory

READY_S: Final = 20.0
STOP_S: Final = 5.0
ANSWER_BYTES_MAX: Final = 64 * 1024
_TOOLS: Final = ("unshare", "nsenter", "env")


@dataclass(frozen=True, slots=True, kw_only=True)
class BedOptions:
    """What a bed is asked for; see BedPlan."""

    spec: WanSpec
    name: str = "dev"
    addresses: int = ADDRESSES_DEFAULT
    mtu_bytes: int = MTU_DEFAULT
    congestion_control: str = ""
    engine: Engine = Engine.AUTO


def missing_here() -> list[str]:
    """Return what this machine lacks for a test bed, one line each; empty when it can run one."""
    missing = [f"{tool}(1) of util-linux or coreutils" for tool in _TOOLS if shutil.which(tool) is None]
    if importlib.util.find_spec("pyroute2") is None:
        missing.append("pyroute2: pip install 'georelay-server[testbed]'")
    if not Path(TUN_DEVICE).exists():
        missing.append(f"{TUN_DEVICE} (modprobe tun)")
    elif not os.access(TUN_DEVICE, os.R_OK | os.W_OK):
        missing.append(f"permission to open {TUN_DEVICE}: run as root, or chmod 0666 {TUN_DEVICE}")
    if not missing and not _may_unshare():
        missing.append("permission to make namespaces: run as root, or allow unprivileged user namespaces")
    return missing


def _may_unshare() -> bool:
    probe = [*_unshare_argv(), "true"]
    return subprocess.run(probe, check=False, capture_output=True).returncode == 0  # noqa: S603 - our own words


def _unshare_argv() -> list[str]:
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *user, "--net", "--pid", "--fork", "--kill-child=KILL"]


class BedProcess:
    """A running bed that this process owns; made by `open_bed`."""

    def __init__(self, process: subprocess.Popen[bytes], record: BedRecord) -> None:
        self._process = process
        self.record = record

    @property
    def plan(self) -> BedPlan:
        """Return what it is made of."""
        return self.record.plan

    @property
    def is_running(self) -> bool:
        """Return whether its router has not ended."""
        return self._process.poll() is None

    def enter_argv(self, region: str) -> tuple[str, ...]:
        """Return the words in front of a command of this process that shall run in a region (after `enter_hub`)."""
        words = self.record.enter_argv(region)
        return tuple(word for word in words if not word.startswith(("--user=", "--preserve-credentials")))

    def enter_hub(self) -> None:
        """Move this process into the bed's hub, for good; it must have one thread.

        Raises:
            Unavailable: the kernel refused.
        """
        proc = f"/proc/{self.record.pid}"
        try:
            if self.record.rootless:
                _enter(f"{proc}/ns/user", CLONE_NEWUSER)
            _enter(f"{proc}/fd/{self.record.networks[HUB]}", CLONE_NEWNET)
        except OSError as error:
            raise Unavailable(f"cannot enter the test bed: {error}") from error

    def wait(self) -> None:
        """Wait until it ends: somebody asked it to, or it failed."""
        self._process.wait()

    def stop(self) -> None:
        """End it and everything that runs in it."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _enter(path: str, kind: int) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        enter(descriptor, kind)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def open_bed(options: BedOptions, directory: RunDirectory | None = None) -> Iterator[BedProcess]:
    """Run a bed for the block.

    Raises:
        ConfigError: a wrong option, the name is taken, or this machine lacks something; the text says what.
        Unavailable: it did not become ready.
    """
    directory = directory or RunDirectory()
    missing = missing_here()
    if missing:
        raise ConfigError(f"this machine cannot run a test bed: {'; '.join(missing)}")
    with directory.claim(options.name) as claim:
        plan = BedPlan(
            name=options.name,
            slot=claim.slot,
            spec=options.spec,
            token=uuid.uuid4().hex,
            addresses=options.addresses,
            mtu_bytes=options.mtu_bytes,
            congestion_control=options.congestion_control,
            engine=options.engine,
        )
        bed = _start(plan, directory)
        try:
            claim.publish(bed.record)
            yield bed
        finally:
            bed.stop()


def _start(plan: BedPlan, directory: RunDirectory) -> BedProcess:
    rootless = os.geteuid() != 0
    inherited: tuple[int, ...] = () if rootless else (current_network(),)
    argv = [
        *_unshare_argv(),
        *(sys.executable, "-P", "-m", "mesh.testbed", str(directory.socket_path(plan.name))),
        *map(str, inherited),
    ]
    try:
        with directory.log_path(plan.name).open("wb") as log:
            process = subprocess.Popen(  # noqa: S603 - our own words
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                pass_fds=inherited,
                start_new_session=True,  # Ctrl-C reaches the owner only, who ends it in one way
                env=os.environ | {TOKEN_VARIABLE: plan.token},
            )
    finally:
        for descriptor in inherited:
            os.close(descriptor)
    try:
        return BedProcess(process, _await_ready(process, plan, directory, rootless=rootless))
    except BaseException:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        raise


def _await_ready(
    process: subprocess.Popen[bytes], plan: BedPlan, directory: RunDirectory, *, rootless: bool
) -> BedRecord:
    assert process.stdin is not None and process.stdout is not None
    with contextlib.suppress(BrokenPipeError):  # it ended at once: its log says why
        process.stdin.write(json.dumps(plan.to_json()).encode() + b"\n")
        process.stdin.flush()
    raw, deadline = b"", time.monotonic() + READY_S
    while not raw.endswith(b"\n") and (left_s := deadline - time.monotonic()) > 0:
        if select.select([process.stdout], [], [], left_s)[0]:
            piece = os.read(process.stdout.fileno(), ANSWER_BYTES_MAX)
            if not piece:
                break
            raw += piece
    process.stdout.close()  # it says nothing more
    try:
        fields = Fields(json.loads(raw or b"null"), "the bed's answer")
        if fields.has("error"):
            raise Unavailable(f"the test bed cannot be built: {fields.text('error', chars_max=2_000)}")
        networks = fields.child("networks")
        return BedRecord(
            plan=plan,
            pid=fields.integer("pid", low=1, high=1 << 22),
            networks={name: networks.integer(name, low=0, high=1 << 20) for name in (HUB, *plan.spec.regions)},
            rootless=rootless,
            realtime=fields.flag("realtime"),
            host_link=fields.flag("host_link"),
        )
    except (ValueError, FieldError) as error:
        log = directory.log_path(plan.name)
        said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        why = said[-1][:300] if said else f"nothing was said within {READY_S:g} s"
        raise Unavailable(f"the test bed did not become ready: {why} (log: {log})") from error
