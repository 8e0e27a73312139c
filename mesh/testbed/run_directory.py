"""Which test beds run on this machine: one lock file per bed, held while it runs.

Rule 1: a bed runs while its lock is held, and only then: no pid is believed. What a killed process leaves is a file
        that nobody holds.
Rule 2: `collect` takes away what such a file names: processes that carry the bed's token in their environment, its
        socket and the file. Doing it twice is doing it once; a bed that runs is left alone.
Rule 3: the directory belongs to one user (mode 0700).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from georelay.errors import ConfigError, Unavailable
from georelay.fields import FieldError, Fields, JsonObject
from mesh.testbed.plan_core import NAME, SLOTS, BedPlan

TOKEN_VARIABLE: Final = "GEORELAY_WAN_BED"  # noqa: S105 - marks processes, proves nothing
RECORD_BYTES_MAX: Final = 64 * 1024
_PID_MAX: Final = 1 << 22
_NETWORKS_MAX: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class BedRecord:
    """What a bed's file says of it.

    Args:
        pid: of the router.
        networks: descriptor of each namespace in the router, the hub among them.
        rootless: whether it has a user namespace of its own.
    """

    plan: BedPlan
    pid: int
    networks: dict[str, int]
    rootless: bool
    realtime: bool
    host_link: bool

    def to_json(self) -> JsonObject:
        """Return it as JSON."""
        return {
            "plan": self.plan.to_json(),
            "pid": self.pid,
            "networks": dict(self.networks),
            "rootless": self.rootless,
            "realtime": self.realtime,
            "host_link": self.host_link,
        }

    @classmethod
    def from_json(cls, value: object) -> BedRecord:
        """Return what `to_json` wrote. Raises FieldError, ConfigError."""
        fields = Fields(value, "bed")
        plan = BedPlan.from_json(fields.value("plan"))
        networks = fields.child("networks")
        record = cls(
            plan=plan,
            pid=fields.integer("pid", low=1, high=_PID_MAX),
            networks={name: networks.integer(name, low=0, high=1 << 20) for name in ("hub", *plan.spec.regions)},
            rootless=fields.flag("rootless"),
            realtime=fields.flag("realtime"),
            host_link=fields.flag("host_link"),
        )
        fields.done()
        return record

    def enter_argv(self, region: str, *, contained: bool = False) -> tuple[str, ...]:
        """Return the words in front of a command that shall run in a region (or "hub").

        Args:
            contained: also in the bed's process namespace: it is killed with the bed, whoever started it. Without it
                the command stays a child of who starts it, and the words take its own process.

        Raises:
            ConfigError: no such region.
        """
        if region not in self.networks:
            raise ConfigError(f"there is no region {region[:80]!r} in this test bed ({', '.join(self.networks)})")
        proc = f"/proc/{self.pid}"
        return (
            "env",
            f"{TOKEN_VARIABLE}={self.plan.token}",
            "nsenter",
            *((f"--user={proc}/ns/user", "--preserve-credentials") if self.rootless else ()),
            *((f"--pid={proc}/ns/pid",) if contained else ()),
            f"--net={proc}/fd/{self.networks[region]}",
            "--",
        )


class RunDirectory:
    """The files of this user's beds."""

    def __init__(self, path: Path | None = None) -> None:
        """Use `path`; by default /run/georelay-wan for root, else below XDG_RUNTIME_DIR or the temporary directory."""
        self.path = path or _default()
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self.path.stat().st_uid != os.geteuid():
                raise ConfigError(f"{self.path} belongs to somebody else")
        except OSError as error:
            raise ConfigError(f"cannot use {self.path}: {error.strerror}") from error

    def socket_path(self, name: str) -> Path:
        """Return where a bed listens for requests."""
        return self.path / f"{name}.sock"

    def log_path(self, name: str) -> Path:
        """Return where a bed's router writes its log."""
        return self.path / f"{name}.log"

    def reply_path(self) -> Path:
        """Return a new path for one answer."""
        return self.path / f"reply-{os.getpid()}-{os.urandom(4).hex()}"

    def running(self) -> list[BedRecord]:
        """Return the beds that run and are ready, by name."""
        records = []
        for path in sorted(self.path.glob("*.lock")):
            with self._try_lock(path) as free:
                record = None if free else _read_record(path)
            if record is not None:
                records.append(record)
        return records

    def find(self, name: str = "") -> BedRecord:
        """Return the bed of that name, or the only one.

        Raises:
            Unavailable: it does not run. ConfigError: several run and none is named.
        """
        found = [record for record in self.running() if name in ("", record.plan.name)]
        if not found:
            raise Unavailable(f"no test bed {name or ''} runs here; `georelay wan up` starts one".replace("  ", " "))
        if len(found) > 1:
            raise ConfigError(f"several test beds run ({', '.join(row.plan.name for row in found)}): name one (--name)")
        return found[0]

    @contextlib.contextmanager
    def claim(self, name: str) -> Iterator[Claim]:
        """Hold a bed's name, and a slot of addresses that no other bed has, until the block ends.

        Raises:
            ConfigError: the name is not one or is taken, or there is no slot left.
        """
        if NAME.fullmatch(name) is None:
            raise ConfigError(f"{name[:40]!r} is no name of a test bed (1..20 of a-z, 0-9, '-')")
        self.collect()
        path = self.path / f"{name}.lock"
        with contextlib.ExitStack() as stack:
            if not stack.enter_context(self._try_lock(path, create=True)):
                raise ConfigError(f"a test bed {name} runs already; `georelay wan down --name {name}` stops it")
            slot = self._claim_slot(stack)
            try:
                yield Claim(path=path, slot=slot)
            finally:
                self._remove_empty_log(name)
                path.unlink(missing_ok=True)

    def _claim_slot(self, stack: contextlib.ExitStack) -> int:
        """Hold one of the machine's slots: addresses are shared by all users, so the locks are sockets by name."""
        for slot in range(SLOTS):
            marker = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                marker.bind(f"\0georelay-wan-slot-{slot}")
            except OSError:
                marker.close()
                continue
            stack.callback(marker.close)
            return slot
        raise ConfigError(f"{SLOTS} test beds run on this machine already")

    def collect(self) -> list[str]:
        """Take away what beds left that ended without doing so themselves; returns one line for each thing."""
        done: list[str] = []
        for path in sorted(self.path.glob("*.lock")):
            with self._try_lock(path) as free:
                if free:
                    done += self._collect_bed(path)
        return done

    def _collect_bed(self, path: Path) -> list[str]:
        done = []
        record = _read_record(path)
        if record is not None:
            done = [f"killed process {pid}" for pid in _kill_marked(record.plan.token)]
        self._remove_empty_log(path.stem)
        for left in (self.socket_path(path.stem), path):
            if left.exists():
                left.unlink(missing_ok=True)
                done.append(f"removed {left}")
        return done

    def _remove_empty_log(self, name: str) -> None:
        log = self.log_path(name)
        if log.exists() and not log.stat().st_size:
            log.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _try_lock(self, path: Path, *, create: bool = False) -> Iterator[bool]:
        """Hold a file for the block if nobody else does; yields whether this process does (no file: it does not)."""
        descriptor = _open_locked(path, create=create)
        try:
            yield descriptor is not None
        finally:
            if descriptor is not None:
                os.close(descriptor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A name and a slot that are held."""

    path: Path
    slot: int

    def publish(self, record: BedRecord) -> None:
        """Say to others what the bed is; it is ready."""
        self.path.write_text(json.dumps(record.to_json()), encoding="utf-8")


def _default() -> Path:
    if os.geteuid() == 0:
        return Path("/run/georelay-wan")
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "georelay-wan" if runtime else Path(tempfile.gettempdir()) / f"georelay-wan-{os.geteuid()}"


def _open_locked(path: Path, *, create: bool) -> int | None:
    """Return the descriptor of a file that is now held, None when it is not there or somebody else holds it."""
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_ino == path.stat().st_ino:
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except FileNotFoundError:
            pass  # its holder removed it between the two calls
        os.close(descriptor)


def _read_record(path: Path) -> BedRecord | None:
    """Return what a bed's file says, None when it says nothing yet or something else."""
    try:
        raw = path.read_bytes()[:RECORD_BYTES_MAX]
        return BedRecord.from_json(json.loads(raw)) if raw else None
    except (OSError, ValueError, FieldError, ConfigError):
        return None


def _kill_marked(token: str) -> list[int]:
    """Kill every process of this user that carries the token in its environment."""
    marker = f"{TOKEN_VARIABLE}={token}".encode()
    killed = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if marker in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)
                killed.append(int(entry.name))
        except OSError:
            continue  # another user's, or gone
    return killed
