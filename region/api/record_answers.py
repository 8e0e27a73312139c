"""Answers over HTTP that hold records: made piece by piece, counted as they are sent, and sent as they are made.

Rule 1: ANSWER_BYTES_MAX bounds the JSON text of an answer's records, escapes, base64 and headers included: bytes of a
        record may take six times as many as text. A record that fits no answer is passed over, and that is said.
Rule 2: more than a moment's worth of text is made in a thread, PIECE_BYTES of records at a time.
Rule 3: what is over HELD_BYTES is sent before more is made, so a client that does not read costs no more than that;
        after SEND_S without reading it is cut off.
Rule 4: before anything is made there is room for it (answer_room): without, an answer ends with what it has.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Protocol

import structlog
from aiohttp import web

from georelay.limits import KIB
from georelay.wire.batch import Record
from mesh.listening.acceptor import cut_off
from region.api.answer_room import RECORD_TEXT_BYTES_MAX, AnswerRoom, needed_bytes, text_bytes_max
from region.api.record_json import record_json
from region.api.unfolding import CHUNK_BYTES, ON_LOOP_BYTES_MAX, POOL, Unreadable, weight_bytes
from region.kafka.ports import EntryLike

log = structlog.get_logger()

ANSWER_BYTES_MAX: Final = RECORD_TEXT_BYTES_MAX
HELD_BYTES: Final = 256 * KIB
PIECE_BYTES: Final = 256 * KIB
TEXTS_BYTES: Final = 256 * KIB
SEND_S: Final = 30.0
PASSED_OVER_BYTES: Final = 200  # about what the note on one takes
PASSED_OVER: Final = "passed_over"
ABOUT_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_SHORT: Final = b'\b\t\n\f\r"\\'  # two bytes in JSON text
_LONG: Final = bytes(set(range(32)) - set(_SHORT))  # six
_ALL: Final = bytes(range(256))
_NOT_SHORT: Final = bytes(set(_ALL) - set(_SHORT))
_NOT_LONG: Final = bytes(set(_ALL) - set(_LONG))


class RecordsAnswer:
    """{head..., "records": [...], tail...}, for one request.

    Args:
        room: what it holds; whoever made it ends it.

    Attributes:
        count, size_bytes: of the records so far. is_full: it takes no more.
        held_bytes: of text that was made and not sent yet.
    """

    def __init__(self, request: web.Request, head: Mapping[str, Any], *, records_max: int, room: AnswerRoom) -> None:
        self.room = room
        self.count = 0
        self.size_bytes = 0
        self.is_full = False
        self._request = request
        self._records_max = records_max
        self._parts = [_json(head)[:-1], b',"records":[' if head else b'"records":[']
        self.held_bytes = 0
        self._passed_over: list[dict[str, Any]] = []
        self._sent: web.StreamResponse | None = None
        self._has_left = False

    async def add(self, records: Sequence[Record], about: Mapping[str, Any] = ABOUT_NOTHING) -> int:
        """Add records, each with the fields `about`, until it is full; return how many of them it is done with."""
        done = 0
        for piece in _pieces(records):
            if not self._has_room(weight := sum(map(weight_bytes, piece)), text_bytes_max(weight)):
                return done
            for record, text in zip(piece, await _texts(piece, weight, about), strict=True):
                if self.is_full or not self._takes(record, text):
                    return done
                done += 1
            if self.held_bytes > HELD_BYTES:
                await self._send()
        return done

    def has_room_for(self, entry: EntryLike) -> bool:
        """Return whether there is room for records of a batch; if not, it is full."""
        return self._has_room(needed_bytes(entry))

    def _has_room(self, *size_bytes: int) -> bool:
        has_room = self.room.has(self.held_bytes + sum(size_bytes))
        self.is_full = self.is_full or not has_room
        return has_room

    @property
    def lacks_room(self) -> bool:
        """Return whether that is why it is empty."""
        return self.is_full and self.is_empty

    async def wait_for_room(self) -> None:
        """Go on where there was no room (Busy: there is none)."""
        await self.room.wait()
        self.is_full = False

    @property
    def is_empty(self) -> bool:
        """Return whether there is neither a record in it nor word of one that was passed over."""
        return not (self.count or self._passed_over)

    def pass_over(self, rest: Unreadable, about: Mapping[str, Any] = ABOUT_NOTHING) -> None:
        """Say that offsets are not in the answer, and why."""
        self._passed_over.append({**_passed_over(rest), **about})
        self._count(PASSED_OVER_BYTES)

    async def end(self, tail: Mapping[str, Any]) -> web.StreamResponse:
        """Return what the handler returns. `passed_over` is there only where something was."""
        more = {**tail, "passed_over": self._passed_over} if self._passed_over else tail
        self._parts += (b"],", _json(more)[1:])
        if self._sent is None:
            body = b"".join(self._parts)
            return web.Response(body=body, content_type="application/json", charset="utf-8")
        await self._send()
        if not self._has_left:
            await self._sent.write_eof()
        return self._sent

    def _takes(self, record: Record, text: bytes | None) -> bool:
        if text is None or len(text) > ANSWER_BYTES_MAX:
            self.pass_over(_too_large(record))
            return True
        if self.size_bytes + len(text) > ANSWER_BYTES_MAX:
            self.is_full = True
            return False
        if self.count:
            self._parts.append(b",")
        self._parts.append(text)
        self.held_bytes += len(text)
        self.count += 1
        self._count(len(text))
        self.is_full = self.is_full or self.count >= self._records_max
        return True

    def _count(self, size_bytes: int) -> None:
        self.size_bytes += size_bytes
        self.is_full = self.is_full or self.size_bytes >= ANSWER_BYTES_MAX

    async def _send(self) -> None:
        """Send what is there, as fast as the client takes it."""
        part, self._parts, self.held_bytes = b"".join(self._parts), [], 0
        if self._has_left:
            return
        self.room.keep(len(part) + CHUNK_BYTES)  # what is not text yet
        try:
            async with asyncio.timeout(SEND_S):
                if self._sent is None:
                    self._sent = web.StreamResponse()
                    self._sent.content_type, self._sent.charset = "application/json", "utf-8"
                    await self._sent.prepare(self._request)
                await self._sent.write(part)
        except (TimeoutError, ConnectionError) as error:  # the status has left: there is nobody to tell
            self._has_left = self.is_full = True
            log.info("http_reader.left", peer=self._request.remote, error=repr(error))
            cut_off(self._request.transport)
        self.room.keep(CHUNK_BYTES)


class RecordsOut(Protocol):
    """Where records that were read are put. count, size_bytes: so far; is_full: it takes no more."""

    count: int
    size_bytes: int
    is_full: bool

    def has_room_for(self, entry: EntryLike) -> bool:
        """Return whether there is room for records of a batch; if not, it is full."""

    @property
    def lacks_room(self) -> bool:
        """Return whether that is why it is empty."""

    async def wait_for_room(self) -> None:
        """Go on where there was no room (Busy: there is none)."""

    @property
    def is_empty(self) -> bool:
        """Return whether there is neither a record in it nor word of one that was passed over."""

    async def add(self, records: Sequence[Record], about: Mapping[str, Any] = ...) -> int:
        """Add records, each with the fields `about`, until it is full; return how many of them it is done with."""

    def pass_over(self, rest: Unreadable, about: Mapping[str, Any] = ...) -> None:
        """Say that offsets are not in it, and why."""


class RecordTexts:
    """Records as JSON texts, TEXTS_BYTES and a record of them at a time, for streams that do not end.

    Args:
        room: what it holds; whoever made it ends it.

    Attributes:
        count, size_bytes: of the records so far. is_full: it takes no more.
    """

    def __init__(self, *, records_max: int, room: AnswerRoom) -> None:
        self.room = room
        self.count = 0
        self.size_bytes = 0
        self.is_full = False
        self._records_max = records_max
        self._rows: list[tuple[str, bytes]] = []  # (name of an event, JSON)

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing to say."""
        return not self._rows

    def texts(self, name: str = "") -> list[bytes]:
        """Return the JSON of what was said by that name, "" for records."""
        return [text for said, text in self._rows if said == name]

    async def add(self, records: Sequence[Record], about: Mapping[str, Any] = ABOUT_NOTHING) -> int:
        """Add records, each with the fields `about`, until it is full; return how many of them it is done with."""
        done = 0
        for piece in _pieces(records):
            if not self._has_room(weight := sum(map(weight_bytes, piece)), text_bytes_max(weight)):
                return done
            for record, text in zip(piece, await _texts(piece, weight, about), strict=True):
                if self.is_full:
                    return done
                if text is None or len(text) > ANSWER_BYTES_MAX:
                    self.pass_over(_too_large(record), about)
                else:
                    self.count += 1
                    self.say("", text)
                done += 1
        return done

    def has_room_for(self, entry: EntryLike) -> bool:
        """Return whether there is room for records of a batch; if not, it is full."""
        return self._has_room(needed_bytes(entry))

    def _has_room(self, *size_bytes: int) -> bool:
        has_room = self.room.has(self.size_bytes + sum(size_bytes))
        self.is_full = self.is_full or not has_room
        return has_room

    @property
    def lacks_room(self) -> bool:
        """Return whether that is why it is empty."""
        return self.is_full and self.is_empty

    async def wait_for_room(self) -> None:
        """Go on where there was no room (Busy: there is none)."""
        await self.room.wait()
        self.is_full = False

    def pass_over(self, rest: Unreadable, about: Mapping[str, Any] = ABOUT_NOTHING) -> None:
        """Say that offsets are not sent, and why."""
        self.say(PASSED_OVER, _json({**_passed_over(rest), **about}))

    def say(self, name: str, text: bytes) -> None:
        """Add JSON, which has no ends of lines, by that name, "" for records."""
        self._rows.append((name, text))
        self.size_bytes += len(text)
        self.is_full = self.size_bytes >= TEXTS_BYTES or self.count >= self._records_max

    def events(self, last_id: str) -> bytes:
        """Return all as server-sent events; the last one has the id that a client comes back with."""
        if not self._rows:
            return b": nothing\n\n"
        events = [
            (f"event: {name}\n".encode() if name else b"") + b"data: " + text + b"\n\n" for name, text in self._rows
        ]
        events.insert(-1, f"id: {last_id}\n".encode())
        return b"".join(events)


