"""/v1/audit: compare the digest chains of all regions.

    GET /v1/audit?topic=&after=&limit=&replicas=
                                            a page of streams: what differs, what is behind, what cannot be said
    GET /v1/audit/deep?topic=&partition=&origin=&at=&from=&digest=
                                            let one region recompute a piece of its chain from the stored bytes

Rule 1: whoever may describe a topic may compare its chains: they tell nothing of the records. A deep audit reads the
        records from disk: it needs READ.
Rule 2: a page says where the next one begins: "next" is the value of `after`, null on the last. A piece says the same
        with `following` and `digest`. So progress is the caller's to show, and nothing is kept here between requests.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from aiohttp import web

from georelay.errors import BadRequest
from georelay.fields import INT64_MAX, JsonObject
from georelay.ids import REGION_NUMBER_MAX, BrokerId, RegionNumber, region_of
from georelay.limits import PARTITIONS_PER_TOPIC_MAX, TOPIC_NAME_CHARS_MAX
from mesh.replication.stream_header import DIGEST_BYTES
from region.api.principal import PRINCIPAL
from region.api.records_http import json_response
from region.audit.auditor import Auditor, StreamName
from region.audit.questions import STREAMS_MAX, UNKNOWN_FROM
from region.audit.values import BatchAt, Divergence, RegionFinding, StreamVerdict, Who
from region.security.access import Access, Operation, Resource

PAGE_STREAMS: Final = 32
_NUMBER: Final = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_DIGEST: Final = re.compile(rf"[0-9a-f]{{{2 * DIGEST_BYTES}}}", re.ASCII)
_NO_DIGEST: Final = "00" * DIGEST_BYTES
RegionName = Callable[[int], str]


class AuditHttp:
    """Handlers of /v1/audit. `region_name`: region number -> name."""

    def __init__(self, auditor: Auditor, *, access: Access, region_name: RegionName) -> None:
        self._auditor = auditor
        self._access = access
        self._region_name = region_name

    def routes(self) -> list[web.RouteDef]:
        """Return what the admin listener serves."""
        return [web.get("/v1/audit", self._page), web.get("/v1/audit/deep", self._deep)]

    async def _page(self, request: web.Request) -> web.Response:
        principal = request[PRINCIPAL]
        topic = request.query.get("topic") or None
        after = request.query.get("after")
        limit = _number(request.query.get("limit", str(PAGE_STREAMS)), "limit", low=1, high=STREAMS_MAX)
        replicas = request.query.get("replicas", "false")
        if replicas not in ("true", "false"):
            raise BadRequest(f"replicas: true or false, not {replicas[:20]!r}")
        if topic is not None:
            self._access.check(principal, Operation.DESCRIBE, Resource.TOPIC, topic)
        page = await self._auditor.page(
            topic,
            after=None if after is None else parse_name(after),
            limit=limit,
            replicas=replicas == "true",
            may=lambda name: self._access.allows(principal, Operation.DESCRIBE, Resource.TOPIC, name),
        )
        rows = [verdict_json(name, verdict, self._region_name) for name, verdict in page.verdicts]
        following = None if page.is_last or not page.verdicts else name_text(page.verdicts[-1][0])
        told = {"streams": rows, "next": following, "total": page.total, "requests": page.requests}
        return json_response({**told, "replicas": replicas == "true"})

    async def _deep(self, request: web.Request) -> web.Response:
        query = request.query
        topic = query.get("topic", "")
        self._access.check(request[PRINCIPAL], Operation.READ, Resource.TOPIC, topic)
        digest = query.get("digest", _NO_DIGEST)
        if _DIGEST.fullmatch(digest) is None:
            raise BadRequest(f"digest: {2 * DIGEST_BYTES} hex digits, not {digest[:40]!r}")
        name = StreamName(
            topic=topic,
            origin=_number(query.get("origin", "0"), "origin", low=0, high=REGION_NUMBER_MAX),
            partition=_number(query.get("partition", "0"), "partition", low=0, high=PARTITIONS_PER_TOPIC_MAX - 1),
        )
        piece = await self._auditor.deep(
            name,
            RegionNumber(_number(query.get("at", ""), "at", low=1, high=REGION_NUMBER_MAX)),
            offset=_number(query.get("from", str(UNKNOWN_FROM)), "from", low=UNKNOWN_FROM, high=INT64_MAX),
            digest=bytes.fromhex(digest),
        )
        return json_response(piece.to_json())


def name_text(name: StreamName) -> str:
    """Return a name as `after` takes it: topic names have no slash."""
    return f"{name.topic}/{name.origin}/{name.partition}"


def parse_name(text: str) -> StreamName:
    """Read `after`. Raises BadRequest."""
    parts = text.split("/")
    if len(parts) != 3 or not 1 <= len(parts[0]) <= TOPIC_NAME_CHARS_MAX:
        raise BadRequest(f"after: TOPIC/ORIGIN/PARTITION, not {text[:60]!r}")
    return StreamName(
        topic=parts[0],
        origin=_number(parts[1], "after", low=0, high=REGION_NUMBER_MAX),
        partition=_number(parts[2], "after", low=0, high=PARTITIONS_PER_TOPIC_MAX - 1),
    )


def _number(text: str, name: str, *, low: int, high: int) -> int:
    if _NUMBER.fullmatch(text) is None or not low <= int(text) <= high:
        raise BadRequest(f"{name}: a whole number {low}..{high}, not {text[:20]!r}")
    return int(text)


def verdict_json(name: StreamName, verdict: StreamVerdict, region_name: RegionName) -> JsonObject:
    """Return the JSON form of one stream's verdict."""
    shown = name.topic if name.origin == 0 else f"{region_name(name.origin)}.{name.topic}"
    found = verdict.divergence
    return {
        "name": shown,
        "topic": name.topic,
        "origin": name.origin,
        "partition": name.partition,
        "home": region_name(verdict.home),
        "state": verdict.state.value,
        "epoch": verdict.epoch,
        "compared": verdict.compared,
        "rounds": verdict.rounds,
        "regions": [_finding_json(row, region_name) for row in verdict.findings],
        "divergence": None if found is None else _divergence_json(found, region_name),
    }


def _finding_json(row: RegionFinding, region_name: RegionName) -> JsonObject:
    return {
        "region": region_name(row.region),
        "number": row.region,
        "broker": row.broker,
        "state": row.state.value,
        "log_start": row.log_start,
        "end": row.end,
        "behind": row.behind,
        "beyond": row.beyond,
        "orphans": [
            {
                "epoch": each.epoch,
                "first": each.first,
                "last": each.following - 1,
                "records": each.following - each.first,
            }
            for each in row.orphans
        ],
        "reason": row.reason,
    }


def _divergence_json(found: Divergence, region_name: RegionName) -> JsonObject:
    return {
        "epoch": found.epoch,
        "first": found.first,
        "last": found.last,
        "is_exact": found.is_exact,
        "batches": {_who(who, found, region_name): _batch_json(batch) for who, batch in found.batches.items()},
    }


def _who(who: Who, found: Divergence, region_name: RegionName) -> str:
    """Return "eu", for a replica "eu/2001"."""
    return f"{region_name(region_of(BrokerId(who)))}/{who}" if found.by_broker else region_name(who)


def _batch_json(batch: BatchAt | None) -> dict[str, Any] | None:
    if batch is None:
        return None
    return {
        "first": batch.first,
        "last": batch.following - 1,
        "epoch": batch.epoch,
        "digest": batch.digest.hex(),
        "crc": f"{batch.crc:08x}",
    }
