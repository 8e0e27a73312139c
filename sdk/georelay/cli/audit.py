"""`georelay audit [TOPIC]`: whether all regions hold the same records, by their digest chains; with --replicas every
replica of every region.

Exit codes: 0 every region that has records has the same ones (some may be behind); 1 two regions hold different
records, or stored bytes do not fit their digests; 2 usage; 3 incomplete: a region could not be asked, or nothing could.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Container, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import typer

from georelay.cli.failure import EXIT_ERROR, CommandFailed
from georelay.cli.location import EndpointsOption, GatewayOption, JsonOption, UserOption, open_gateway
from georelay.cli.printing import print_json, print_line, print_table
from georelay.client.gateway_http import GatewayError, GatewayHttp, JsonObject

EXIT_INCOMPLETE: Final = 3
COLUMNS: Final = ("stream", "partition", "home", "epoch", "compared", "result", "notes")
DIGEST_COLUMNS: Final = ("region", "offsets", "epoch", "digest", "crc")
PROGRESS_EVERY_S: Final = 1.0
NO_PROGRESS_MAX: Final = 5  # pieces that brought nothing: what is committed is not on that disk yet
NO_PROGRESS_S: Final = 0.2
_OK: Final = frozenset({"reference", "agrees"})


@dataclass(slots=True)
class _Progress:
    """Tells a person on stderr, at most once per second; standard output is for what was asked for."""

    told_at: float = field(default_factory=time.monotonic)

    def tell(self, text: str) -> None:
        if sys.stderr.isatty() or time.monotonic() - self.told_at >= PROGRESS_EVERY_S:
            self.told_at = time.monotonic()
            end = "\r" if sys.stderr.isatty() else "\n"
            sys.stderr.write(text + end)
            sys.stderr.flush()


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="audit")(_audit)


def _audit(
    topic: Annotated[str, typer.Argument(metavar="[TOPIC]", help="Only its streams; default: every topic's.")] = "",
    deep: Annotated[
        bool, typer.Option("--deep", help="Recompute every digest from the stored bytes; reads all of them.")
    ] = False,
    replicas: Annotated[
        bool, typer.Option("--replicas", help="Compare every replica of every region, not only the leaders' logs.")
    ] = False,
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """Compare the records of all regions by their digest chains.

    Ends with 0 when they agree (a region may be behind), 1 when two regions, or replicas, hold different records, 3
    when somebody could not be asked.
    """
    if deep and replicas:
        raise typer.BadParameter("--deep reads what leaders have on disk: run it apart from --replicas")
    try:
        rows, requests = asyncio.run(_collect(topic, (gateway, endpoints, user), deep=deep, replicas=replicas))
    except GatewayError as error:  # nothing is known: never the exit code of a divergence
        raise CommandFailed(str(error), exit_code=EXIT_INCOMPLETE) from error
    if as_json:
        print_json({"streams": rows, "requests": requests, "result": result_of(rows)})
    else:
        _show(rows, requests)
    failure = summary(rows)
    if failure:
        code = EXIT_ERROR if result_of(rows) == "diverged" else EXIT_INCOMPLETE
        raise CommandFailed(failure, exit_code=code)


# --- asking -------------------------------------------------------------------------------------------


async def _collect(
    topic: str, location: tuple[str, str, str], *, deep: bool, replicas: bool
) -> tuple[list[JsonObject], int]:
    progress = _Progress()
    rows: list[JsonObject] = []
    requests = 0
    async with open_gateway(*location) as client:
        async for page in _pages(client, topic, replicas=replicas):
            streams, total = page.get("streams"), page.get("total")
            if not isinstance(streams, list):
                raise CommandFailed("the answer has no streams; is the mesh of another version?", exit_code=3)
            if replicas and page.get("replicas") is not True:
                raise CommandFailed("the broker that answered compares leaders only; update it first", exit_code=3)
            rows += streams
            requests += int(page.get("requests") or 0)
            progress.tell(f"{len(rows)} of {total} streams compared")
        if deep:
            for number, row in enumerate(rows):
                row["deep"] = [each async for each in _deep_of(client, row, progress, f"{number + 1} of {len(rows)}")]
    return rows, requests


async def _pages(client: GatewayHttp, topic: str, *, replicas: bool) -> AsyncIterator[JsonObject]:
    query: dict[str, str | int] = {"topic": topic} if topic else {}
    if replicas:
        query["replicas"] = "true"
    while True:
        page = await client.get("/v1/audit", query)
        yield page
        following = page.get("next")
        if not isinstance(following, str) or following == query.get("after"):
            return
        query["after"] = following


async def _deep_of(client: GatewayHttp, row: JsonObject, progress: _Progress, place: str) -> AsyncIterator[JsonObject]:
    """Let each region that answered recompute its chain up to where its log ended when it was compared."""
    for region in row["regions"]:
        if region["state"] == "no_answer":
            continue
        try:
            yield await _deep_in(client, row, region, progress, place)
        except GatewayError as error:
            yield {"region": region["region"], "reason": str(error), "fault": None}


async def _deep_in(
    client: GatewayHttp, row: JsonObject, region: JsonObject, progress: _Progress, place: str
) -> JsonObject:
    query: dict[str, str | int] = {
        "topic": row["topic"],
        "partition": row["partition"],
        "origin": row["origin"],
        "at": region["number"],
    }
    done: JsonObject = {"region": region["region"], "first": None, "bytes": 0, "reason": "", "fault": None}
    idle = 0
    while True:
        piece = await client.get("/v1/audit/deep", query)
        if done["first"] is None:
            done["first"] = piece["first"]
        done |= {"following": piece["following"], "fault": piece["fault"], "bytes": done["bytes"] + piece["bytes"]}
        progress.tell(f"stream {place}, {region['region']}: recomputed up to offset {piece['following']}")
        if piece["fault"] is not None or piece["following"] >= region["end"]:
            return done
        idle = idle + 1 if piece["following"] == piece["first"] else 0
        if idle >= NO_PROGRESS_MAX:
            return done | {"reason": f"nothing could be read from offset {piece['following']} on"}
        if idle:
            await asyncio.sleep(NO_PROGRESS_S)
        query |= {"from": piece["following"], "digest": piece["digest"]}


# --- showing ------------------------------------------------------------------------------------------


def result_of(rows: list[JsonObject]) -> str:
    """Return the worst result of all streams: "agrees", "incomplete" or "diverged". Pure."""
    results = {_result(row) for row in rows}
    return next((name for name in ("diverged", "incomplete") if name in results), "agrees")


def _result(row: JsonObject) -> str:
    deep = row.get("deep") or []
    if row["state"] == "diverged" or any(each.get("fault") for each in deep):
        return "diverged"
    return "incomplete" if any(each.get("reason") for each in deep) else str(row["state"])


def summary(rows: list[JsonObject]) -> str:
    """Return the one line for stderr, "" when all agree. Pure."""
    counts = {name: sum(_result(row) == name for row in rows) for name in ("diverged", "incomplete")}
    parts = []
    if counts["diverged"]:
        parts.append(f"{counts['diverged']} of {len(rows)} streams hold different records")
    if counts["incomplete"]:
        parts.append(f"{counts['incomplete']} of {len(rows)} streams could not be compared in all regions")
    return "; ".join(parts)


def silent(rows: list[JsonObject]) -> dict[str, str]:
    """Return the regions, or replicas, that answered for no stream, with why: said once, not per stream. Pure."""
    found: dict[str, str] = {}
    answered: set[str] = set()
    for row in rows:
        for region in row["regions"]:
            if region["state"] == "no_answer":
                found.setdefault(_name(region), region["reason"])
            else:
                answered.add(_name(region))
    return {name: reason for name, reason in found.items() if name not in answered}


def _show(rows: list[JsonObject], requests: int) -> None:
    down = silent(rows)
    for name, reason in sorted(down.items()):
        print_line(f"{name} could not be asked: {reason}")
    print_table(COLUMNS, [stream_line(row, down) for row in rows])
    for row in rows:
        for line in details(row, down):
            print_line(line)
        batches = digest_lines(row)
        if batches:
            print_table(DIGEST_COLUMNS, batches)
    behind = sum(1 for row in rows if any(region["behind"] for region in row["regions"]))
    print_line(f"{len(rows)} streams, {behind} with a region behind, {requests} requests: {result_of(rows)}")


def stream_line(row: JsonObject, down: Container[str] = ()) -> JsonObject:
    """Return the cells of one stream, without a note on those that answer for none. Pure."""
    return {
        "stream": row["name"],
        "partition": row["partition"],
        "home": row["home"],
        "epoch": row["epoch"],
        "compared": row["compared"],
        "result": _result(row),
        "notes": "; ".join(_notes(row, down)) or "-",
    }


def _name(finding: JsonObject) -> str:
    """Return whose log a finding is about: "eu", of one replica "eu/2001"."""
    broker = finding.get("broker")
    return str(finding["region"]) if broker is None else f"{finding['region']}/{broker}"


def _notes(row: JsonObject, down: Container[str]) -> Iterator[str]:
    for region in row["regions"]:
        name = _name(region)
        if name in down:
            continue
        if region["state"] not in _OK:
            yield f"{name} {region['state'].replace('_', ' ')}"
        elif region["behind"]:
            yield f"{name} {region['behind']} records behind"
        if region["beyond"]:
            yield f"{name} {region['beyond']} records beyond the mesh's history"
        orphans = sum(each["records"] for each in region["orphans"])
        if orphans:
            yield f"{name} keeps {orphans} orphan records"
    for each in row.get("deep") or []:
        if each["fault"] is not None:
            yield f"{each['region']} stored bytes do not fit"
        elif each["reason"]:
            yield f"{each['region']} not recomputed"
        else:
            yield f"{each['region']} recomputed"


def details(row: JsonObject, down: Container[str] = ()) -> list[str]:
    """Return one line for everything that is not well with a stream. Pure."""
    place = f"{row['name']}/{row['partition']}"
    failed = [region for region in row["regions"] if region["state"] not in _OK and _name(region) not in down]
    lines = [f"{place}: {_name(region)}: {region['reason']}" for region in failed]
    found = row["divergence"]
    if found is not None and found["is_exact"]:
        lines.append(f"{place}: first divergence in epoch {found['epoch']}, offsets {found['first']}..{found['last']}")
    for each in row.get("deep") or []:
        fault: dict[str, Any] | None = each["fault"]
        if fault is not None:
            place_in = f"{place}: {each['region']}: offsets {fault['first']}..{fault['following'] - 1}"
            lines.append(f"{place_in}: {fault['what']}: stored {fault['stored']}, computed {fault['computed']}")
        elif each["reason"]:
            lines.append(f"{place}: {each['region']}: {each['reason']}")
    return lines


def digest_lines(row: JsonObject) -> list[JsonObject]:
    """Return what each region holds at the first divergence. Pure."""
    found = row["divergence"]
    if found is None:
        return []
    return [
        {"region": name, "offsets": "-", "epoch": "-", "digest": "nothing is stored there", "crc": "-"}
        if batch is None
        else {
            "region": name,
            "offsets": f"{batch['first']}..{batch['last']}",
            "epoch": batch["epoch"],
            "digest": batch["digest"],
            "crc": batch["crc"],
        }
        for name, batch in sorted(found["batches"].items())
    ]
