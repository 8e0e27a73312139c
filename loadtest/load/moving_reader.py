"""`python -m loadtest.load.moving_reader PLAN TOPIC SAVED [BEFORE]`: a reader that saves where it is.

Rule: it saves its position to a file every SAVE_S; started with what another one saved it goes on there, in its own
      region, and nowhere else.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Final

import georelay
from georelay.errors import GeorelayError, Retry
from georelay.positions import Position
from loadtest.history.history_file import HistoryWriter
from loadtest.history.operation import Kind
from loadtest.load.engine_values import Plan, name_of, read_plan
from loadtest.login import from_environment

SAVE_S: Final = 0.5
GET_S: Final = 0.2
AGAIN_S: Final = 0.2
BATCH_RECORDS: Final = 200


class MovingReader:
    """Reads partition 0 of a topic in the region of its plan."""

    def __init__(self, plan: Plan, topic: str, saved: Path, at: Position) -> None:
        self._plan, self._topic, self._saved, self._at = plan, topic, saved, at
        self._history = HistoryWriter(plan.folder / "histories" / f"{plan.worker}.history", plan.worker)
        self._saved_at = time.monotonic()

    async def read(self) -> None:
        """Read until killed. Raises GeorelayError: it cannot go on."""
        while True:
            try:
                await self._connected()
            except GeorelayError as error:
                if error.retry not in (Retry.LATER, Retry.REFRESH):
                    raise
                await asyncio.sleep(AGAIN_S)

    async def _connected(self) -> None:
        region, position = self._plan.regions[0], {(self._topic, 0): self._at}
        async with (
            georelay.connect(**self._plan.connect(region)) as mesh,
            mesh.consumer(positions=position) as consumer,
        ):
            asked: int | None = self._at.offset
            while True:
                began_ns = time.monotonic_ns()
                rows = await consumer.get_many(max_records=BATCH_RECORDS, timeout_s=GET_S)
                if rows:
                    key = f"{self._topic}/0"
                    number = self._history.invoke(Kind.FETCH, key, site=region, position=asked, at_ns=began_ns)
                    self._history.fetched(number, [(row.offset, name_of(row.value or b"")) for row in rows])
                    self._at, asked = Position(rows[-1].offset + 1, rows[-1].epoch), None
                if time.monotonic() - self._saved_at >= SAVE_S:
                    self._save()

    def _save(self) -> None:
        new = self._saved.with_suffix(".new")
        new.write_text(json.dumps({"offset": self._at.offset, "epoch": self._at.epoch}), encoding="utf-8")
        new.replace(self._saved)
        self._saved_at = time.monotonic()


def main() -> None:
    """Read."""
    plan, topic, saved, *before = sys.argv[1:]
    at = Position(0)
    if before and Path(before[0]).exists():
        at = Position(**json.loads(Path(before[0]).read_text(encoding="utf-8")))
    asyncio.run(MovingReader(read_plan(Path(plan), from_environment()), topic, Path(saved), at).read())


if __name__ == "__main__":
    main()
