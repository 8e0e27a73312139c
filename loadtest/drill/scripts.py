"""The three kinds of loss: of a region, of the link between two, of a broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Final

from georelay.client.gateway_http import GatewayError
from loadtest.campaign.mesh import NotYet, until
from loadtest.drill import evidence
from loadtest.drill.scene import AWAY_GEO, AWAY_REGION, HOME, How, Scene, Script, rest_of_fault

AUTOMATIC: Final[Mapping[str, str]] = {"failover": "auto", "min.insync.regions": "2", "protect.k": "2"}
ANSWER_S: Final = 60.0
LEADER_S: Final = 30.0


def region_loss(how: How) -> Script:
    """The home of a topic with automatic failover is lost, comes back, and is given the home again."""

    async def play(scene: Scene) -> None:
        brokers = scene.mesh.brokers_of(scene.home)
        scene.fault_ns = await (scene.mesh.cut(scene.home) if how is How.CUT else scene.mesh.kill(brokers))
        try:
            await scene.readers[scene.home].move_to(scene.others[-1])
            away = [scene.publishers[name] for name in (AWAY_REGION, AWAY_GEO)]
            try:
                await asyncio.gather(
                    *(each.until_acknowledged(epoch=scene.epoch + 1, timeout_s=ANSWER_S) for each in away)
                )
            except TimeoutError:
                scene.notes.append(f"no acknowledgement of a new epoch within {ANSWER_S:g} s")
            home = await evidence.home_of(scene.mesh, scene.topic, seen_from=scene.elsewhere)
            scene.notes.append(f"home {home.region}, epoch {home.epoch} from offset {home.start}")
            await rest_of_fault(scene)
        finally:
            scene.healed_ns = time.monotonic_ns()
            await (scene.mesh.heal(scene.home) if how is How.CUT else scene.mesh.bring_back(brokers))
        await scene.mesh.until_ready([scene.home])
        scene.marks["region_ready_s"] = _since_s(scene.healed_ns)
        _, refusals = await evidence.move_home(scene.mesh, scene.topic, scene.home)
        scene.marks["fail_back_s"] = _since_s(scene.healed_ns)
        scene.notes += [f"the move back was refused at first: {text}" for text in dict.fromkeys(refusals)]

    return Script(play=play, settings=AUTOMATIC, moves_home=True, away=frozenset({AWAY_REGION, AWAY_GEO}))


def link_cut() -> Script:
    """The link between the home and another region is cut and healed; no home moves."""

    async def play(scene: Scene) -> None:
        mirror = scene.others[0]
        scene.fault_ns = await scene.mesh.cut(scene.home, mirror)
        try:
            await rest_of_fault(scene)
        finally:
            scene.healed_ns = await scene.mesh.heal(scene.home, mirror)
        await scene.mesh.until_ready()
        scene.notes.append(f"{scene.home} and {mirror} were cut from each other")

    return Script(play=play, settings={}, moves_home=False, away=frozenset({HOME}))


def broker_loss() -> Script:
    """kill -9 of the broker that leads the topic in its home region; it comes back."""

    async def play(scene: Scene) -> None:
        leader = await _leader(scene)
        scene.fault_ns = await scene.mesh.kill([leader])
        try:
            await rest_of_fault(scene)
        finally:
            scene.healed_ns = time.monotonic_ns()
            await scene.mesh.bring_back([leader])
        await scene.mesh.until_ready([scene.home])
        scene.marks["broker_ready_s"] = _since_s(scene.healed_ns)
        scene.notes.append(f"{leader} was killed; {await _leader(scene)} leads now")

    return Script(play=play, settings={}, moves_home=False, away=frozenset({HOME, AWAY_REGION, AWAY_GEO}))


async def _leader(scene: Scene) -> str:
    async def look() -> str:
        try:
            leader = await evidence.leader_of(scene.mesh, scene.home, scene.topic)
        except GatewayError:
            leader = ""
        if not leader:
            raise NotYet(f"{scene.topic} has no leader in {scene.home}")
        return leader

    return await until(look, within_s=LEADER_S, every_s=evidence.POLL_S)


def _since_s(at_ns: int) -> float:
    return (time.monotonic_ns() - at_ns) / 1e9
