"""What is broken right now, as a small JSON file that a test writes and the broker polls.

    {"version": 1, "generation": 7, "wall_step_ms": -30000, "free_bytes": 65536, "write_delay_ms": 0,
     "sync_delay_ms": 250, "volatile_writes": true, "loop_hold_ms": 0}

Every key but the first two has a default that breaks nothing. The broker answers by writing the generation that it
obeys into the file `<control file>.applied`. The settings survive a restart of the broker, as a wrong clock does.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, Literal

import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from georelay.errors import ConfigError

log = structlog.get_logger()

POLL_SECONDS: Final = 0.02
DELAY_MS_MAX: Final = 60_000
STEP_MS_MAX: Final = 10 * 365 * 24 * 3_600_000
_Delay = Annotated[int, Field(ge=0, le=DELAY_MS_MAX)]


class FaultSettings(BaseModel):
    """One state of everything that can be broken.

    Args:
        generation: counted up by whoever writes the file.
        wall_step_ms: added to the wall clock; durations are not touched.
        free_bytes: what the disk has left from the moment this generation is applied; None: as much as it has.
        write_delay_ms, sync_delay_ms: waited before each write and each sync.
        volatile_writes: what was not synced is lost when the process is killed.
        lying_syncs: a sync returns and has done nothing; only with volatile_writes does that lose anything.
        loop_hold_ms: the main loop stands still for so long, once, when a running broker applies this generation.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    version: Literal[1] = 1
    generation: Annotated[int, Field(ge=0)] = 0
    wall_step_ms: Annotated[int, Field(ge=-STEP_MS_MAX, le=STEP_MS_MAX)] = 0
    free_bytes: Annotated[int, Field(ge=0)] | None = None
    write_delay_ms: _Delay = 0
    sync_delay_ms: _Delay = 0
    volatile_writes: bool = False
    lying_syncs: bool = False
    loop_hold_ms: _Delay = 0


def read_settings(path: Path) -> FaultSettings:
    """Read a control file.

    Raises:
        ConfigError: it is missing, or not as described above.
    """
    try:
        return FaultSettings.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read the control file {path}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


class FaultControl:
    """Follows a control file from a thread of its own: the event loop may be the thing that hangs.

    Args:
        on_change: called with each new state, the first one included, in the constructor's or the polling thread.
    """

    def __init__(self, path: Path, *, on_change: Callable[[FaultSettings], None]) -> None:
        """Apply what the file says. Raises ConfigError."""
        self._path = path
        self._on_change = on_change
        self._stopped = threading.Event()
        self._read_last = b""
        self._poll()
        self._thread = threading.Thread(target=self._follow, name="fault-control", daemon=True)

    def start(self) -> None:
        """Follow the file from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Follow it no longer."""
        self._stopped.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._stopped.wait(POLL_SECONDS):
            try:
                self._poll()
            except ConfigError as error:  # the state before it stays; whoever waits for `.applied` notices
                log.warning("faults.refused", reason=str(error))

    def _poll(self) -> None:
        settings = read_settings(self._path)
        said = settings.model_dump_json().encode()
        if said == self._read_last:
            return
        self._on_change(settings)
        self._read_last = said
        draft = self._path.with_name(self._path.name + ".applied.tmp")
        draft.write_text(f"{settings.generation}\n", encoding="ascii")
        os.replace(draft, self._path.with_name(self._path.name + ".applied"))
        log.warning("faults.applied", **settings.model_dump(exclude_defaults=True))
