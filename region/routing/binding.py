"""A binding: which records of which topics are copied where. It is a definition of the mesh, as users and lists are."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from georelay.fields import INT64_MAX, FieldError, Fields, JsonObject
from georelay.limits import TOPIC_NAME_CHARS_MAX
from region.routing.pattern_core import matches, pattern_error

BINDINGS_MAX: Final = 1_000  # of the mesh
RULES_MAX: Final = 20
HEADER_CHARS_MAX: Final = 200
QUEUE_CHARS_MAX: Final = 200
BINDING_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,100}")
_TOPIC: Final = re.compile(rf"[a-zA-Z0-9._-]{{1,{TOPIC_NAME_CHARS_MAX}}}")

Headers = Iterable[tuple[str, bytes | None]]


class Match(enum.StrEnum):
    """How many of its header rules a record must meet."""

    ALL = "all"
    ANY = "any"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderRule:
    """A record has a header of this name; with a value: with this value (UTF-8)."""

    name: str
    value: str | None = None

    def to_json(self) -> JsonObject:
        """Return the JSON form."""
        return {"name": self.name} if self.value is None else {"name": self.name, "value": self.value}

    @classmethod
    def from_json(cls, item: object) -> HeaderRule:
        """Read the JSON form. Raises FieldError."""
        fields = Fields(item, "header")
        name = fields.text("name", chars_min=1, chars_max=HEADER_CHARS_MAX)
        value = fields.text("value", chars_max=HEADER_CHARS_MAX) if fields.has("value") else None
        fields.done()
        return cls(name=name, value=value)

    def is_met(self, headers: Headers) -> bool:
        """Return whether a record with these headers meets it."""
        wanted = None if self.value is None else self.value.encode()
        return any(name == self.name and (wanted is None or value == wanted) for name, value in headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """Args:
    source: pattern of plain topic names. headers: none: every record matches.
    target: topic that the copies go to. queue: whose topic that is, "" where a topic was named.
    index: of the definition; it tells a binding from an earlier one of the same name.
    """

    name: str
    source: str
    target: str
    queue: str = ""
    match: Match = Match.ALL
    headers: tuple[HeaderRule, ...] = ()
    index: int = 0

    @property
    def key(self) -> str:
        """Return what is unique to it among definitions of its kind."""
        return self.name

    def takes(self, topic: str) -> bool:
        """Return whether records of a topic may be copied by it."""
        return matches(self.source, topic)

    def takes_record(self, headers: Headers) -> bool:
        """Return whether a record with these headers is copied."""
        if not self.headers:
            return True
        rows = list(headers)
        met = (rule.is_met(rows) for rule in self.headers)
        return all(met) if self.match is Match.ALL else any(met)

    def to_json(self) -> JsonObject:
        """Return the JSON of a definition."""
        return {
            "name": self.name,
            "source": self.source,
            "target": self.target,
            "queue": self.queue,
            "match": str(self.match),
            "headers": list[object](rule.to_json() for rule in self.headers),
            "index": self.index,
        }

    @classmethod
    def from_json(cls, item: object) -> Binding:
        """Read what `to_json` made. Raises FieldError."""
        fields = Fields(item, "binding")
        binding = cls(
            name=fields.text("name", chars_max=100, pattern=BINDING_NAME),
            source=fields.text("source", chars_max=TOPIC_NAME_CHARS_MAX),
            target=fields.text("target", chars_max=TOPIC_NAME_CHARS_MAX, pattern=_TOPIC),
            queue=fields.text("queue", chars_max=QUEUE_CHARS_MAX),
            match=fields.member("match", Match),
            headers=tuple(HeaderRule.from_json(row) for row in fields.items("headers", count_max=RULES_MAX)),
            index=fields.integer("index", low=0, high=INT64_MAX),
        )
        fields.done()
        wrong = pattern_error(binding.source)
        if wrong:
            raise FieldError(f"binding.source: {wrong}")
        return binding
