"""`georelay members|rtt|event|query|force-leave`: the pools that brokers gossip in, asked through the gateway.

The pool is `lan`, one per region, or `wan`, all brokers of the mesh. A broker of --region is asked, of the nearest
region without it. `members` shows all brokers unless a region or a pool is named. What gossip says is a hint: nothing
that is stored depends on it.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from georelay.cli import gossip_keys
from georelay.cli.asking import ask
from georelay.cli.failure import EXIT_ERROR, EXIT_USAGE, CommandFailed
from georelay.cli.gossip_keys import PoolOption, RegionOption
from georelay.cli.location import EndpointsOption, GatewayOption, JsonOption, UserOption
from georelay.cli.printing import print_json, print_line, print_table
from georelay.client.gateway_http import GatewayError, JsonObject

WAN: Final = "wan"
COLUMNS: Final = ("member", "status", "address", "rtt ms", "region", "role", "note")
SHOWN_TAGS: Final = frozenset(
    {"cl", "rg", "id", "role", "v", "ex", "kafka", "grpc", "admin", "link", "peers", "wan", "lan"}
)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(name="members")(_members)
    app.command(name="rtt")(_rtt)
    app.command(name="event")(_event)
    app.command(name="query")(_query)
    app.command(name="force-leave")(_force_leave)
    gossip_keys.register(app)


def _members(
    pool: PoolOption = "",
    region: RegionOption = "",
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """List the brokers of all regions; with --region or --pool the members of that pool."""
    where = (gateway, endpoints, user)
    try:
        answer = ask_gossip(where, "GET", "members", pool=pool or ("" if region else WAN), region=region)
    except GatewayError as error:
        if pool or region or error.code != "BAD_REQUEST":
            raise
        answer = ask_gossip(where, "GET", "members", pool="", region="")  # a mesh without a pool of all brokers
    if as_json:
        print_json(answer)
        return
    print_table(COLUMNS, member_lines(answer))
    if not (pool or region):
        print_line("(gateways are in the pool of their region: --region R)")


def member_lines(answer: JsonObject) -> list[dict[str, str]]:
    """Return the table rows of a pool. Pure."""
    return [_member_line(member, own=str(answer.get("self", ""))) for member in answer.get("members") or ()]


def _member_line(member: dict[str, Any], *, own: str) -> dict[str, str]:
    tags: dict[str, str] = member.get("tags") or {}
    rtt_ms = member.get("rtt_ms")
    notes = ["asked"] if member.get("name") == own else []
    if tags.get("ready") == "0":
        notes.append("not ready")
    if tags.get("stalled"):
        notes.append(f"main loop {tags['stalled']}")
    notes += [f"{name}={text}" for name, text in tags.items() if name not in SHOWN_TAGS | {"ready", "stalled"}]
    return {
        "member": str(member.get("name", "")),
        "status": str(member.get("status", "")),
        "address": str(member.get("address", "")),
        "rtt ms": "" if rtt_ms is None else f"{rtt_ms:.2f}",
        "region": tags.get("rg", ""),
        "role": tags.get("role", ""),
        "note": ", ".join(notes),
    }


def _rtt(
    to: Annotated[str, typer.Argument(metavar="MEMBER", help="A name that `georelay members` lists.")],
    source: Annotated[str, typer.Argument(metavar="[FROM]", help="Default: the broker that is asked.")] = "",
    pool: PoolOption = "",
    region: RegionOption = "",
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """Estimate the round trip between two members from their coordinates."""
    query = {"to": to} | ({"from": source} if source else {})
    answer = ask_gossip((gateway, endpoints, user), "GET", "rtt", pool=pool, region=region, query=query)
    if as_json:
        print_json(answer)
        return
    if answer.get("rtt_ms") is None:
        raise CommandFailed(f"nothing is known yet of the way {answer['from']} - {answer['to']}", exit_code=EXIT_ERROR)
    print_line(f"{answer['from']} - {answer['to']}: {answer['rtt_ms']:.3f} ms (estimated)")


def _event(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    payload: Annotated[str, typer.Argument(metavar="[PAYLOAD]", help="At most 512 bytes with the name.")] = "",
    coalesce: Annotated[bool, typer.Option("--coalesce", help="Only the newest of this name matters.")] = False,
    pool: PoolOption = "",
    region: RegionOption = "",
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
) -> None:
    """Tell every member of a pool something small."""
    body = {"name": name, "payload": payload, "coalesce": coalesce}
    answer = ask_gossip((gateway, endpoints, user), "POST", "events", pool=pool, region=region, body=body)
    print_line(f"event {answer['name']} is on its way to the pool {answer['pool']}")


def _query(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Brokers answer mesh-status.")] = "mesh-status",
    payload: Annotated[str, typer.Argument(metavar="[PAYLOAD]")] = "",
    timeout_s: Annotated[
        float, typer.Option("--timeout", metavar="S", min=0, max=60, help="0: by the pool's size.")
    ] = 0,
    member: Annotated[list[str] | None, typer.Option("--member", metavar="M", help="Ask only these.")] = None,
    tag: Annotated[
        list[str] | None, typer.Option("--tag", metavar="TAG=REGEX", help="Ask members whose tag matches.")
    ] = None,
    pool: PoolOption = "",
    region: RegionOption = "",
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """Ask the members of a pool and show who answered what."""
    body = {
        "name": name,
        "payload": payload,
        "timeout_ms": round(timeout_s * 1000),
        "members": list(member or ()),
        "tags": dict(_tag_filter(text) for text in tag or ()),
    }
    answer = ask_gossip((gateway, endpoints, user), "POST", "queries", pool=pool, region=region, body=body)
    if as_json:
        print_json(answer)
        return
    answers: dict[str, str] = answer.get("answers") or {}
    heard = sorted({*answer.get("acknowledged", ()), *answers})
    print_table(("member", "answer"), [{"member": name, "answer": answers.get(name, "")} for name in heard])


def _tag_filter(text: str) -> tuple[str, str]:
    tag, separator, expression = text.partition("=")
    if not separator or not tag:
        raise CommandFailed(f"--tag must be TAG=REGEX, not {text!r}", exit_code=EXIT_USAGE)
    return tag, expression


def _force_leave(
    member: Annotated[str, typer.Argument(metavar="MEMBER", help="One that failed and will not come back.")],
    prune: Annotated[bool, typer.Option("--prune", help="Forget it at once.")] = False,
    pool: PoolOption = "",
    region: RegionOption = "",
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
) -> None:
    """Say for a member that failed that it has left.

    Nothing more: its replicas and its vote are `georelay broker remove`.
    """
    body = {"member": member, "prune": prune}
    answer = ask_gossip((gateway, endpoints, user), "POST", "force-leave", pool=pool, region=region, body=body)
    print_line(f"{answer['member']} has left the pool {answer['pool']}{', forgotten' if prune else ''}")


def ask_gossip(
    location: tuple[str, str, str],
    method: str,
    what: str,
    *,
    pool: str,
    region: str,
    query: dict[str, str] | None = None,
    body: object = None,
) -> JsonObject:
    """Return the answer of a broker to one question about a pool (GatewayError, CommandFailed)."""
    parameters = {**(query or {}), **({"pool": pool} if pool else {}), **({"region": region} if region else {})}
    return ask(location, method, f"/v1/gossip/{what}", body, parameters)
