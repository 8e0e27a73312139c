"""The keys of a pool on disk, in the form `serf agent` keeps them: a JSON list of base64, the primary first.

Rule 1: the file is replaced whole, with mode 0600; one that others may read is told of, not refused.
Rule 2: keys never appear in a text of ours.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import structlog

from georelay.errors import ConfigError
from mesh.gossip.faults import GossipFault
from mesh.gossip.keyring import Keyring

log = structlog.get_logger()

FILE_BYTES_MAX: Final = 64 * 1024
OPEN_TO_OTHERS: Final = 0o077


class KeyringFile:
    """The keyring in a file; None: plain text. ConfigError: the file is not one; the text says which and why."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.keyring: Keyring | None = None
        if path is None:
            return
        try:
            with path.open("rb") as file:
                text = file.read(FILE_BYTES_MAX + 1)
            if len(text) > FILE_BYTES_MAX:
                raise ConfigError(f"keyring file {path} is over {FILE_BYTES_MAX} bytes")
            self.keyring = Keyring.from_json(text.decode())
            if path.stat().st_mode & OPEN_TO_OTHERS:
                log.warning("gossip_keyring.open_to_others", path=str(path), advice="chmod 600")
        except OSError as error:
            raise ConfigError(
                f"keyring file {path}: {error.strerror}; `georelay keys generate --file {path}` makes one"
            ) from error
        except (GossipFault, UnicodeDecodeError) as error:
            raise ConfigError(f"keyring file {path} is not a list of keys: {error}") from error

    def write(self) -> None:
        """Write the keys down; a disk that refuses is told of, the keys stay in use."""
        if self.path is None or self.keyring is None:
            return
        beside = self.path.with_name(f"{self.path.name}.new")
        try:
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(f"{self.keyring.to_json()}\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, self.path)
        except OSError as error:
            log.error("gossip_keyring.not_written", path=str(self.path), reason=error.strerror)  # noqa: TRY400
