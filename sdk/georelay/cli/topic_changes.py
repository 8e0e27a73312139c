"""`georelay topics alter|reassign|delete-records`: what may change about a topic that exists."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from georelay.cli.asking import Where, ask
from georelay.cli.failure import EXIT_USAGE, CommandFailed
from georelay.cli.location import EndpointsOption, GatewayOption, JsonOption, UserOption, open_gateway
from georelay.cli.printing import print_json, print_line, print_outcome
from georelay.cli.regions import RegionOption, region_of_brokers
from georelay.cli.waiting import Look, TimeoutOption, WaitOption, wait_until_done
from georelay.client.gateway_http import GatewayHttp, JsonObject
from georelay.limits import PARTITIONS_PER_TOPIC_MAX

FIELD_OF: Final[Mapping[str, str]] = {
    "retention.ms": "retention_ms",
    "retention.bytes": "retention_bytes",
    "segment.bytes": "segment_bytes",
}
# The broker knows every setting and judges it: docs/protocol/kafka.md has the table.
SETTINGS_HELP: Final = "retention.ms=60000, min.insync.regions=2 or another setting of a topic"
DEFAULT: Final = "default"
LATEST: Final = "latest"
_WHOLE_NUMBER: Final = re.compile(r"-?[0-9]{1,18}")
_BROKER_IDS: Final = re.compile(r"[0-9]{1,8}(,[0-9]{1,8})*")

TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC")]


def register(group: typer.Typer) -> None:
    """Add the commands to `georelay topics`."""
    group.command(name="alter")(_alter)
    group.command(name="reassign")(_reassign)
    group.command(name="delete-records")(_delete_records)


def _alter(
    topic: TopicArgument,
    settings: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=VALUE...",
            help=f"{SETTINGS_HELP}; {DEFAULT}: as a new topic.",
        ),
    ],
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """Change settings of a topic.

    The change holds in every region; settings that are not named stay.
    """
    body = parse_settings(settings)
    answer = ask(Where(gateway, endpoints, user), "PATCH", _path(topic), body)
    if as_json:
        print_json(answer)
    else:
        geo = answer.get("settings")
        values = " ".join(
            [f"{name}={answer.get(field, '?')}" for name, field in FIELD_OF.items()]
            + [f"{name}={value}" for name, value in (geo.items() if isinstance(geo, dict) else ())]
        )
        print_line(f"altered topic {topic}: {values}")


def _delete_records(
    topic: TopicArgument,
    partition: Annotated[
        int, typer.Option("--partition", metavar="P", min=0, max=PARTITIONS_PER_TOPIC_MAX - 1, help="Of this one.")
    ],
    before: Annotated[
        str, typer.Option("--before", metavar="OFFSET|latest", help="First offset that is kept; latest: keep none.")
    ],
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """Delete the oldest records.

    They are gone in every region and for ever; the offsets of those that stay do not change.
    """
    if before != LATEST and re.fullmatch(r"[0-9]{1,18}", before) is None:
        raise CommandFailed(f"--before {before!r} is neither an offset nor {LATEST}", exit_code=EXIT_USAGE)
    body = {"partition": partition, "before": before if before == LATEST else int(before)}
    answer = ask(Where(gateway, endpoints, user), "POST", f"{_path(topic)}/delete-records", body)
    print_outcome(
        answer, f"partition {partition} of {topic} starts at offset {answer.get('log_start', '?')}", as_json=as_json
    )


def _reassign(
    topic: TopicArgument,
    replicas: Annotated[
        str, typer.Option("--replicas", metavar="1001,1002,...", help="Brokers of one region; the first leads.")
    ],
    partition: Annotated[
        int, typer.Option("--partition", metavar="P", min=-1, max=PARTITIONS_PER_TOPIC_MAX - 1, help="-1: all.")
    ] = -1,
    region: RegionOption = "",
    wait: WaitOption = False,
    timeout_s: TimeoutOption = 0.0,
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """Move replicas to other brokers.

    The move is inside one region; publishing and reading go on meanwhile.
    """
    brokers = parse_brokers(replicas)
    body: dict[str, Any] = {"replicas": brokers}
    if partition >= 0:
        body["partition"] = partition

    async def reassign() -> JsonObject:
        async with open_gateway(gateway, endpoints, user) as client:
            query = {"region": await region_of_brokers(client, brokers, region)}
            answer = await client.post(f"{_path(topic)}/reassign", body, query)
            if wait:
                await _wait_moved(client, topic, query, partition, brokers, timeout_s)
                answer = await client.get(_path(topic), query)
            return answer

    answer = asyncio.run(reassign())
    if as_json:
        print_json(answer)
        return
    left = unsettled(answer.get("partition_states") or (), partition, brokers)
    what = f"topic {topic}" if partition < 0 else f"partition {partition} of {topic}"
    done = f"is on {replicas}" if not left else f"moves to {replicas}; `georelay topics describe {topic}` shows how far"
    print_line(f"{what} {done}")


def parse_settings(settings: Sequence[str]) -> dict[str, Any]:
    """Return the fields of PATCH /v1/topics/{topic} (CommandFailed: not NAME=VALUE, no number, or given twice)."""
    body: dict[str, Any] = {}
    others: dict[str, str | None] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name:
            raise CommandFailed(f"{setting!r} is not NAME=VALUE; give {SETTINGS_HELP}", exit_code=EXIT_USAGE)
        field = FIELD_OF.get(name)
        if name in others or field in body:
            raise CommandFailed(f"{name} is given twice", exit_code=EXIT_USAGE)
        if field is None:
            others[name] = None if value == DEFAULT else value
        elif value != DEFAULT and _WHOLE_NUMBER.fullmatch(value) is None:
            raise CommandFailed(f"{setting!r}: use a whole number or {DEFAULT}", exit_code=EXIT_USAGE)
        else:
            body[field] = None if value == DEFAULT else int(value)
    return body | ({"settings": others} if others else {})


def parse_brokers(replicas: str) -> list[int]:
    """Return the broker ids of --replicas (CommandFailed)."""
    if _BROKER_IDS.fullmatch(replicas) is None:
        raise CommandFailed(f"--replicas {replicas!r} is not a list such as 1001,1002,1003", exit_code=EXIT_USAGE)
    brokers = [int(broker) for broker in replicas.split(",")]
    if len(set(brokers)) != len(brokers):
        raise CommandFailed(f"--replicas {replicas}: a broker stands twice", exit_code=EXIT_USAGE)
    return brokers


def unsettled(rows: Sequence[dict[str, Any]], partition: int, brokers: Sequence[int]) -> list[dict[str, Any]]:
    """Return the partitions (of all when `partition` is negative) that are not on exactly `brokers` yet. Pure."""
    return [
        row
        for row in rows
        if (partition < 0 or row.get("partition") == partition)
        and not (row.get("is_settled") and set(row.get("replicas", ())) == set(brokers))
    ]


async def _wait_moved(
    client: GatewayHttp,
    topic: str,
    query: Mapping[str, str],
    partition: int,
    brokers: Sequence[int],
    timeout_s: float,
) -> None:
    async def look() -> Look:
        rows = (await client.get(_path(topic), query)).get("partition_states") or ()
        left = unsettled(rows, partition, brokers)
        return Look(left=len(left), text=_text(left) if left else "done")

    await wait_until_done(look, what=f"moving {topic}", timeout_s=timeout_s)


def _text(left: Sequence[dict[str, Any]]) -> str:
    learners = [f"{row['partition']} on {row['learners'][0]}" for row in left if row.get("learners")]
    catching_up = f", catching up: {', '.join(learners[:3])}" if learners else ""
    return f"{len(left)} partitions left{catching_up}"


def _path(topic: str) -> str:
    return f"/v1/topics/{quote(topic, safe='')}"
