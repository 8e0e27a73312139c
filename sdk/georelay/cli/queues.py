"""`georelay queues list|create|describe|alter|delete|purge|receive|ack|reject`. A queue belongs to one region."""

from __future__ import annotations

import os
import socket
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from georelay.cli.asking import Where, ask, listed, region_query
from georelay.cli.failure import EXIT_ERROR, EXIT_USAGE, CommandFailed
from georelay.cli.location import EndpointsOption, GatewayOption, JsonOption, UserOption
from georelay.cli.printing import cell, print_json, print_line, print_listing, print_outcome, print_table, printable
from georelay.client.gateway_http import JsonObject

QueueArgument = Annotated[str, typer.Argument(metavar="QUEUE")]
LeasesArgument = Annotated[list[str], typer.Argument(metavar="LEASE...", help="As `receive` printed them.")]
RegionOption = Annotated[str, typer.Option("--region", metavar="R", help="Whose queue; default: the nearest region's.")]
ConsumerOption = Annotated[
    str,
    typer.Option("--consumer", metavar="ID", help="Who consumes; default: this host and user. Others lose nothing."),
]
VisibilityOption = Annotated[
    int, typer.Option("--visibility-timeout-ms", metavar="MS", help="How long a lease lasts; default 30000.")
]
MaxDeliveriesOption = Annotated[
    int, typer.Option("--max-deliveries", metavar="N", help="Then a record is poison; 0: no limit; default 10.")
]
LettersOption = Annotated[
    str, typer.Option("--dead-letter-topic", metavar="TOPIC", help="Default: QUEUE-dead-letters; made if unknown.")
]
DelayOption = Annotated[int, typer.Option("--delay-ms", metavar="MS", help="Until the first delivery; default 0.")]
TtlOption = Annotated[int, typer.Option("--ttl-ms", metavar="MS", help="Until a record expires; 0: never (default).")]
DispatchOption = Annotated[
    str, typer.Option("--dispatch", metavar="round_robin|least_outstanding", help="Who gets the next record.")
]

LIST_COLUMNS: Final = ("queue", "topic", "ready", "delayed", "leased", "dead lettering", "coordinator")
CONSUMER_COLUMNS: Final = ("consumer", "leases", "waits")
PARTITION_COLUMNS: Final = ("partition", "cursor", "read", "open")
RECORD_COLUMNS: Final = ("lease", "partition", "offset", "deliveries", "key", "value")
RESULT_COLUMNS: Final = ("lease", "code")
NOT_GIVEN: Final = -1
_TABLES: Final = ("partitions", "consumers")


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(
        help="Define queues, look at them, receive and acknowledge.", no_args_is_help=True, rich_markup_mode=None
    )
    group.command(name="list")(_list)
    group.command(name="create")(_create)
    group.command(name="describe")(_describe)
    group.command(name="alter")(_alter)
    group.command(name="delete")(_delete)
    group.command(name="purge")(_purge)
    group.command(name="receive")(_receive)
    group.command(name="ack")(_acknowledge)
    group.command(name="reject")(_reject)
    app.add_typer(group, name="queues")


