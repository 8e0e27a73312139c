"""Where the live view stands on disk: Spark's checkpoint, and beside it what was made of every batch.

    DIR/spark/                          Spark's own: which rows are in which batch
    DIR/state/batch=00000012.json       the state after a batch; the last STATES_KEPT
    DIR/minutes/batch=00000012/part-00000.parquet   minutes that the batch closed
    DIR/late/batch=00000012/            rows of the batch that came too late for their minutes, as they were
    DIR/live.json                       what to show

Rule 1: everything of a batch has its number in its name and replaces what was there: a batch that is done again leaves
        nothing twice. The state is written last, by rename.
Rule 2: the state of batch n - 1 is there when batch n is done, again or for the first time.
Rule 3: minutes and late rows are deleted after KEPT_S: reports are made of the brokers' files, not of these.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from sla.errors import JobFailed, UsageError
from sla.live.state_core import Counts, LiveState, MinuteKey
from sla.sources.location import Location

STATES_KEPT: Final = 3
KEPT_S: Final = 24 * 3_600
LIVE_NAME: Final = "live.json"
_STATE: Final = re.compile(r"batch=([0-9]{8,})\.json")
_SWEEP_EVERY: Final = 100  # batches

MINUTES_SCHEMA: Final = pa.schema(
    [
        ("ts_s", pa.int64()), ("origin", pa.string()), ("dest", pa.string()), ("n", pa.int64()),
        ("n_good", pa.int64()), ("n_good_lo", pa.int64()), ("n_good_hi", pa.int64()), ("n_clock_unknown", pa.int64()),
        ("lat_sum_us", pa.int64()), ("lat_max_us", pa.int64()), ("probes_ok", pa.int64()), ("probes_bad", pa.int64()),
        ("hist", pa.list_(pa.struct([("b", pa.int32()), ("n", pa.int64())]))),
    ]
)  # fmt: skip


class LiveStore:
    """The directory of one live view.

    Args:
        root: made when missing.
        now_s: wall clock, seconds since 1970.
    """

    def __init__(self, root: Path, *, now_s: Callable[[], float] = time.time) -> None:
        self.root = root
        self._now_s = now_s
        self._location = Location.open(root)

    @property
    def checkpoint(self) -> Path:
        """Return the directory of Spark's checkpoint."""
        return self.root / "spark"

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the directory.

        Raises:
            UsageError: it cannot be made, another process holds it, or it is half of one.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            lock = (self.root / ".lock").open("w")
        except OSError as error:
            raise UsageError(f"--checkpoint {self.root}: {error.strerror}") from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(f"--checkpoint {self.root}: another live view runs there") from None
            if self.newest() is not None and not (self.checkpoint / "offsets").is_dir():
                raise UsageError(f"--checkpoint {self.root}: its folder `spark` is gone; delete the whole directory")
            yield

    def newest(self) -> int | None:
        """Return the number of the newest batch that is whole."""
        return max(self._states(), default=None)

    def state(self, batch: int) -> LiveState:
        """Return the state after a batch; -1: before the first.

        Raises:
            JobFailed: it is not there, or cannot be read.
        """
        if batch < 0:
            return LiveState()
        name = self._state_name(batch)
        try:
            return LiveState.decode(self._location.read(name))
        except (OSError, ValueError) as error:
            text = f"{self.root / name}: {error}; delete the whole directory to begin anew"
            raise JobFailed(text) from error

    def replace_late(self, batch: int) -> Path:
        """Return where the late rows of a batch go; nothing is there."""
        path = self.root / "late" / f"batch={batch:08d}"
        shutil.rmtree(path, ignore_errors=True)
        return path

    def commit(self, state: LiveState, closed: Mapping[MinuteKey, Counts]) -> None:
        """Write what a batch made; when this returns, the batch is done."""
        folder = self.root / "minutes" / f"batch={state.batch:08d}"
        shutil.rmtree(folder, ignore_errors=True)
        if closed:
            with self._location.writing(f"minutes/{folder.name}/part-00000.parquet") as path:
                pq.write_table(pa.Table.from_pylist(_minute_rows(closed), schema=MINUTES_SCHEMA), path)
        self._location.write_whole(self._state_name(state.batch), state.encode())
        for batch in self._states():
            if batch <= state.batch - STATES_KEPT:
                self._location.delete(self._state_name(batch))
        if state.batch % _SWEEP_EVERY == 0:
            self._sweep()

    def show(self, raw: bytes) -> None:
        """Replace live.json."""
        target, beside = self.root / LIVE_NAME, self.root / f".{LIVE_NAME}.tmp"
        beside.write_bytes(raw)
        os.replace(beside, target)

    def _states(self) -> list[int]:
        folder = self.root / "state"
        names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        return [int(match[1]) for match in map(_STATE.fullmatch, names) if match]

    @staticmethod
    def _state_name(batch: int) -> str:
        return f"state/batch={batch:08d}.json"

    def _sweep(self) -> None:
        oldest_s = self._now_s() - KEPT_S
        for path in (*(self.root / "minutes").glob("batch=*"), *(self.root / "late").glob("batch=*")):
            if path.stat().st_mtime < oldest_s:
                shutil.rmtree(path, ignore_errors=True)


def _minute_rows(closed: Mapping[MinuteKey, Counts]) -> list[dict[str, Any]]:
    names = [name for name in MINUTES_SCHEMA.names if name not in ("ts_s", "origin", "dest", "hist")]
    return [
        {"ts_s": ts_s, "origin": origin, "dest": dest, "hist": [{"b": b, "n": n} for b, n in sorted(c.hist.items())]}
        | {name: getattr(c, name) for name in names}
        for (ts_s, origin, dest), c in sorted(closed.items())
    ]
