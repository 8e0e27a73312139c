"""What every simulated world has: one heap, one seed, one trace, and the rule that the first violation ends it.

Rule: a world is a function of its seed and its settings. Everything random comes from `rng`; the process around it
contributes nothing (uuid and hash order are pinned by `pinned_process`).
"""

from __future__ import annotations

import gc
import random
import traceback
import uuid
from collections import Counter, deque
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, Final

import structlog

from tests.sim.clockwork import NS_PER_MS, NS_PER_S, Clockwork
from tests.sim.violation import Violation

TRACE_ROWS: Final = 1_000
BROKEN_EVENTS: Final = ("task.broken", "group.broken", "controller.failed")  # never fine, whatever the disks do
WALL_ORIGIN_NS: Final = 1_800_000_000 * NS_PER_S


class World:
    """Clockwork, randomness, marks and trace."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.clockwork = Clockwork()
        self.marks: Counter[str] = Counter()
        self.trace: deque[tuple[int, str, tuple[object, ...]]] = deque(maxlen=TRACE_ROWS)
        self.violation: Violation | None = None

    def mark(self, name: str) -> None:
        """Count a fault or branch that was really met."""
        self.marks[name] += 1

    def note(self, what: str, *about: object) -> None:
        """Write one line of the trace."""
        self.trace.append((self.clockwork.now_ns, what, about))

    def fork(self) -> random.Random:
        """Return a generator of its own: what one part draws does not move the others."""
        return random.Random(self.rng.getrandbits(64))

    def trace_lines(self) -> list[str]:
        """Return the newest rows of the trace, for people."""
        return [
            f"{now_ns / NS_PER_MS:12.3f} ms  {what:<22} {' '.join(str(each) for each in about)}"
            for now_ns, what, about in self.trace
        ]


@contextmanager
def pinned_process(world: World) -> Iterator[None]:
    """Take out of this process what would differ between two runs: uuids, the collector, the log's output."""
    rng = world.fork()
    before, old_uuid4, old_config = gc.isenabled(), uuid.uuid4, structlog.get_config()

    def uuid4() -> uuid.UUID:
        return uuid.UUID(int=rng.getrandbits(128), version=4)

    def capture(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        name = str(event.pop("event", ""))
        if event.pop("exc_info", None):
            event["traceback"] = "\n" + traceback.format_exc()
        world.marks[name] += 1
        if name in BROKEN_EVENTS:
            Violation("broken", f"{name} {event}")  # not raised into the shipping code: it is noted by itself
        world.note(name, *(f"{key}={value}" for key, value in event.items()))
        raise structlog.DropEvent

    gc.disable()
    uuid.uuid4 = uuid4
    structlog.configure(processors=[capture], cache_logger_on_first_use=False)
    try:
        yield
    finally:
        uuid.uuid4 = old_uuid4
        structlog.configure(**old_config)
        if before:
            gc.enable()
