"""Places at a gateway: whoever takes all he can get leaves some to everybody else."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from gateway.routing.places import Callers, Places
from georelay.credentials import basic
from georelay.errors import Busy


async def take(stack: AsyncExitStack, places: Places, caller: str) -> int:
    """Take all that a caller gets; return how many."""
    count = 0
    while True:
        try:
            await stack.enter_async_context(places.of(caller, patience_s=0))
        except Busy:
            return count
        count += 1


async def test_one_who_takes_all_he_can_get_has_half_and_the_next_one_half_of_the_rest() -> None:
    places = Places(1_000)
    async with AsyncExitStack() as stack:
        assert [await take(stack, places, name) for name in ("ann", "bob", "cid", "ann")] == [500, 250, 125, 0]
    async with AsyncExitStack() as stack:
        assert await take(stack, places, "ann") == 500  # all were given back


async def test_who_waits_is_let_in_when_its_caller_has_few_enough_and_callers_take_turns() -> None:
    places, entered = Places(2), []

    async def work(caller: str, end: asyncio.Event) -> None:
        async with places.of(caller, patience_s=5):
            entered.append(caller)
            await end.wait()

    ends = {name: asyncio.Event() for name in ("first", "ann", "bob")}
    tasks = [asyncio.create_task(work("ann", ends["first"]))]
    await asyncio.sleep(0)
    tasks += [asyncio.create_task(work(name, ends[name])) for name in ("ann", "ann", "bob")]
    await asyncio.sleep(0)
    assert entered == ["ann", "bob"]  # the last place is none for who has one
    ends["bob"].set()
    await asyncio.sleep(0.01)
    assert entered == ["ann", "bob"]
    ends["first"].set()
    await asyncio.sleep(0.01)
    assert entered == ["ann", "bob", "ann"]
    ends["ann"].set()
    await asyncio.gather(*tasks)
    assert entered == ["ann", "bob", "ann", "ann"]


async def test_who_leaves_while_it_waits_holds_up_nobody() -> None:
    places = Places(1)
    async with places.of("ann", patience_s=0):
        left = [asyncio.create_task(take(AsyncExitStack(), places, "ann")) for _ in range(2)]
        waits = asyncio.create_task(take_one(places, "bob"))
        gone = asyncio.create_task(take_one(places, "cid"))
        await asyncio.sleep(0.01)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        assert await asyncio.gather(*left) == [0, 0]
    await asyncio.wait_for(waits, 1)
    await take_one(places, "dan")


async def take_one(places: Places, caller: str) -> None:
    async with places.of(caller, patience_s=5):
        pass


async def test_who_is_cancelled_just_as_it_is_let_in_gives_its_place_back() -> None:
    places = Places(1)
    async with places.of("ann", patience_s=0):
        waits = asyncio.create_task(take_one(places, "bob"))
        await asyncio.sleep(0)
    waits.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waits
    await take_one(places, "cid")


def test_a_caller_is_a_user_once_a_broker_let_it_in_and_an_address_before() -> None:
    is_required = True
    callers = Callers(required=lambda: is_required)
    ann, token = basic("ann", "secret"), "bearer grt_1"
    assert callers.of(ann, "10.0.0.1") == callers.of(None, "10.0.0.1") == "address 10.0.0.1"
    for authorization in (ann, token, None):
        callers.let_in(authorization)
    assert callers.of(ann, "10.0.0.1") == callers.of(ann, "10.0.0.2") == "user ann"
    assert callers.of(basic("ann", "guess"), "10.0.0.1") == "address 10.0.0.1"
    assert callers.of(token, "10.0.0.1").startswith("token ") and "grt_1" not in callers.of(token, "10.0.0.1")
    is_required = False
    assert callers.of(ann, "10.0.0.1") == "address 10.0.0.1"