class StoredBatches:
    """Batches as they are stored, TEXTS_BYTES and a batch of them at a time.

    Args:
        room: what it holds; whoever made it ends it.

    Attributes:
        batches: (partition, where reading goes on, batch), the first of which may begin before the position.
        count, size_bytes: of records and of batches. is_full: it takes no more.
    """

    def __init__(self, *, room: AnswerRoom) -> None:
        self.batches: list[tuple[int, int, bytes]] = []
        self.room = room
        self.count = 0
        self.size_bytes = 0
        self.is_full = False

    def has_room_for(self, entry: EntryLike) -> bool:
        """Return whether there is room for a batch, here and in a message; if not, it is full."""
        has_room = self.room.has(self.size_bytes + 2 * len(entry.payload))
        self.is_full = self.is_full or not has_room
        return has_room

    @property
    def lacks_room(self) -> bool:
        """Return whether that is why it is empty."""
        return self.is_full and self.is_empty

    async def wait_for_room(self) -> None:
        """Go on where there was no room (Busy: there is none)."""
        await self.room.wait()
        self.is_full = False

    @property
    def is_empty(self) -> bool:
        """Return whether there is none."""
        return not self.batches

    def add(self, partition: int, entry: EntryLike) -> int:
        """Add one; return where reading goes on."""
        following = entry.base_offset + entry.record_count
        self.batches.append((partition, following, bytes(entry.payload)))
        self.count += entry.record_count
        self.size_bytes += len(entry.payload)
        self.is_full = self.size_bytes >= TEXTS_BYTES
        return following


