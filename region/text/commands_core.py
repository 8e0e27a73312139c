"""The commands of the text protocol of a broker. Pure.

PUBS alone takes the rest of its line as it stands, because a JSON object has spaces. What a publish asks for stands
before the object, which begins with no letter.

Rule: every refusal is a BadRequest whose text shows how the command is written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from georelay.durability import Durability
from georelay.errors import BadRequest
from georelay.limits import KIB, PARTITIONS_PER_TOPIC_MAX, REPLICATION_FACTOR_MAX
from mesh.listening.line_commands_core import SHOWN_CHARS_MAX, SPACES, Language, Verb
from mesh.replication.level import DEADLINE_MS_MAX, AskedLevel

LINE_BYTES_MAX: Final = 256 * KIB
GROUP_CHARS_MAX: Final = 255
NO_GROUP: Final = "-"
OFFSET_MAX: Final = 2**63 - 1
_NUMBER: Final = re.compile(r"[0-9]{1,19}", re.ASCII)
_TOKEN: Final = re.compile(r"([0-9]{1,9})(?:\.([0-9]{1,9}))?", re.ASCII)
# "geo:2 within 500ms " before the object; both may be absent.
_ASKED: Final = re.compile(
    r"(?:(region|geo:[^ \t{]*)(?:[ \t]+|$))?(?:(within)(?:[ \t]+([^ \t{]+))?(?:[ \t]+|$))?", re.IGNORECASE
)
_PATIENCE: Final = re.compile(r"([0-9]{1,6})(ms|s)", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """CRTP topic [partitions [replication]]; -1 is the default."""

    topic: str
    partitions: int
    replication: int = -1


@dataclass(frozen=True, slots=True)
class Publish:
    """PUBS topic [level [within time]] {json}; `body` is the JSON as it came.

    Without a level it is answered at its commit at the home; with one the answer names the outcome.
    """

    topic: str
    body: str
    level: AskedLevel | None = None


@dataclass(frozen=True, slots=True)
class Subscribe:
    """SUBS topic group [count | partitions]. Group "-" is none.

    The members of a group share its partitions, and with a count this one takes so many at most; with partitions it
    takes these and is no member.
    """

    topic: str
    group: str
    partitions: tuple[int, ...]
    most: int = 0


@dataclass(frozen=True, slots=True)
class Read:
    """CONS topic [partition] offset; partition -1: the topic has one only."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Consumed:
    """DONE topic subscription offset; partition -1: the subscription has one only."""

    topic: str
    subscription: int
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """UNSB subscription."""

    subscription: int


@dataclass(frozen=True, slots=True)
class Resolve:
    """RESOLVE [topic]; "" asks for the brokers."""

    topic: str


def _create(rest: str) -> object | None:
    match SPACES.split(rest):
        case [topic] if topic:
            return CreateTopic(topic, -1)
        case [topic, count] if topic:
            return CreateTopic(topic, _number(count, "partitions", high=2**31 - 1))
        case [topic, count, factor] if topic:
            partitions = _number(count, "partitions", high=2**31 - 1)
            return CreateTopic(topic, partitions, _number(factor, "replication", low=1, high=REPLICATION_FACTOR_MAX))
    return None


def _publish(rest: str) -> object | None:
    topic, *rows = SPACES.split(rest, maxsplit=1)
    found = _ASKED.match(rows[0]) if rows else None
    if found is None or found.end() == len(rows[0]):
        return None
    level, within, patience = found.groups()
    if within and not (level and patience):
        return None
    return Publish(topic, rows[0][found.end() :], _level(level, patience) if level else None)


def _level(word: str, patience: str | None) -> AskedLevel:
    durability = Durability.parse(word.lower())
    if patience is None:
        return AskedLevel(durability=durability)
    if not durability.is_geo:
        raise BadRequest("within goes with geo:2, geo:majority or geo:all: a home answers as soon as it has committed")
    found = _PATIENCE.fullmatch(patience)
    wait_ms = 0 if found is None else int(found[1]) * (1 if found[2].lower() == "ms" else 1000)
    if not 1 <= wait_ms <= DEADLINE_MS_MAX:
        raise BadRequest(
            f"within {patience[:SHOWN_CHARS_MAX]!r}: use 1ms..{DEADLINE_MS_MAX // 1000}s, such as 500ms or 2s"
        )
    return AskedLevel(durability=durability, deadline_ms=wait_ms)


