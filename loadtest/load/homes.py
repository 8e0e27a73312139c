"""What a campaign asks and does about homes and orphan branches while the home of a topic is lost, and afterwards."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final

from loadtest.campaign.mesh import CampaignFailed, NotYet, until
from loadtest.load.engine_values import name_of

if TYPE_CHECKING:
    from loadtest.load.stage import Stage

MOVED_S: Final = 60.0
READY_S: Final = 90.0
BACK_S: Final = 120.0
ASK_S: Final = 15.0
HOME_BACK: Final = "home back"
Row = dict[str, Any]


async def home_of(stage: Stage, topic: str, *, but: str = "") -> str:
    """Return the home of a topic as the first broker knows it that answers outside of a region, "" when none does."""
    for region in stage.regions:
        for address in stage.admins(region).values() if region != but else ():
            if (told := await stage.ask(address, f"/v1/homes?topic={topic}")) and told["homes"]:
                return str(told["homes"][0]["home"])
    return ""


async def until_moved(stage: Stage, topic: str, lost: str) -> None:
    """Wait until other regions have another home of a topic; that there is none is noted, too."""

    async def look() -> None:
        if await home_of(stage, topic, but=lost) in ("", lost):
            raise NotYet(f"no other region became home of {topic}")

    try:
        await until(look, within_s=MOVED_S)
    except CampaignFailed as error:
        stage.note(what=str(error), of=lost)  # publishers without an answer say the same


async def until_ready(stage: Stage, *regions: str) -> None:
    """Wait until every broker of these regions is ready (CampaignFailed)."""

    async def look() -> None:
        for region in regions:
            for name, address in stage.admins(region).items():
                if not (answer := await stage.ask(address, "/v1/status")) or not answer["ready"]:
                    raise NotYet(f"{name} is not ready")

    await until(look, within_s=READY_S)


async def bring_back(stage: Stage, topic: str, home: str) -> None:
    """Give a region its home back, as planned, once its brokers are ready; note how long that took (CampaignFailed)."""
    began, refused = time.monotonic(), list[str]()

    async def back() -> None:
        try:
            await stage.cli("home", "move", topic, home)
        except CampaignFailed as error:
            refused.append(str(error))
        if await home_of(stage, topic, but=home) != home:
            raise NotYet(f"the home of {topic} does not go back to {home}: {refused[-1:]}")

    await until_ready(stage, home)
    ready_s = time.monotonic() - began
    await until(back, within_s=BACK_S)
    took = {"region_ready_s": ready_s, "fail_back_s": time.monotonic() - began}
    stage.note(what=HOME_BACK, of=topic, refused=list(dict.fromkeys(refused)), **took)


async def keep_branches(stage: Stage) -> None:
    """Write down every orphan branch of the campaign's topics, with its records (CampaignFailed)."""
    with (stage.folder / "orphans.jsonl").open("w", encoding="utf-8") as file:
        for topic in stage.campaign.topics:
            for region in stage.regions:
                answer = await asked(stage, f"/v1/orphans?region={region}&topic={topic.name}")
                for row in answer["branches"]:
                    where = f"{topic.name}/{row['partition']}"
                    records = await _exported(stage, region, f"{where}/{row['epoch']}")
                    told = {"region": region, "key": where, "epoch": row["epoch"], "listed": row["records"]}
                    file.write(json.dumps(told | {"records": records}) + "\n")


async def _exported(stage: Stage, region: str, branch: str) -> list[tuple[int, int, str]]:
    rows: list[tuple[int, int, str]] = []
    offset = -1
    while True:
        answer = await asked(stage, f"/v1/orphans/{branch}?region={region}&format=json&offset={offset}")
        rows += [(row["offset"], row["epoch"], name_of(str(row["value"]).encode())) for row in answer["records"]]
        if answer["next_offset"] == offset:
            return rows
        offset = answer["next_offset"]


async def asked(stage: Stage, path: str) -> Row:
    """Return what the gateway answers, as soon as it does (CampaignFailed)."""

    async def ask() -> Row:
        if (answer := await stage.ask(stage.endpoints["gateway"]["http"][0], path)) is None:
            raise NotYet(f"the gateway does not answer {path}")
        return answer

    return await until(ask, within_s=ASK_S)
