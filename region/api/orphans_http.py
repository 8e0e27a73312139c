"""/v1/orphans: list, export, publish again and drop orphan branches of this region.

    GET    /v1/orphans?topic=                                       every branch that the caller may describe
    GET    /v1/orphans/{topic}/{partition}/{epoch}?offset=&format=  a piece: format=json (records) or batches (base64)
    POST   /v1/orphans/{topic}/{partition}/{epoch}/republish        {"offset": n}: a piece as new records
    DELETE /v1/orphans/{topic}/{partition}/{epoch}                  let it, and older ones, be deleted

Rule 1: whoever may read a topic may export its branches; to publish them again one must also be allowed to write to it,
        to drop them to delete from it.
Rule 2: a piece says where the next one begins; a caller that stopped goes on there. Publishing again is a publish like
        any other: new offsets, new append times, keys, values, headers and timestamps as they were, and a header
        ORPHAN_HEADER that says what it was. Nothing knows whether somebody has published the same records again before.
Rule 3: what is not a plain record is left out and counted: markers, and records of transactions, whose outcome may have
        been decided differently since; and what cannot be read.
"""

from __future__ import annotations

import base64
import re
from contextlib import aclosing
from dataclasses import replace
from typing import Final

from aiohttp import web

from georelay.errors import BadRequest
from georelay.fields import INT64_MAX, FieldError, Fields
from georelay.limits import MIB, PARTITIONS_PER_TOPIC_MAX, REST_RECORDS_MAX
from georelay.wire.batch import Record
from georelay.wire.header import parse_header
from region.api.answer_room import AnswerRoom
from region.api.bodies import read_wish
from region.api.coalescer import NewRecord
from region.api.orphans import EPOCH_MAX, BranchPiece, OrphanBranches
from region.api.principal import PRINCIPAL
from region.api.publishing import Asker, RecordPublisher
from region.api.record_answers import RecordsAnswer
from region.api.record_json import parse_json
from region.api.records_http import json_response
from region.api.unfolding import Unreadable, readable_chunks, weight_bytes
from region.security.access import Access, Operation, Resource

PIECE_BYTES: Final = 1 * MIB
REPUBLISHED_BYTES: Final = 16 * MIB  # of records at a time: a piece may unfold to much more than it is
FIRST_OFFSET: Final = -1
ORPHAN_HEADER: Final = "georelay-orphan"  # region/epoch/offset of the record that was published again
_NUMBER: Final = re.compile(r"-?[0-9]{1,19}", re.ASCII)