def _subscribe(rest: str) -> object | None:
    words = SPACES.split(rest)
    if len(words) not in (2, 3):
        return None
    if len(words[1]) > GROUP_CHARS_MAX:
        raise BadRequest(f"group: {len(words[1])} characters are over {GROUP_CHARS_MAX}")
    if len(words) == 2:
        return Subscribe(words[0], words[1], ())
    if words[2].isdecimal():
        count = _number(words[2], "count of partitions", low=1, high=PARTITIONS_PER_TOPIC_MAX)
        return Subscribe(words[0], words[1], (), count)
    return Subscribe(words[0], words[1], _partitions(words[2]))


def _read(rest: str) -> object | None:
    words = SPACES.split(rest)
    if len(words) not in (2, 3):
        return None
    if len(words) == 3 and "." in words[1] and _TOKEN.fullmatch(words[1]):
        raise BadRequest(f"CONS shows a record; that records are done says DONE {' '.join(words)[:SHOWN_CHARS_MAX]}")
    partition = _number(words[1], "partition", high=PARTITIONS_PER_TOPIC_MAX - 1) if len(words) == 3 else -1
    return Read(words[0], partition, _number(words[-1], "offset", high=OFFSET_MAX - 1))


def _consumed(rest: str) -> object | None:
    words = SPACES.split(rest)
    if len(words) != 3:
        return None
    found = _TOKEN.fullmatch(words[1])
    if found is None:
        raise BadRequest(f"subscription {words[1][:SHOWN_CHARS_MAX]!r}: take it from a REC line, such as 1.0")
    partition = -1 if found[2] is None else int(found[2])
    return Consumed(words[0], int(found[1]), partition, _number(words[2], "offset", high=OFFSET_MAX - 1))


def _unsubscribe(rest: str) -> object | None:
    return Unsubscribe(_number(rest, "subscription", high=10**9)) if rest else None


def _resolve(rest: str) -> object | None:
    return Resolve(rest) if SPACES.search(rest) is None else None


def _number(text: str, name: str, *, high: int, low: int = 0) -> int:
    if _NUMBER.fullmatch(text) is None or not low <= int(text) <= high:
        raise BadRequest(f"{name} {text[:SHOWN_CHARS_MAX]!r}: must be a number in {low}..{high}")
    return int(text)


def _partitions(text: str) -> tuple[int, ...]:
    """Read "0,2,5-7"."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        low = _number(first, "partitions", high=PARTITIONS_PER_TOPIC_MAX - 1)
        high = _number(last, "partitions", high=PARTITIONS_PER_TOPIC_MAX - 1) if dash else low
        if low > high:
            raise BadRequest(f"partitions {part[:SHOWN_CHARS_MAX]!r}: the first is above the last")
        found.update(range(low, high + 1))
    return tuple(sorted(found))


LANGUAGE: Final = Language(
    {
        "CRTP": Verb("CRTP topic [partitions [replication]]", "create a topic", _create),
        "PUBS": Verb(
            'PUBS topic [geo:2 [within 500ms]] {"Header":{},"Key":"k","Body":"text"}',
            "publish one record; OK partition offset. geo:2, geo:majority, geo:all wait for so many regions",
            _publish,
        ),
        "SUBS": Verb(
            "SUBS topic group [count | 0,2,5-7]",
            "deliver records from where the group is; at most so many partitions, or exactly these; group - is none",
            _subscribe,
        ),
        "CONS": Verb("CONS topic [partition] offset", "show the record at an offset", _read),
        "DONE": Verb(
            "DONE topic subscription offset",
            "records up to this offset are done; the group goes on behind it",
            _consumed,
        ),
        "UNSB": Verb("UNSB subscription", "end a subscription", _unsubscribe),
        "RESOLVE": Verb(
            "RESOLVE [topic]", "show the brokers of this region, or who leads a topic's partitions", _resolve
        ),
    }
)
