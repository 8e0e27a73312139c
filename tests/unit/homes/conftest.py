"""Stories of homes that move, each in a world of its own and in virtual time (model_world)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from tests.unit.homes.model_world import World
from tests.unit.homes.virtual_time import VirtualLoop


@pytest.fixture
def play() -> Iterator[Callable[..., None]]:
    """Play a story in a world of its own: play(story, seed=, regions=, automatic=)."""
    loops: list[VirtualLoop] = []

    def run(
        story: Callable[[World], Coroutine[Any, Any, None]], *, seed: int = 1, regions: int = 3, automatic: bool = False
    ) -> None:
        loop = VirtualLoop()
        loops.append(loop)
        failures: list[BaseException] = []
        loop.set_exception_handler(
            lambda _, context: failures.append(context.get("exception") or RuntimeError(context))
        )

        async def whole() -> None:
            world = World(loop, seed=seed, regions=regions, automatic=automatic)
            try:
                await world.until(lambda: world.leader is not None)
                if automatic:  # a region that never asked for a lease is not failed over
                    await world.until(lambda: all(state.keeper.holds() for state in world.states.values()))
                await story(world)
            finally:
                for state in world.states.values():
                    state.leader.deposed()
                for task in list(world.tasks):
                    task.cancel()
                await asyncio.sleep(0.01)

        loop.run_until_complete(whole())
        if failures:
            raise failures[0]

    yield run
    for loop in loops:
        loop.close()
