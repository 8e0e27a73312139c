"""The snapshot of one member on disk: appended to while it runs, rewritten when it has grown.

Rule 1: a write is handed to the operating system and not synced: it survives the death of the process, and what a
        power cut takes is found again by the seeds.
Rule 2: a disk that refuses makes gossip forgetful, not dead: the fault is counted and told once.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, Final

import structlog

from mesh.gossip.member import Address
from mesh.gossip.serf_core import Clocks
from mesh.gossip.snapshot_core import SNAPSHOT_BYTES_MAX, Remembered, address_line, read_snapshot
from mesh.gossip.tags import encode_tags

log = structlog.get_logger()

REWRITE_BYTES_MIN: Final = 64 * 1024
REWRITE_FACTOR: Final = 4


class SnapshotFile:
    """The file at `path`; None: nothing is remembered. `remembered` is what the last run wrote."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.faults = 0
        self.remembered = Remembered()
        self._file: BinaryIO | None = None
        self._size = self._rewrite_at = 0
        if path is not None:
            self._open(path)

    def _open(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            raw = b""
            if path.exists():
                with path.open("rb") as file:
                    raw = file.read(SNAPSHOT_BYTES_MAX)
            self.remembered, refused = read_snapshot(raw)
            if refused:
                log.warning("gossip_snapshot.lines_passed_over", path=str(path), lines=refused)
            self._rewrite(path)
        except OSError as error:
            self._failed(error)

    def member_alive(self, name: str, address: Address, tags: Mapping[str, str]) -> None:
        """Remember where a member is, and what it says of itself."""
        lines = [] if self.remembered.alive.get(name) == address else [f"alive: {name} {address_line(address)}"]
        meta = base64.b64encode(encode_tags(tags)).decode()
        if self.remembered.metas.get(name) != meta:
            lines.append(f"tags: {name} {meta}")
        self._write(lines)

    def member_reaped(self, name: str) -> None:
        """Forget a member for good."""
        self._write([f"forget: {name}"])

    def member_gone(self, name: str) -> None:
        """Forget where a member was."""
        if name in self.remembered.alive:
            self._write([f"not-alive: {name}"])

    def clocks(self, clocks: Clocks, incarnation: int) -> None:
        """Remember the clocks, if they went on."""
        numbers = {
            "clock": clocks.members,
            "event-clock": clocks.events,
            "query-clock": clocks.queries,
            "incarnation": incarnation,
        }
        known = self.remembered.numbers
        self._write([f"{word}: {number}" for word, number in numbers.items() if known.get(word, 0) < number])

    def left(self) -> None:
        """Remember that this member left by itself."""
        self._write(["leave"])

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, lines: list[str]) -> None:
        for line in lines:
            self.remembered.take(line)
        if self._file is None or self.path is None or not lines:
            return
        raw = "".join(f"{line}\n" for line in lines).encode()
        try:
            if self._size + len(raw) > self._rewrite_at:
                self._rewrite(self.path)
                return
            self._file.write(raw)
            self._file.flush()
            self._size += len(raw)
        except OSError as error:
            self._failed(error)

    def _rewrite(self, path: Path) -> None:
        """Write the shortest file that says the same beside the old one, and take its place."""
        self.close()
        raw = "".join(f"{line}\n" for line in self.remembered.lines()).encode()
        beside = path.with_name(f"{path.name}.new")
        beside.write_bytes(raw)
        os.replace(beside, path)
        self._file = path.open("ab")
        self._size = len(raw)
        self._rewrite_at = max(REWRITE_BYTES_MIN, REWRITE_FACTOR * len(raw))

    def _failed(self, error: OSError) -> None:
        self.faults += 1
        self.close()
        log.error("gossip_snapshot.failed", path=str(self.path), reason=error.strerror or str(error))
