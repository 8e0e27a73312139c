"""What a broker remembers of its audit log, so that administrators can read it over the API. Pure and bounded.

Rule 1: the newest events count. What strangers can cause (REFUSALS) has its own room, so that a flood of refused
        sign-ins pushes no change out.
Rule 2: an event is named by its time and the broker that wrote it. Times of one broker only grow, by a microsecond at
        least, so a page says where the next, older one begins, and nothing is kept between two requests.
Rule 3: pages of several brokers make one page of their region. Where a broker had more than it sent, nothing older than
        the last that it sent is shown: what lies between is on the next page.
"""

from __future__ import annotations

import heapq
import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from georelay.errors import BadRequest
from georelay.fields import INT64_MAX, FieldError, Fields, JsonObject, parse_object
from georelay.ids import BrokerId
from georelay.limits import MIB

SIGN_IN_REFUSED: Final = "sign_in.refused"
DENIED: Final = "access.denied"
CHANGED: Final = "security.changed"
ORDERED: Final = "security.ordered"
ADMINISTERED: Final = "cluster.changed"
EVENTS: Final = (SIGN_IN_REFUSED, DENIED, ADMINISTERED, CHANGED, ORDERED)
REFUSALS: Final = frozenset({SIGN_IN_REFUSED, DENIED})

EVENTS_MAX: Final = 5_000  # of refusals, and as many of changes
TEXT_CHARS_MAX: Final = 2 * MIB  # of each of the two
EVENT_CHARS_MAX: Final = 32 * 1024  # a longer one is in the log only
PAGE_EVENTS_MAX: Final = 200
PAGE_CHARS_MAX: Final = 256 * 1024
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_KEY: Final = re.compile(r"([0-9]{1,18})-([0-9]{1,8})")


class EventKey(NamedTuple):
    """Names an event: microseconds since 1970, and the broker that wrote it down."""

    at_us: int
    broker: int

    def __str__(self) -> str:
        return f"{self.at_us}-{self.broker}"


@dataclass(frozen=True, slots=True)
class KeptEvent:
    """One event; `text` is its line of the audit file."""

    key: EventKey
    text: str

    def to_json(self) -> JsonObject:
        """Return what the API says of it: the fields of the line, and where it stands."""
        return {"id": str(self.key), "written_by": self.key.broker, **parse_object(self.text.encode())}


