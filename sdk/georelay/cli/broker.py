"""`georelay broker list|add|drain|remove|config`: which brokers a region has, and what they hold.

Rule 1: drain and remove never lose a replica: the region refuses what would.
Rule 2: every command may be repeated.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final

import typer

from georelay.cli import broker_config
from georelay.cli.failure import CommandFailed
from georelay.cli.location import EndpointsOption, GatewayOption, JsonOption, UserOption, open_gateway
from georelay.cli.printing import print_json, print_outcome, print_table
from georelay.cli.regions import RegionOption, ask_regions, fail_for_silent, region_of_brokers
from georelay.cli.waiting import Look, TimeoutOption, WaitOption, wait_until_done
from georelay.client.gateway_http import GatewayHttp, JsonObject

BROKER_ID_MAX: Final = 32_767_999
COLUMNS: Final = ("region", "broker", "state", "alive", "replicas", "leaders", "moving", "kafka", "note")
EMPTY_STATES: Final = frozenset({"drained", "removed"})
ACTIVE_LOOKS_MAX: Final = 5  # a broker that is asked may learn of the drain a moment after it was decided

BrokerArgument = Annotated[int, typer.Argument(metavar="BROKER", min=1, max=BROKER_ID_MAX, help="Such as 1004.")]


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(
        help="List the brokers of regions; add, drain and remove them; write their files.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    group.command(name="list")(_list)
    group.command(name="add")(_add)
    group.command(name="drain")(_drain)
    group.command(name="remove")(_remove)
    group.command(name="config")(broker_config.config)
    app.add_typer(group, name="broker")


def _list(
    region: Annotated[str, typer.Option("--region", metavar="R", help="Only this region.")] = "",
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """List brokers and what they hold.

    Ends with 1 when a region does not answer; the others are shown all the same.
    """
    answers = ask_regions((gateway, endpoints, user), "/v1/brokers", region)
    if as_json:
        print_json({"regions": answers})
    else:
        print_table(COLUMNS, [line for answer in answers for line in broker_lines(answer)])
    fail_for_silent(answers)


def _add(
    broker: BrokerArgument,
    peers: Annotated[
        str, typer.Option("--peers", metavar="HOST:PORT", help="Its peer listener; default: the one that is known.")
    ] = "",
    region: RegionOption = "",
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """Let a broker take replicas.

    It is a new one of its region, or one that was drained or drains.
    """

    async def add() -> JsonObject:
        async with open_gateway(gateway, endpoints, user) as client:
            query = {"region": await region_of_brokers(client, [broker], region)}
            return await client.post(f"/v1/brokers/{broker}", {"peers": peers} if peers else {}, query)

    answer = asyncio.run(add())
    print_outcome(answer, f"broker {broker} may take replicas", as_json=as_json)


def _drain(
    broker: BrokerArgument,
    region: RegionOption = "",
    wait: WaitOption = False,
    timeout_s: TimeoutOption = 0.0,
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """Move every replica away.

    Other brokers of the region take them; publishing and reading go on meanwhile.
    """

    async def drain() -> JsonObject:
        async with open_gateway(gateway, endpoints, user) as client:
            name = await region_of_brokers(client, [broker], region)
            row = await client.post(f"/v1/brokers/{broker}/drain", {}, {"region": name})
            if wait:
                await _wait_drained(client, broker, name, timeout_s)
                row = await _row(client, broker, name) or row
            return row

    answer = asyncio.run(drain())
    print_outcome(answer, f"broker {broker} is {answer.get('state', 'draining')}{_held(answer)}", as_json=as_json)


def _remove(
    broker: BrokerArgument,
    region: RegionOption = "",
    wait: Annotated[
        bool, typer.Option("--wait", help="Drain it first and wait until it holds nothing; Ctrl-C removes nothing.")
    ] = False,
    timeout_s: TimeoutOption = 0.0,
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """Forget an empty broker.

    It comes back only as a new one, with an empty disk.
    """

    async def remove() -> JsonObject:
        async with open_gateway(gateway, endpoints, user) as client:
            name = await region_of_brokers(client, [broker], region)
            if wait:
                await client.post(f"/v1/brokers/{broker}/drain", {}, {"region": name})
                await _wait_drained(client, broker, name, timeout_s)
            return await client.delete(f"/v1/brokers/{broker}", {"region": name})

    answer = asyncio.run(remove())
    print_outcome(answer, f"removed broker {broker}", as_json=as_json)


def broker_lines(answer: JsonObject) -> list[dict[str, str]]:
    """Return the table rows of one region; one that did not answer has one row that says why. Pure."""
    if "error" in answer:
        return [{"region": answer["region"], "note": answer["error"]}]
    return [
        {
            "region": str(answer.get("region", "")),
            "broker": str(row.get("id", "")),
            "state": str(row.get("state", "")),
            "alive": "yes" if row.get("alive") else "no",
            "replicas": "-" if row.get("replicas") is None else str(row["replicas"]),
            "leaders": str(row.get("leaders", "")),
            "moving": str(row.get("moving") or ""),
            "kafka": str(row.get("kafka", "")),
            "note": str(row.get("detail", "")),
        }
        for row in answer.get("brokers") or ()
    ]


async def _wait_drained(client: GatewayHttp, broker: int, region: str, timeout_s: float) -> None:
    """Wait until the region says that the broker holds nothing (CommandFailed: somebody added it again)."""
    active_looks = 0

    async def look() -> Look:
        nonlocal active_looks
        row = await _row(client, broker, region)
        state = "removed" if row is None else row.get("state")
        active_looks = active_looks + 1 if state == "active" else 0
        if active_looks > ACTIVE_LOOKS_MAX:
            raise CommandFailed(f"broker {broker} was added again meanwhile; it is not drained")
        if row is None or state in EMPTY_STATES:
            return Look(left=0, text="done")
        held = row.get("replicas")
        # The last replica may be gone a moment before the state says so: something is left until it does.
        return Look(left=max(1, held or 0), text=f"{'?' if held is None else held} replicas left{_note(row)}")

    await wait_until_done(look, what=f"draining broker {broker}", timeout_s=timeout_s)


async def _row(client: GatewayHttp, broker: int, region: str) -> dict[str, Any] | None:
    """Return the broker as its region lists it, None when it does not."""
    rows: list[dict[str, Any]] = (await client.get("/v1/brokers", {"region": region})).get("brokers") or []
    return next((row for row in rows if row.get("id") == broker), None)


def _held(row: JsonObject) -> str:
    held = row.get("replicas")
    return f" and holds {held} replicas{_note(row)}" if held else _note(row)


def _note(row: JsonObject) -> str:
    return f" ({row['detail']})" if row.get("detail") else ""
