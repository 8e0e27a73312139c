"""One collector per gateway: asks brokers while somebody looks, and keeps one overview for all who do.

Rule 1: in each region one broker is asked at a time, the next one each turn, at most one per PERIOD_S, however many
        look; nobody is asked once nobody has looked for IDLE_S.
Rule 2: brokers are asked with the credentials of the last viewer who may describe the cluster; the overview holds
        nothing that needs more. They are forgotten when nobody looks.
Rule 3: the document says how many look. Their pages ask for what it does not hold, and do that less often the more they
        are: about one of them a second, however many.
Rule 4: taking in answers, and making the overview, cost at most a twentieth of the time each: after large ones the next
        come later. Neither holds up the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import aiohttp
import structlog

from gateway.console.drills import Drills
from gateway.console.layout_core import Point
from gateway.console.overview_core import overview, verdict
from gateway.console.samples import BrokerSample, JsonObject, MeshSamples, gauges_of, rows_of, taken
from gateway.rest.proxy import read_bounded
from gateway.rest.resolve import reason_of
from gateway.routing.endpoints import BrokerEndpoints
from gateway.routing.router import Router
from georelay.errors import Unavailable

PERIOD_S: Final = 1.0
IDLE_S: Final = 10.0
ANSWER_S: Final = 2.0
CONTROL_S: Final = 4.0  # a broker waits 2 s for control's leader before it says that there is none
SLOW_EVERY: Final = 5  # turns between two questions for what changes slowly: clocks, gauges, homes, control
BUSY_SHARE: Final = 20
THREAD_BYTES: Final = 65_536
WAIT_S: Final = 2.0  # how long somebody waits for a newer document
FIRST_S: Final = 3.0  # how long the first viewer waits for every region to be heard

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownFiles:
    """`live`: returns live.json; Unavailable says why not. `drills`: the last ones, or why none."""

    live: Callable[[], Awaitable[bytes]]
    drills: Callable[[], Awaitable[Drills]]


class Collector:
    """See the module.

    Args:
        files: what is shown and no broker knows.
        wall_s, monotonic_ns: clocks.
    """

    def __init__(
        self,
        mesh: str,
        router: Router,
        session: aiohttp.ClientSession,
        *,
        scheme: str = "http",
        files: ShownFiles,
        wall_s: Callable[[], float] = time.time,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._mesh = mesh
        self._router = router
        self._session = session
        self._scheme = scheme
        self._files = files
        self._wall_s = wall_s
        self._monotonic_ns = monotonic_ns
        self._brokers: dict[int, BrokerSample] = {}
        self._controls: dict[str, JsonObject] = {}
        self._homes: list[JsonObject] = []
        self._live_view: JsonObject | None = None
        self._no_live_view = ""  # why there is none
        self._drills: Drills = ([], "")
        self._places: dict[str, Point] = {}
        self._turns: dict[str, int] = {}  # region -> how often it was asked
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._slow: dict[str, asyncio.Task[None]] = {}  # the questions that may wait, of a region
        self._authorization: str | None = None
        self._looked_ns = 0
        self._looks = 0  # since the last document: each viewer waits for the next one
        self._task: asyncio.Task[None] | None = None
        self._document = b""
        self._version = 0
        self._newer = asyncio.Event()  # set, and replaced, with each document
        self._heard = asyncio.Event()  # every region was asked once

    async def overview(self, authorization: str | None, *, after: int = 0) -> bytes:
        """Return the document for somebody who may describe the cluster; it is at most PERIOD_S old.

        Args:
            after: the `version` that is known: the answer waits for the next one, WAIT_S at most.
        """
        self._looked_ns = self._monotonic_ns()
        self._looks += 1
        self._authorization = authorization
        if self._task is None or self._task.done():
            self._heard.clear()
            self._task = asyncio.get_running_loop().create_task(self._collect(), name="console-collector")
        if not self._document:
            try:
                async with asyncio.timeout(FIRST_S):
                    await self._heard.wait()
            except TimeoutError as error:
                if not self._document:
                    raise Unavailable("the brokers were not heard yet; try again") from error
        if after == self._version:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WAIT_S):
                    await self._newer.wait()
        return self._document

    async def close(self) -> None:
        """Stop asking."""
        tasks = [*self._asking.values(), *self._slow.values(), *([self._task] if self._task is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _collect(self) -> None:
        try:
            while self._monotonic_ns() - self._looked_ns < IDLE_S * 1e9:
                began_ns = self._monotonic_ns()
                cost_s = await self._turn()
                spent_s = (self._monotonic_ns() - began_ns) / 1e9
                await asyncio.sleep(max(0.05, PERIOD_S - spent_s, cost_s * BUSY_SHARE))
        finally:
            self._document, self._authorization = b"", None
            self._newer.set()

    async def _turn(self) -> float:
        """Begin to ask in every region where no answer is waited for; wait for those that come soon.

        Returns how long making the document took, seconds.
        """
        for region in self._router.ranking():
            asking = self._asking.get(region.name)
            if asking is None or asking.done():
                self._asking[region.name] = asyncio.get_running_loop().create_task(
                    self._ask(region.name), name=f"console-{region.name}"
                )
        await asyncio.wait(self._asking.values(), timeout=PERIOD_S / 2)
        regions = {region.name: region for region in self._router.ranking()}
        for name in set(self._asking) - set(regions):
            del self._asking[name]
            self._controls.pop(name, None)
        await self._look_at_live_view()
        self._drills = await self._files.drills()
        samples = self._samples()
        cost_s = await self._render(samples)
        if all(any(True for _ in samples.of_region(region)) for region in samples.regions):
            self._heard.set()
        return cost_s

    async def _look_at_live_view(self) -> None:
        try:
            self._live_view = _object(await self._files.live())
            self._no_live_view = "" if self._live_view is not None else "live_file is no live.json of georelay-sla live"
        except Unavailable as error:
            self._live_view, self._no_live_view = None, str(error)

    async def _ask(self, name: str) -> None:
        """Ask the next broker of a region."""
        region = self._router.ranking(name)[0]
        brokers = sorted((broker.endpoints for broker in region.brokers), key=lambda broker: broker.id)
        turn = self._turns.get(name, 0)
        self._turns[name] = turn + 1
        broker = brokers[turn % len(brokers)]
        status, error, took_s = await self._get(broker, "/v1/status")
        sample = taken(
            self._brokers.get(broker.id), at_ns=self._monotonic_ns(), status=await _parsed(status), error=error
        )
        self._brokers[broker.id] = sample
        slow = self._slow.get(name)
        if status and turn // len(brokers) % SLOW_EVERY == 0 and (slow is None or slow.done()):
            self._slow[name] = asyncio.get_running_loop().create_task(
                self._ask_slowly(name, broker), name=f"console-{name}-slow"
            )
        if not status:
            self._controls.pop(name, None)
        await asyncio.sleep(took_s * BUSY_SHARE)

    async def _ask_slowly(self, name: str, broker: BrokerEndpoints) -> None:
        """Ask for what changes slowly; a region that is cut off takes seconds to say what control says."""
        clocks = _object((await self._get(broker, "/v1/clocks"))[0])
        metrics = (await self._get(broker, "/metrics"))[0]
        sample = self._brokers[broker.id]
        gauges = gauges_of(metrics.decode(errors="replace")) if metrics else sample.gauges
        self._brokers[broker.id] = replace(sample, clocks=clocks or sample.clocks, gauges=gauges)
        if name == self._router.nearest:
            homes = _object((await self._get(broker, "/v1/homes"))[0])
            self._homes = self._homes if homes is None else rows_of(homes, "homes")
        control = _object((await self._get(broker, "/v1/control", wait_s=CONTROL_S))[0])
        if control is not None:
            self._controls[name] = control

    async def _get(self, broker: BrokerEndpoints, path: str, *, wait_s: float = 0.0) -> tuple[bytes, str, float]:
        """Return (the answer, why there is none, seconds of CPU that reading it takes, about)."""
        headers = {} if self._authorization is None else {"Authorization": self._authorization}
        try:
            async with self._session.get(
                f"{self._scheme}://{broker.admin}{path}",
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=wait_s or ANSWER_S),
                allow_redirects=False,
            ) as answer:
                raw = await read_bounded(answer)
                if answer.status != 200:
                    return b"", f"HTTP {answer.status}", 0.0
        except (aiohttp.ClientError, TimeoutError) as failure:
            return b"", reason_of(failure), 0.0
        return raw, "", len(raw) / 50e6  # JSON is read at some 50 MB/s

    def _samples(self) -> MeshSamples:
        known = {int(b.endpoints.id) for region in self._router.ranking() for b in region.brokers}
        return MeshSamples(
            mesh=self._mesh,
            regions=self._router.ranking(),
            brokers={broker: sample for broker, sample in self._brokers.items() if broker in known},
            controls=self._controls,
            homes=self._homes,
            live=self._live_view,
            no_live=self._no_live_view,
            drills=self._drills[0],
            no_drills=self._drills[1],
            rules=self._router.rules.in_force(),
            now_ns=self._monotonic_ns(),
            now_s=self._wall_s(),
        )

    async def _render(self, samples: MeshSamples) -> float:
        """Make the document, in a thread: a thousand partitions take some 50 ms. Returns how long it took."""
        began_ns = self._monotonic_ns()
        viewers, self._looks = max(1, self._looks), 0
        about = {"version": self._version + 1, "viewers": viewers}
        raw, self._places = await asyncio.to_thread(_rendered, samples, self._places, about)
        self._document, self._version = raw, self._version + 1
        newer, self._newer = self._newer, asyncio.Event()
        newer.set()
        return (self._monotonic_ns() - began_ns) / 1e9


def _rendered(
    samples: MeshSamples, before: dict[str, Point], about: Mapping[str, int]
) -> tuple[bytes, dict[str, Point]]:
    document = overview(samples, before=before)
    places = {row["name"]: (row["x_ms"], row["y_ms"]) for row in document["regions"]}
    said = document | {"verdict": verdict(document), **about}
    return json.dumps(said, separators=(",", ":")).encode(), places


async def _parsed(raw: bytes) -> JsonObject | None:
    """Return the object in an answer; a large one is read in a thread."""
    return await asyncio.to_thread(_object, raw) if len(raw) > THREAD_BYTES else _object(raw)


def _object(raw: bytes) -> JsonObject | None:
    try:
        document = json.loads(raw) if raw else None
    except ValueError:
        return None
    return document if isinstance(document, dict) else None