class OrphansHttp:
    """Handlers of /v1/orphans. `region`: the name of this one."""

    def __init__(self, orphans: OrphanBranches, *, publisher: RecordPublisher, access: Access, region: str) -> None:
        self._orphans = orphans
        self._publisher = publisher
        self._access = access
        self._region = region

    def routes(self) -> list[web.RouteDef]:
        """Return what the admin listener serves."""
        return [
            web.get("/v1/orphans", self._list),
            web.get("/v1/orphans/{topic}/{partition}/{epoch}", self._export),
            web.post("/v1/orphans/{topic}/{partition}/{epoch}/republish", self._republish),
            web.delete("/v1/orphans/{topic}/{partition}/{epoch}", self._drop),
        ]

    def _place(self, request: web.Request) -> tuple[str, int, int]:
        """Return topic, partition and epoch of a request for this region (BadRequest)."""
        self._check_region(request)
        info = request.match_info
        partition = _number(info["partition"], "partition", low=0, high=PARTITIONS_PER_TOPIC_MAX - 1)
        return info["topic"], partition, _number(info["epoch"], "epoch", low=1, high=EPOCH_MAX)

    def _check_region(self, request: web.Request) -> None:
        wanted = request.query.get("region", self._region)
        if wanted != self._region:
            raise BadRequest(f"region: this broker is in {self._region!r}; a gateway reaches {wanted[:20]!r}")

    async def _list(self, request: web.Request) -> web.Response:
        self._check_region(request)
        wanted = request.query.get("topic")
        rows = [
            {"region": self._region, **branch.to_json()}
            for branch in await self._orphans.branches()
            if wanted in (None, branch.topic)
            and self._access.allows(request[PRINCIPAL], Operation.DESCRIBE, Resource.TOPIC, branch.topic)
        ]
        return json_response({"branches": rows})

    async def _export(self, request: web.Request) -> web.StreamResponse:
        topic, partition, epoch = self._place(request)
        self._access.check(request[PRINCIPAL], Operation.READ, Resource.TOPIC, topic)
        form = request.query.get("format", "json")
        if form not in ("json", "batches"):
            raise BadRequest(f"format: 'json' or 'batches', not {form[:20]!r}")
        offset = _number(request.query.get("offset", str(FIRST_OFFSET)), "offset", low=FIRST_OFFSET, high=INT64_MAX)
        if form == "batches":
            piece = await self._orphans.read(topic, partition, epoch, offset, PIECE_BYTES)
            batches = [base64.b64encode(entry.payload).decode() for entry in piece.entries]
            return json_response({"next_offset": piece.next_offset, "batches": batches})
        room = AnswerRoom(request[PRINCIPAL].name)
        out = RecordsAnswer(request, {}, records_max=REST_RECORDS_MAX, room=room)
        try:
            while True:
                piece = await self._orphans.read(topic, partition, epoch, offset, PIECE_BYTES)
                following = await _fill(out, piece, offset, f"branch of {topic}/{partition}")
                del piece
                if not out.lacks_room:  # or an answer without records would be taken for the end of the branch
                    break
                await out.wait_for_room()
            return await out.end({"next_offset": following})
        finally:
            room.end()

    async def _republish(self, request: web.Request) -> web.Response:
        topic, partition, epoch = self._place(request)
        principal = request[PRINCIPAL]
        for operation in (Operation.READ, Operation.WRITE):
            self._access.check(principal, operation, Resource.TOPIC, topic)
        offset = await read_wish(request, _asked_offset)
        piece = await self._orphans.read(topic, partition, epoch, offset, PIECE_BYTES)
        drafts, left_out, next_offset = await self._drafts(piece, offset, f"{topic}/{partition}", epoch)
        if drafts:
            asker = Asker(access=self._access, principal=principal)
            await self._publisher.publish(topic, [(draft, partition) for draft in drafts], asker=asker)
        return json_response({"published": len(drafts), "left_out": left_out, "next_offset": next_offset})

    async def _drafts(self, piece: BranchPiece, start: int, where: str, epoch: int) -> tuple[list[NewRecord], int, int]:
        """Return records of a piece to be published again, how many are left out, and where the next piece begins."""
        drafts: list[NewRecord] = []
        left_out, room, position = 0, REPUBLISHED_BYTES, start
        for entry in piece.entries:
            header = parse_header(entry.payload)
            if header.is_control or header.is_transactional:
                left_out += entry.record_count
                continue
            async with aclosing(readable_chunks(entry, f"branch of {where}")) as chunks:
                async for chunk in chunks:
                    if isinstance(chunk, Unreadable):
                        left_out += chunk.following - chunk.first
                        position = chunk.following
                        continue
                    for record in chunk:
                        if record.offset < start:
                            continue
                        if room <= 0:
                            return drafts, left_out, position
                        drafts.append(self._draft(record, epoch))
                        room -= weight_bytes(record)
                        position = record.offset + 1
        return drafts, left_out, piece.next_offset

    def _draft(self, record: Record, epoch: int) -> NewRecord:
        about = (ORPHAN_HEADER, f"{self._region}/{epoch}/{record.offset}".encode())
        return NewRecord(
            value=record.value,
            key=record.key,
            headers=(*record.headers, about),
            timestamp_ms=record.timestamp_ms,
        )

    async def _drop(self, request: web.Request) -> web.Response:
        topic, partition, epoch = self._place(request)
        self._access.check(request[PRINCIPAL], Operation.DELETE, Resource.TOPIC, topic)
        place = {"topic": topic, "partition": str(partition), "epoch": str(epoch), "region": self._region}
        with self._access.noted(request[PRINCIPAL], "orphans.dropped", **place):
            dropped = await self._orphans.drop(topic, partition, epoch)
        return json_response({"dropped": dropped})


async def _fill(out: RecordsAnswer, piece: BranchPiece, start: int, where: str) -> int:
    """Put the records of a piece into an answer, with the home epoch of each; return where the next one begins.

    Markers are no records.
    """
    position = start
    for entry in piece.entries:
        header = parse_header(entry.payload)
        if header.is_control:
            continue
        if not out.has_room_for(entry):
            return position
        about = {"epoch": entry.header().epoch, "transactional": header.is_transactional}
        async with aclosing(readable_chunks(entry, where)) as chunks:
            async for chunk in chunks:
                if isinstance(chunk, Unreadable):
                    if chunk.following > position:
                        out.pass_over(replace(chunk, first=max(position, chunk.first)))
                        position = chunk.following
                else:
                    fresh = [record for record in chunk if record.offset >= start]
                    done = await out.add(fresh, about)
                    position = fresh[done - 1].offset + 1 if done else position
                if out.is_full:
                    return position
    return piece.next_offset


def _number(text: str, name: str, *, low: int, high: int) -> int:
    if _NUMBER.fullmatch(text) is None or not low <= int(text) <= high:
        raise BadRequest(f"{name}: a whole number {low}..{high}, not {text[:20]!r}")
    return int(text)


def _asked_offset(body: bytes) -> int:
    try:
        fields = Fields(parse_json(body or b"{}"), "republish")
        offset = fields.integer("offset", low=FIRST_OFFSET, high=INT64_MAX) if body else FIRST_OFFSET
        fields.done()
    except FieldError as error:
        raise BadRequest(str(error)) from error
    return offset
