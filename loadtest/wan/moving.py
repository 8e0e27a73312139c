"""Clients at the edge of a gateway bed that have to move: a path gets longer, a region is cut off and comes back.

The topic is at home in ap, which is not cut, and is drained for clients: so they are in us or in eu.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict
from typing import Any, Final

from loadtest.load.programs import read_all
from loadtest.wan.gateway_bed import EDGE, HTTP_PORT, KAFKA_PORT, REGIONS, GatewayBed, Lost
from loadtest.wan.moving_client import TOPIC, Task
from loadtest.wan.moving_core import PERIOD_S, Event, kept_row, lost, moves, regions_at, silence_row, silences

HOME: Final = "ap"
TURNS: Final = ("us", "eu")
SETTLED_S: Final = 310.0  # a client that has a region stays for five minutes
STEP_MS: Final = 50  # the round trip of edge and us, of 20, after the step
STEP_S: Final = 480.0
CUT_S: Final = 10.0
GONE_S: Final = 15.0
RETURN_S: Final = 420.0
SHARES_EVERY_S: Final = 60
START_S: Final = 120.0
END_S: Final = 60.0


class Clients:
    """Processes at the edge, and what they wrote down."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._processes: list[subprocess.Popen[str]] = []
        self._threads: list[threading.Thread] = []

    def start(self, bed: GatewayBed, task: Task) -> None:
        """Start one that does a task."""
        process = bed.inside(EDGE, sys.executable, "-m", "loadtest.wan.moving_client", stdin=subprocess.PIPE)
        assert process.stdin is not None
        process.stdin.write(json.dumps(asdict(task)) + "\n")
        process.stdin.flush()
        self._processes.append(process)
        for work in (self._take, self._say):
            self._threads.append(threading.Thread(target=work, args=(process,), daemon=True))
            self._threads[-1].start()

    def end(self) -> None:
        """Let them finish. Raises RuntimeError: one has failed."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        codes = [process.wait(END_S) for process in self._processes]
        for thread in self._threads:
            thread.join()
        if any(codes):
            raise RuntimeError(f"clients ended with {codes}")

    def region_of(self, kind: str) -> str:
        """Return where a kind of client is."""
        rows = [event for event in self.events if event.kind == kind and event.what == "region"]
        return rows[-1].value if rows else ""

    def _take(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.events.append(Event(**json.loads(line)))

    @staticmethod
    def _say(process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            if not line.startswith("%"):  # librdkafka tells of every connection
                print(f"    {line.rstrip()}", file=sys.stderr)


async def step(bed: GatewayBed, *, count: int, gateway: str) -> AsyncIterator[str]:
    """Make the path of edge and us 30 ms longer, so that eu is nearer by 10 ms; tell who moves and when."""
    async with _followers(bed, count, gateway) as clients:
        await asyncio.sleep(SETTLED_S)
        yield f"before: {_shares(clients, time.monotonic_ns())}"
        at_ns = await bed.wan_at_ns("slow", EDGE, "us", "--rtt", f"{STEP_MS}ms")
        await asyncio.sleep(STEP_S)
        moved = moves(clients.events, at_ns)
        first = sorted(rows[0][0] for rows in moved.values())
        times = f"after {first[0]:.0f} to {first[-1]:.0f} s, half by {first[len(first) // 2]:.0f} s" if first else ""
        yield f"20 -> {STEP_MS} ms: {len(moved)} of {count} moved {times}"
        yield f"moves of each: {sorted(map(len, moved.values()))}; now {_shares(clients, time.monotonic_ns())}"


async def come_back(bed: GatewayBed, *, count: int, gateway: str) -> AsyncIterator[str]:
    """Cut us off for a moment; tell when its clients leave, and when they are back."""
    async with _followers(bed, count, gateway) as clients:
        await asyncio.sleep(GONE_S)
        yield f"before: {_shares(clients, time.monotonic_ns())}"
        at_ns = await bed.wan_at_ns("cut", "us")
        await asyncio.sleep(GONE_S)
        healed_ns = await bed.wan_at_ns("heal")
        left = sorted(rows[0][0] for rows in moves(clients.events, at_ns).values())
        times = f"after {left[0]:.1f} to {left[-1]:.1f} s" if left else ""
        yield f"us cut off for {(healed_ns - at_ns) / 1e9:.0f} s: {len(left)} of {count} left it {times}"
        for second in range(0, int(RETURN_S) + 1, SHARES_EVERY_S):
            due_ns = healed_ns + second * 1_000_000_000
            await asyncio.sleep(max(0.0, (due_ns - time.monotonic_ns()) / 1e9))
            yield f"  {second:3} s after the heal: {_shares(clients, due_ns)}"
        yield f"moves of each: {sorted(map(len, moves(clients.events, at_ns).values()))}"


async def cuts(bed: GatewayBed, *, count: int, rate: float, kinds: Sequence[str], jars: str = "") -> AsyncIterator[str]:
    """Cut off the region that clients are in, again and again, under load; tell how long nothing came. Raises Lost."""
    tasks = [_task(bed, kind, rate=rate / len(kinds), jars=jars) for kind in kinds]
    met: dict[int, set[str]] = {}
    async with _started(bed, tasks, lambda clients: all(clients.region_of(kind) for kind in kinds)) as clients:
        await asyncio.sleep(GONE_S)
        for _ in range(count):
            regions = {kind: clients.region_of(kind) for kind in kinds}
            region = Counter(regions.values()).most_common(1)[0][0]
            at_ns = await bed.wan_at_ns("cut", region)
            met[at_ns] = {kind for kind in kinds if regions[kind] == region}
            await asyncio.sleep(CUT_S)
            await bed.wan_at_ns("heal")
            await asyncio.sleep(PERIOD_S - CUT_S)
            yield f"cut of {region}, where {', '.join(sorted(met[at_ns]))} were: now {_where(clients, kinds)}"
    stored = await asyncio.to_thread(_stored, bed)
    sent = len({event.value for event in clients.events if event.what in ("acked", "failed")})
    yield f"{len(met)} cuts of {CUT_S:.0f} s, {sent} records at {rate:g}/s; from the last good one to the first after:"
    for (kind, what), found in sorted(silences(clients.events, met).items()):
        yield silence_row(kind, what, found)
    for kind in kinds:
        yield kept_row(kind, clients.events, stored)
    if gone := lost(clients.events, stored):
        raise Lost(f"{len(gone)} records that were acknowledged are lost")


def _followers(bed: GatewayBed, count: int, gateway: str) -> AbstractAsyncContextManager[Clients]:
    task = _task(bed, "followers", count=count, gateway=gateway)
    return _started(bed, [task], lambda clients: regions_at(clients.events, time.monotonic_ns()).total() >= count)


@asynccontextmanager
async def _started(
    bed: GatewayBed, tasks: Sequence[Task], are_there: Callable[[Clients], bool]
) -> AsyncIterator[Clients]:
    """Make the topic, start clients and wait until they are there; they end with the block."""
    await _prepare(bed)
    clients = Clients()
    try:
        for task in tasks:
            clients.start(bed, task)
        async with asyncio.timeout(START_S):
            while not are_there(clients):
                await asyncio.sleep(0.2)
        yield clients
    finally:
        await asyncio.to_thread(clients.end)


async def _prepare(bed: GatewayBed) -> None:
    """Make the topic, and let its home be no choice."""
    await asyncio.to_thread(bed.ask, "/v1/topics", {"name": TOPIC, "partitions": 1, "home": HOME})
    await asyncio.to_thread(bed.ask, "/v1/routes/drain", {"subject": HOME, "value": "clients"})
    async with asyncio.timeout(START_S):
        for region in REGIONS:
            while not (await asyncio.to_thread(bed.ask, "/v1/routes", address=_http(bed, region)))["rules"]:
                await asyncio.sleep(1)


def _http(bed: GatewayBed, region: str) -> str:
    return f"{bed.address(region)}:{HTTP_PORT}"


def _task(bed: GatewayBed, kind: str, *, gateway: str = TURNS[0], **more: Any) -> Task:
    """Return a task whose first gateway is that of a region."""
    places = sorted((*TURNS, HOME), key=lambda region: region != gateway)
    hosts = {bed.address(region, 1): region for region in REGIONS}
    gateways = [(f"https://{_http(bed, region)}", f"{bed.address(region)}:{KAFKA_PORT}") for region in places]
    return Task(**asdict(bed.login), kind=kind, gateways=gateways, hosts=hosts, **more)


def _shares(clients: Clients, at_ns: int) -> str:
    rows = sorted(regions_at(clients.events, at_ns).items())
    return ", ".join(f"{number} in {region}" for region, number in rows)


def _where(clients: Clients, kinds: Sequence[str]) -> str:
    return ", ".join(f"{kind} in {clients.region_of(kind)}" for kind in kinds)


def _stored(bed: GatewayBed) -> Counter[str]:
    """Return how often each record is in the topic; as its home is drained for clients, another region may say so."""
    home = f"{bed.address(HOME, 1)}:{bed.endpoints['regions'][HOME]['kafka'][0].rpartition(':')[2]}"
    return Counter(value.decode() for value in read_all(home, TOPIC, bed.login.rdkafka))
