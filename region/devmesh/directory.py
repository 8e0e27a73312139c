"""The data directory of a development mesh: its lock, its record and the files its processes are started with.

It is its owner's alone, also one that was made more open: logs, configuration and records are nobody else's.

mesh.json        mesh id, region numbers, base port     config/NAME.toml   one per process
users.json       0600, when users were set once         logs/NAME.log      output of each process
brokers/us-1/    data of one broker                     run/NAME.pid       process ids while it runs
pki/             with --tls: authority and certificates
mesh.secret      what brokers without TLS prove to each other
gossip/          with --gossip: the keys of the pools, a file of its own for each process
traces/          what georelay-sla reads                lock               held while `georelay up` runs
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from georelay.errors import ConfigError
from georelay.ids import REGION_NUMBER_MAX, RegionNumber
from region.devmesh.plan_core import PORT_MAX, MeshRecord

RECORD_NAME: Final = "mesh.json"
RECORD_VERSION: Final = 1
RECORD_BYTES_MAX: Final = 64 * 1024
SECRET_NAME: Final = "mesh.secret"  # noqa: S105 - a file name
OWNER_ONLY: Final = 0o700
OWNER_READS: Final = 0o600
SUBDIRECTORIES: Final = ("brokers", "config", "logs", "run", "traces")


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the directory for this process, making it when it is not there.

    Raises:
        ConfigError: not a directory, not writable, not ours, or held by another `georelay up`.
    """
    try:
        directory.mkdir(mode=OWNER_ONLY, parents=True, exist_ok=True)
        _refuse_strangers(directory)
        descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, OWNER_READS)
    except OSError as error:
        raise ConfigError(f"--data: cannot use {directory}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(f"--data: another 'georelay up' runs on {directory}; stop it first") from error
        for name in SUBDIRECTORIES:
            (directory / name).mkdir(mode=OWNER_ONLY, exist_ok=True)
        _close_to_others(directory)
        yield
    finally:
        os.close(descriptor)


def _close_to_others(directory: Path) -> None:
    """Let nobody else in, whoever made the directory. Raises ConfigError."""
    try:
        if stat.S_IMODE(directory.stat().st_mode) & ~OWNER_ONLY:
            directory.chmod(OWNER_ONLY)
    except OSError as error:
        raise ConfigError(f"--data: cannot close {directory} to other users: {error.strerror}") from error


def is_locked(directory: Path) -> bool:
    """Return whether a `georelay up` runs on the directory."""
    try:
        descriptor = os.open(directory / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _refuse_strangers(directory: Path) -> None:
    """Refuse a directory that holds something else: a typing error must not fill somebody's home."""
    ours = {*SUBDIRECTORIES, "users.json", "overrides.json", "lock", "pki", "gossip", SECRET_NAME}
    strangers = [entry.name for entry in directory.iterdir() if entry.name not in ours]
    if strangers and not (directory / RECORD_NAME).exists():
        raise ConfigError(f"--data: {directory} is not empty and holds no mesh; choose an empty or a new directory")


def read_record(directory: Path) -> MeshRecord | None:
    """Return what the directory remembers of its mesh, None when it is new.

    Raises:
        ConfigError: the record cannot be read or was written by another version.
    """
    path = directory / RECORD_NAME
    try:
        with path.open("rb") as file:
            raw = file.read(RECORD_BYTES_MAX)
        value = json.loads(raw)
        if value["version"] != RECORD_VERSION:
            raise ConfigError(f"{path} has version {value['version']}; this georelay reads version {RECORD_VERSION}")
        record = MeshRecord(
            mesh_id=str(value["mesh"]),
            regions=tuple((str(row["name"]), RegionNumber(int(row["number"]))) for row in value["regions"]),
            brokers_per_region=int(value["brokers_per_region"]),
            base_port=int(value["base_port"]),
            next_region_number=int(value["next_region_number"]),
        )
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is damaged ({error}); restore it or choose another directory") from error
    numbers = [number for _, number in record.regions]
    if not numbers or not all(1 <= number <= REGION_NUMBER_MAX for number in numbers) or record.base_port > PORT_MAX:
        raise ConfigError(f"{path} is damaged (numbers {numbers}); restore it or choose another directory")
    return record


def write_record(directory: Path, record: MeshRecord) -> None:
    """Store the record. Raises ConfigError."""
    value = {
        "version": RECORD_VERSION,
        "mesh": record.mesh_id,
        "regions": [{"name": name, "number": number} for name, number in record.regions],
        "brokers_per_region": record.brokers_per_region,
        "base_port": record.base_port,
        "next_region_number": record.next_region_number,
    }
    replace_file(directory / RECORD_NAME, json.dumps(value, indent=2) + "\n")


def mesh_secret(directory: Path) -> Path:
    """Return the file of what brokers prove to each other, made when it is missing. Raises ConfigError."""
    path = directory / SECRET_NAME
    if not path.exists():
        replace_file(path, secrets.token_hex(32) + "\n")
    return path


def replace_file(path: Path, text: str) -> None:
    """Write a file whole or not at all, for its owner only: beside it, synced, then renamed.

    Raises:
        ConfigError: the file cannot be written.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, OWNER_READS)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