@dataclass(frozen=True, slots=True)
class EventsPage:
    """Events, the newest first. `more`: there are older ones."""

    rows: tuple[KeptEvent, ...]
    more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsAsked:
    """A page: events older than `before` (None: the newest), of one kind ("": of every)."""

    before: EventKey | None = None
    event: str = ""
    limit: int = PAGE_EVENTS_MAX

    def to_json(self) -> JsonObject:
        """Return the question to another broker."""
        return {"before": "" if self.before is None else str(self.before), "event": self.event, "limit": self.limit}

    @classmethod
    def from_json(cls, body: Mapping[str, object]) -> EventsAsked:
        """Read a question of another broker. Raises FieldError."""
        fields = Fields(dict(body), "the question")
        before = fields.text("before", chars_max=32)
        event = fields.text("event", chars_max=32)
        limit = fields.integer("limit", low=1, high=PAGE_EVENTS_MAX)
        fields.done()
        return cls(before=read_key(before) if before else None, event=event, limit=limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionEvents:
    """A page of a region: `following` is where the next one begins; `unheard`: brokers whose events are missing."""

    rows: tuple[KeptEvent, ...]
    following: EventKey | None
    unheard: tuple[BrokerId, ...]


class KeptEvents:
    """The newest events of one broker."""

    def __init__(self, broker: BrokerId) -> None:
        self._broker = broker
        self._last_us = -1
        self._changes = _Room()
        self._refusals = _Room()

    def time_us(self, wall_s: float) -> int:
        """Return the time of an event that happens now; `add` it before the next one is asked for."""
        return max(round(wall_s * 1e6), self._last_us + 1)

    def add(self, at_us: int, event: str, text: str) -> None:
        """Keep an event; a line that is too long is left to the log."""
        self._last_us = max(at_us, self._last_us)
        text = text.encode("utf-8", "replace").decode()  # half of a surrogate pair could never be written again
        if len(text) <= EVENT_CHARS_MAX:
            room = self._refusals if event in REFUSALS else self._changes
            room.add(KeptEvent(EventKey(at_us, self._broker), text), event)

    def recall(self, lines: Iterator[str]) -> None:
        """Keep what a file has from before, the oldest first; what is no event is left out."""
        for line in lines:
            try:
                fields = Fields(parse_object(line.encode()), "event")
                at_us, event = _time_us(fields.text("timestamp", chars_max=40)), fields.text("event", chars_max=32)
            except FieldError:
                continue
            self.add(max(at_us, self._last_us + 1), event, line)

    def page(self, asked: EventsAsked) -> EventsPage:
        """Return events of this broker, `asked.limit` or PAGE_CHARS_MAX of them at most, one at least."""
        rows: list[KeptEvent] = []
        size_chars = 0
        newest_first = heapq.merge(self._changes.newest_first(), self._refusals.newest_first(), key=_age)
        for kept, event in newest_first:
            if (asked.before is not None and kept.key >= asked.before) or asked.event not in ("", event):
                continue
            size_chars += len(kept.text)
            if rows and (len(rows) == asked.limit or size_chars > PAGE_CHARS_MAX):
                return EventsPage(tuple(rows), more=True)
            rows.append(kept)
        return EventsPage(tuple(rows), more=False)


class _Room:
    """The newest events of a kind, with their names."""

    def __init__(self) -> None:
        self._rows: deque[tuple[KeptEvent, str]] = deque()
        self._size_chars = 0

    def add(self, kept: KeptEvent, event: str) -> None:
        self._rows.append((kept, event))
        self._size_chars += len(kept.text)
        while len(self._rows) > EVENTS_MAX or self._size_chars > TEXT_CHARS_MAX:
            self._size_chars -= len(self._rows.popleft()[0].text)

    def newest_first(self) -> Iterator[tuple[KeptEvent, str]]:
        return reversed(self._rows)


def merged(pages: Mapping[BrokerId, EventsPage | None], limit: int) -> RegionEvents:
    """Return the page of a region from those of its brokers, None of one that was not heard (rule 3)."""
    heard = [page for page in pages.values() if page is not None]
    horizon = max((page.rows[-1].key for page in heard if page.more and page.rows), default=EventKey(-1, 0))
    rows = sorted((row for page in heard for row in page.rows), key=lambda row: row.key, reverse=True)
    shown = tuple(row for row in rows if row.key >= horizon)[:limit]
    is_last = len(shown) == len(rows) and not any(page.more for page in heard)
    return RegionEvents(
        rows=shown,
        following=None if is_last or not shown else shown[-1].key,
        unheard=tuple(sorted(broker for broker, page in pages.items() if page is None)),
    )


def page_json(page: EventsPage) -> JsonObject:
    """Return the answer to another broker."""
    return {"rows": [[row.key.at_us, row.text] for row in page.rows], "more": page.more}


def read_page(body: Mapping[str, object], *, broker: BrokerId, asked: EventsAsked) -> EventsPage:
    """Read the answer of a broker. Raises FieldError."""
    fields = Fields(dict(body), "audit events")
    rows: list[KeptEvent] = []
    before = asked.before
    for item in fields.items("rows", count_max=asked.limit):
        at_us, text = item if isinstance(item, list) and len(item) == 2 else (None, None)
        if not isinstance(at_us, int) or not isinstance(text, str) or not 0 <= at_us <= INT64_MAX:
            raise FieldError("an audit event is not a time and a line")
        if len(text) > EVENT_CHARS_MAX:
            raise FieldError(f"an audit event of {len(text)} characters")
        row = KeptEvent(EventKey(at_us, broker), text)
        if before is not None and row.key >= before:
            raise FieldError("audit events are not in order")
        before = row.key
        parse_object(text.encode())
        rows.append(row)
    more = fields.flag("more")
    fields.done()
    return EventsPage(tuple(rows), more=more and bool(rows))


def read_key(text: str) -> EventKey:
    """Return the key of an event from its text. Raises BadRequest."""
    found = _KEY.fullmatch(text)
    if found is None:
        raise BadRequest(f"before: `next` of the page before, or the id of an event, not {text[:40]!r}")
    return EventKey(int(found[1]), int(found[2]))


def stamp_of(at_us: int) -> str:
    """Return a time as lines have it."""
    return (_EPOCH + timedelta(microseconds=at_us)).isoformat(timespec="microseconds")


def _time_us(stamp: str) -> int:
    """Return the microseconds of a line's time. Raises FieldError."""
    try:
        at = datetime.fromisoformat(stamp)
        return (at - _EPOCH) // timedelta(microseconds=1)
    except (TypeError, ValueError) as error:  # TypeError: without a zone
        raise FieldError(f"{stamp[:40]!r} is no time") from error


def _age(row: tuple[KeptEvent, str]) -> tuple[int, int]:
    key = row[0].key
    return -key.at_us, -key.broker