def _passed_over(rest: Unreadable) -> dict[str, Any]:
    return {"first": rest.first, "following": rest.following, "reason": rest.why}


def _too_large(record: Record) -> Unreadable:
    why = f"the record is over {ANSWER_BYTES_MAX} bytes as JSON: read it over the Kafka protocol"
    return Unreadable(record.offset, record.offset + 1, why)


def _pieces(records: Sequence[Record]) -> Iterator[list[Record]]:
    piece: list[Record] = []
    room = PIECE_BYTES
    for record in records:
        size_bytes = weight_bytes(record)
        if piece and size_bytes > room:
            yield piece
            piece, room = [], PIECE_BYTES
        piece.append(record)
        room -= size_bytes
    if piece:
        yield piece


async def _texts(piece: Sequence[Record], weight: int, about: Mapping[str, Any]) -> list[bytes | None]:
    make = partial(_written, piece, about)
    if weight <= ON_LOOP_BYTES_MAX:
        return make()
    return await asyncio.get_running_loop().run_in_executor(POOL, make)


def _written(piece: Sequence[Record], about: Mapping[str, Any]) -> list[bytes | None]:
    return [
        None if text_bytes(record) > ANSWER_BYTES_MAX else _json({**record_json(record), **about}) for record in piece
    ]


def text_bytes(record: Record) -> int:
    """Return about how many bytes a record is as JSON, without making it."""
    size_bytes = 0
    for raw in (record.key, record.value, *(value for _, value in record.headers)):
        if raw:
            short, long = len(raw.translate(None, _NOT_SHORT)), len(raw.translate(None, _NOT_LONG))
            size_bytes += len(raw) + short + 5 * long
    return size_bytes + sum(len(name) + 8 for name, _ in record.headers)


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
