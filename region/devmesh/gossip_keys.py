"""The keys of a development mesh's pools: DIR/gossip, made on the first start with gossip.

Every process has files of its own, because it writes its file when keys are rotated. A file that is missing is a copy
of another one's of the pool: a key that was rotated away must not come back.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from georelay.errors import ConfigError
from mesh.gossip.keyring import Keyring
from mesh.gossip.keyring_file import KeyringFile
from region.devmesh.plan_core import MeshPlan

FOLDER: Final = "gossip"
KEY_BYTES: Final = 32
GATEWAY: Final = "gateway"


@dataclass(frozen=True, slots=True, kw_only=True)
class DevKeys:
    """Where the files are; `name` is that of a process, "us-1" or "gateway"."""

    directory: Path

    def lan(self, name: str) -> Path:
        """Return the keyring file of a process for the pool of its region."""
        return self.directory / f"{name}.lan.keyring"

    def wan(self, name: str) -> Path:
        """Return that for the pool of all brokers."""
        return self.directory / f"{name}.wan.keyring"


def prepare_keys(directory: Path, plan: MeshPlan) -> DevKeys:
    """Make what is missing. Raises ConfigError."""
    keys = DevKeys(directory=directory / FOLDER)
    try:
        keys.directory.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make {keys.directory}: {error.strerror}") from error
    _fill([keys.wan(broker.name) for broker in plan.brokers])
    for number, region in enumerate(plan.regions):
        names = [broker.name for broker in region.brokers] + ([GATEWAY] if number == 0 else [])
        _fill([keys.lan(name) for name in names])
    return keys


def _fill(paths: Sequence[Path]) -> None:
    """Give every file of one pool its keys: those of a file that is there, or a new one."""
    there = next((path for path in paths if path.exists()), None)
    keyring = Keyring([secrets.token_bytes(KEY_BYTES)]) if there is None else KeyringFile(there).keyring
    assert keyring is not None, "the file is there"
    text = f"{keyring.to_json()}\n"
    for path in paths:
        if not path.exists():
            _write(path, text)


def _write(path: Path, text: str) -> None:
    beside = path.with_name(f"{path.name}.new")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