def _list(
    region: RegionOption = "",
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """List the queues of a region."""
    answer = ask(Where(gateway, endpoints, user), "GET", "/v1/queues", query=region_query(region))
    print_listing(listed(answer, "queues"), LIST_COLUMNS, list_line, as_json=as_json)


def _create(
    queue: QueueArgument,
    topic: Annotated[str, typer.Option("--topic", metavar="TOPIC", help="Whose records it holds.")],
    visibility_timeout_ms: VisibilityOption = NOT_GIVEN,
    max_deliveries: MaxDeliveriesOption = NOT_GIVEN,
    dead_letter_topic: LettersOption = "",
    delay_ms: DelayOption = NOT_GIVEN,
    ttl_ms: TtlOption = NOT_GIVEN,
    dispatch: DispatchOption = "",
    order: Annotated[
        str, typer.Option("--order", metavar="none|key", help="key: one record of a key at a time.")
    ] = "none",
    start: Annotated[
        str, typer.Option("--start", metavar="earliest|latest", help="Which records it begins with.")
    ] = "earliest",
    region: RegionOption = "",
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """Create a queue over a topic that is there."""
    body = settings_body(
        visibility_timeout_ms=visibility_timeout_ms,
        max_deliveries=max_deliveries,
        dead_letter_topic=dead_letter_topic,
        delay_ms=delay_ms,
        ttl_ms=ttl_ms,
        dispatch=dispatch,
    )
    body |= {"name": queue, "topic": topic, "order": order, "start": start}
    answer = ask(Where(gateway, endpoints, user), "POST", "/v1/queues", body, region_query(region))
    if as_json:
        print_json(answer)
    else:
        letters = answer.get("dead_letter_topic")
        print_line(f"created queue {queue}" + (f"; dead letters go to {letters}" if letters else ""))


def _describe(
    queue: QueueArgument,
    region: RegionOption = "",
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show a queue: its definition, how many records are in which state, how far it is, and who consumes it."""
    answer = ask(Where(gateway, endpoints, user), "GET", _path(queue), query=region_query(region))
    if as_json:
        print_json(answer)
        return
    for name, value in answer.items():
        if name not in _TABLES:
            print_line(f"{name}: {printable(value)}")
    if answer.get("partitions"):
        print_line("")
        print_table(PARTITION_COLUMNS, answer["partitions"])
    if answer.get("consumers"):
        print_line("")
        rows = [row | {"consumer": cell(row.get("consumer", ""))} for row in answer["consumers"]]
        print_table(CONSUMER_COLUMNS, rows)


def _alter(
    queue: QueueArgument,
    visibility_timeout_ms: VisibilityOption = NOT_GIVEN,
    max_deliveries: MaxDeliveriesOption = NOT_GIVEN,
    dead_letter_topic: LettersOption = "",
    delay_ms: DelayOption = NOT_GIVEN,
    ttl_ms: TtlOption = NOT_GIVEN,
    dispatch: DispatchOption = "",
    region: RegionOption = "",
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """Change a queue; what is not named stays. Delay and time to live count for records that are read from then on."""
    body = settings_body(
        visibility_timeout_ms=visibility_timeout_ms,
        max_deliveries=max_deliveries,
        dead_letter_topic=dead_letter_topic,
        delay_ms=delay_ms,
        ttl_ms=ttl_ms,
        dispatch=dispatch,
    )
    if not body:
        raise CommandFailed("name what to change, such as --visibility-timeout-ms 60000", exit_code=EXIT_USAGE)
    answer = ask(Where(gateway, endpoints, user), "PATCH", _path(queue), body, region_query(region))
    print_outcome(answer, f"changed queue {queue}", as_json=as_json)


def _delete(
    queue: QueueArgument,
    region: RegionOption = "",
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """Delete a queue; its topic and its dead-letter topic stay."""
    answer = ask(Where(gateway, endpoints, user), "DELETE", _path(queue), query=region_query(region))
    print_outcome(answer, f"deleted queue {queue}", as_json=as_json)


def _purge(
    queue: QueueArgument,
    region: RegionOption = "",
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """Be done with every record that is stored now; leases end too. The topic keeps its records."""
    answer = ask(Where(gateway, endpoints, user), "POST", f"{_path(queue)}/purge", {}, region_query(region))
    print_outcome(answer, f"purged {answer.get('purged', 0)} records of queue {queue}", as_json=as_json)


def _receive(
    queue: QueueArgument,
    count: Annotated[int, typer.Option("--max", metavar="N", min=1, max=1000, help="At most so many records.")] = 1,
    wait_ms: Annotated[int, typer.Option("--wait-ms", metavar="MS", min=0, max=30_000, help="Until the first.")] = 0,
    acknowledge: Annotated[bool, typer.Option("--ack", help="Acknowledge them once they are printed.")] = False,
    consumer: ConsumerOption = "",
    region: RegionOption = "",
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """Receive records; others do not get them until the leases are over. Prints one JSON object a line with --json."""
    where = Where(gateway, endpoints, user)
    me = consumer or default_consumer()
    query: dict[str, str | int] = {"consumer": me, "max": count, "wait_ms": wait_ms}
    answer = ask(where, "POST", f"{_path(queue)}/records", {}, query | region_query(region))
    records = answer.get("records") or []
    if as_json:
        for row in records:
            print_json(row)
    elif records:
        print_table(RECORD_COLUMNS, [record_line(row) for row in records])
    else:
        print_line("no record is ready")
    if acknowledge and records:
        body = {"action": "acknowledge", "consumer": me, "leases": [row["lease"] for row in records]}
        _settle(queue, body, where, region, as_json=False, is_quiet=True)


def _acknowledge(
    queue: QueueArgument,
    leases: LeasesArgument,
    consumer: ConsumerOption = "",
    region: RegionOption = "",
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """Be done with received records: they never come back. Ends with 1 when a lease was over already."""
    body = {"action": "acknowledge", "consumer": consumer or default_consumer(), "leases": leases}
    _settle(queue, body, Where(gateway, endpoints, user), region, as_json=as_json)


def _reject(
    queue: QueueArgument,
    leases: LeasesArgument,
    delay_ms: Annotated[int, typer.Option("--delay-ms", metavar="MS", min=0, help="Until they come back.")] = 0,
    dead_letter: Annotated[bool, typer.Option("--dead-letter", help="To the dead-letter topic, for good.")] = False,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Stands in the dead letter.")] = "",
    consumer: ConsumerOption = "",
    region: RegionOption = "",
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """Give received records back."""
    then = "dead_letter" if dead_letter else "requeue"
    body: JsonObject = {"action": "reject", "consumer": consumer or default_consumer(), "leases": leases, "then": then}
    body |= {"delay_ms": delay_ms, "reason": reason}
    _settle(queue, body, Where(gateway, endpoints, user), region, as_json=as_json)


def _settle(
    queue: str,
    body: JsonObject,
    where: Where,
    region: str,
    *,
    as_json: bool,
    is_quiet: bool = False,
) -> None:
    answer = ask(where, "POST", f"{_path(queue)}/leases", body, region_query(region))
    results = answer.get("results") or []
    if as_json:
        print_json(results)
    elif not is_quiet:
        print_table(RESULT_COLUMNS, results)
    over = sum(row.get("code") != "OK" for row in results)
    if over:
        raise CommandFailed(f"{over} of {len(results)} leases were over already", exit_code=EXIT_ERROR)


def settings_body(
    *,
    visibility_timeout_ms: int,
    max_deliveries: int,
    dead_letter_topic: str,
    delay_ms: int,
    ttl_ms: int,
    dispatch: str,
) -> dict[str, Any]:
    """Return the settings that were given, as the API wants them. Pure."""
    numbers = {
        "visibility_timeout_ms": visibility_timeout_ms,
        "max_deliveries": max_deliveries,
        "delay_ms": delay_ms,
        "ttl_ms": ttl_ms,
    }
    texts = {"dead_letter_topic": dead_letter_topic, "dispatch": dispatch}
    return {name: value for name, value in numbers.items() if value != NOT_GIVEN} | {
        name: value for name, value in texts.items() if value
    }


def default_consumer() -> str:
    """Return an id for whoever sits at this terminal; the same in every command."""
    return f"cli-{socket.gethostname()[:60]}-{os.getuid()}"


def list_line(row: dict[str, Any]) -> dict[str, str]:
    """Return the texts of one queue. Pure."""
    names = {"queue": "name", "dead lettering": "dead_lettering"}
    return {column: cell(row.get(names.get(column, column), "")) for column in LIST_COLUMNS}


def record_line(row: dict[str, Any]) -> dict[str, str]:
    """Return the texts of one record. Pure."""

    def content(name: str) -> str:
        value = row.get(f"{name}_b64", row.get(name))
        return "-" if value is None else cell(value)

    plain = {name: str(row.get(name, "")) for name in ("lease", "partition", "offset", "deliveries")}
    return plain | {"key": content("key"), "value": content("value")}


def _path(queue: str) -> str:
    return f"/v1/queues/{quote(queue, safe='')}"
