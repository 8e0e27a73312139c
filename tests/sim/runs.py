"""One seed, played to its end."""

from __future__ import annotations

import gc
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from typing import Final

from tests.sim.broker_world import BrokerWorld
from tests.sim.clockwork import SimLoop
from tests.sim.coordinator_world import CoordinatorWorld
from tests.sim.geo_world import GeoWorld
from tests.sim.homes_world import HomesWorld
from tests.sim.mesh_world import MeshSettings, MeshWorld
from tests.sim.region_world import RegionSettings, RegionWorld
from tests.sim.violation import RAISED
from tests.sim.world import pinned_process

COLLECTED_EVERY: Final = 16  # worlds: each leaves circles of objects behind


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What one seed gave. `rule` is empty when every rule held."""

    seed: int
    rule: str
    detail: str
    events: int
    virtual_ns: int
    cpu_s: float
    marks: Counter[str]
    trace: list[str]
    crash: str = ""


_played = 0


def lost(seed: int) -> Outcome:
    """Return the outcome of a seed whose process did not survive it."""
    return Outcome(
        seed=seed,
        rule="process-died",
        detail="the process that played it was killed",
        events=0,
        virtual_ns=0,
        cpu_s=0.0,
        marks=Counter(),
        trace=[],
    )


def play(
    kind: str, seed: int, settings: RegionSettings | MeshSettings | None = None, *, trace: bool = False
) -> Outcome:
    """Play one seed of a kind of world; the trace is that of a failure unless `trace` wants it always."""
    global _played
    begun = time.process_time()
    world: RegionWorld | MeshWorld
    if kind == "coordinator":
        assert not isinstance(settings, MeshSettings)
        world = CoordinatorWorld(seed, settings)
    elif kind == "homes":
        assert not isinstance(settings, RegionSettings)
        world = HomesWorld(seed, settings)
    elif kind == "geo":
        assert not isinstance(settings, RegionSettings)
        world = GeoWorld(seed, settings)
    elif kind == "mesh":
        assert not isinstance(settings, RegionSettings)
        world = MeshWorld(seed, settings)
    else:
        assert not isinstance(settings, MeshSettings)
        world = RegionWorld(seed, settings)
    rule = detail = crash = ""
    RAISED.clear()
    with pinned_process(world):
        try:
            world.run()
        except Exception as error:
            rule, detail, crash = "broken", repr(error), traceback.format_exc()
            if RAISED:  # the first one; what follows it may only be its echo
                rule, detail, crash = RAISED[0].rule, RAISED[0].detail, ""
        finally:
            end_lives(world)
    outcome = Outcome(
        seed=seed,
        rule=rule,
        detail=detail,
        events=world.clockwork.events,
        virtual_ns=world.clockwork.now_ns,
        cpu_s=0.0,
        marks=world.marks,
        trace=world.trace_lines() if rule or trace else [],
        crash=crash,
    )
    _played += 1
    if _played % COLLECTED_EVERY == 0:
        del world
        gc.collect()
    outcome.cpu_s = time.process_time() - begun
    return outcome


def end_lives(world: BrokerWorld) -> None:
    """Close every coroutine that still waits, quietly: the world is over and nobody is told.

    What they clean up asks for the loop of this thread: theirs, or asyncio makes one that nobody closes.
    """
    import asyncio

    loops: list[SimLoop] = [*world.buried, *(life.loop for life in world.lives.values())]
    for loop in loops:
        loop.bury()
    for loop in loops:
        asyncio.set_event_loop(loop)
        for task in asyncio.all_tasks(loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coroutine = task.get_coro()
            try:
                coroutine.close()
            except RuntimeError:
                continue  # it awaits in its own clean-up: it ends with the last reference
    asyncio.set_event_loop(None)
    gc.collect(0)
