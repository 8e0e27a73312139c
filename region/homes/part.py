"""The part of mesh control that keeps the homes of streams: commands in, rows out, the same on every voter.

    {"kind": "begin", "move_id", "move", "target", "streams": [[topic id, partition] or [.., .., origin], ...]}
    {"kind": "end", "ends": [{topic_id, partition, origin, move_id, home, start, digest, accept_loss}, ...]}
    {"kind": "leased", "region"}       the region's brokers ask for leases: it may be failed over
    {"kind": "obeyed", "region", "index"}   all its brokers follow the failover policies defined up to an index

Rule 1: the streams of one command are treated in the order of (topic id, partition, origin), each for itself: what is
        refused is named in the outcome, the others go on.
Rule 2: which topics there are and which regions hold them is read at apply, from parts of the same replicated state.
Rule 3: streams of topics with one home can move, and those of coordinators, which every region began its own of. An
        `origin` of 0, that of topics with one home, is left out of every JSON form.
Rule 4: a forced attempt ends only while no region holds the topic that it did not ask: one that joined since may have
        acknowledged records with the old home. It begins anew. And a region that was removed becomes no home.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final, Protocol

from georelay.errors import BadRequest, Busy, GeorelayError, UnknownTopic
from georelay.fields import INT64_MAX, FieldError, Fields, JsonObject
from georelay.ids import REGION_NUMBER_MAX, Offset, RegionNumber, StreamKey
from georelay.limits import REGIONS_MAX, TOPICS_MAX
from mesh.home.epoch_core import FIRST_FLOOR
from mesh.home.home_book_core import Beginning, Ending, HomeBook, HomePosition
from mesh.home.home_row import EPOCH_MAX, MOVE_ID_CHARS_MAX, ONE_HOME, HomeRow, MoveKind, key_json, read_key
from mesh.replication.stream_header import DIGEST_BYTES, first_digest
from region.controller.topic import Homes, TopicDefinition
from region.homes.levels import is_coordination

STREAMS_PER_COMMAND_MAX: Final = 500
HOME_ROWS_MAX: Final = TOPICS_MAX * 10
_ONE_HOME: Final = ONE_HOME


class MeshTopics(Protocol):
    """What this part reads of the other parts of control's state."""

    def find(self, topic_id: bytes) -> TopicDefinition | None:
        """Return the live topic."""

    def topics(self) -> Iterator[TopicDefinition]:
        """Return the live topics."""

    def holders(self, topic: TopicDefinition) -> tuple[RegionNumber, ...]:
        """Return the regions that store the topic, rising; those that are on their way out included."""

    def may_be_home(self, region: RegionNumber) -> bool:
        """Return whether homes may move to the region."""

    def is_removed(self, region: RegionNumber) -> bool:
        """Return whether the region left the mesh."""


class Duties(Protocol):
    """Who acts while this broker leads control."""

    def elected(self) -> None:
        """Begin; must not wait."""

    def deposed(self) -> None:
        """End; must not wait."""


class HomesPart:
    """Implements region.control.part.ControlPart; `name` is its place in control's commands."""

    name: Final = "homes"

    def __init__(self, topics: MeshTopics) -> None:
        self._topics = topics
        self.book = HomeBook()
        self.duties: Duties | None = None
        self.leased: set[RegionNumber] = set()  # regions whose brokers have asked for leases
        self.obeyed: dict[RegionNumber, int] = {}  # see region.homes.policies

    # --- what is asked ----------------------------------------------------------------------------

    def row(self, key: StreamKey) -> HomeRow | None:
        """Return a stream's row: that of a stream whose home never moved is its first one.

        None for a stream that does not exist, or of a topic that every region is home of.
        """
        topic = self._topics.find(key.topic_id)
        if topic is None or not self._is_stream(topic, key):
            return None
        return self.book.row(key) or self._first(topic, key)

    def rows(self) -> Iterator[HomeRow]:
        """Return the row of every stream whose home can move."""
        for topic in self._topics.topics():
            for origin in self._origins(topic):
                for partition in range(topic.partitions):
                    key = StreamKey(topic.topic_id, origin, partition)
                    yield self.book.row(key) or self._first(topic, key)

    def _origins(self, topic: TopicDefinition) -> Collection[RegionNumber]:
        """Return the origins of a topic's streams that can move, rising."""
        if topic.homes is Homes.ONE:
            return (_ONE_HOME,)
        return self._topics.holders(topic) if is_coordination(topic) else ()

    def _is_stream(self, topic: TopicDefinition, key: StreamKey) -> bool:
        is_known = key.origin in self._origins(topic) or self.book.row(key) is not None  # its origin may have left
        return is_known and 0 <= key.partition < topic.partitions

    def since(self, position: HomePosition, *, limit: int) -> list[HomeRow]:
        """Return at most `limit` rows above (index, topic id, partition, origin), the lowest first."""
        return self.book.since(position, limit=limit)

    def foreign(self) -> Iterator[HomeRow]:
        """Return the rows of coordinators whose home was ever to move."""
        return (row for row in self.book.rows() if row.origin)

    def moved(self, key: StreamKey) -> HomeRow | None:
        """Return the row of a stream whose home was ever to move."""
        return self.book.row(key)

    def streams_of(self, region: RegionNumber) -> list[StreamKey]:
        """Return the streams whose home is `region`."""
        return [row.key for row in self.rows() if row.home == region]

    def may_be_home(self, region: RegionNumber) -> bool:
        """Return whether homes may move to a region."""
        return self._topics.may_be_home(region)

    def is_removed(self, region: RegionNumber) -> bool:
        """Return whether a region left the mesh."""
        return self._topics.is_removed(region)

    @property
    def is_recovered(self) -> bool:
        """Return whether an earlier generation of control may have known more than this one."""
        return self.book.floor > FIRST_FLOOR

    def knows_epochs_of(self, row: HomeRow) -> bool:
        """Return whether this generation of control began the row's epoch, or no other one was before it."""
        return row.epoch > self.book.floor

    def asked_now(self, row: HomeRow) -> tuple[RegionNumber, ...]:
        """Return which regions a forced attempt for the stream would ask if it began now, rising."""
        topic = self._topics.find(row.topic_id)
        return row.regions if topic is None else tuple(sorted(self._to_ask(topic, row)))

    # --- ControlPart ------------------------------------------------------------------------------

    def apply(self, command: JsonObject, *, index: int, append_us: int) -> JsonObject:
        """Follow a committed command; return {"refused": [{topic_id, partition, code, text}]}.

        Raises:
            BadRequest: it is none; nothing changed.
        """
        self._forget_deleted()
        try:
            fields = Fields(command, "homes")
            match fields.text("kind", chars_max=16):
                case "begin":
                    return self._begin(_read_begin(fields), index)
                case "end":
                    return self._end(_read_ends(fields), index)
                case "leased":
                    region = RegionNumber(fields.integer("region", low=1, high=REGION_NUMBER_MAX))
                    fields.done()
                    self.leased.add(region)
                    return {"refused": []}
                case "obeyed":
                    region = RegionNumber(fields.integer("region", low=1, high=REGION_NUMBER_MAX))
                    up_to = fields.integer("index", low=0, high=INT64_MAX)
                    fields.done()
                    self.obeyed[region] = max(self.obeyed.get(region, 0), up_to)
                    return {"refused": []}
                case kind:
                    raise BadRequest(f"command {kind!r} of homes is unknown")
        except FieldError as error:
            raise BadRequest(str(error)) from error

    def snapshot(self) -> JsonObject:
        """Return everything, in order."""
        said: JsonObject = {"book": self.book.snapshot(), "leased": sorted(self.leased)}
        if self.book.floor:
            said["epochs_above"] = self.book.floor
        if self.obeyed:
            said["obeyed"] = [list(row) for row in sorted(self.obeyed.items())]
        return said

    def restore(self, raw: JsonObject) -> None:
        """Become what `snapshot` returned. Raises FieldError."""
        fields = Fields(raw, "homes")
        book = fields.child("book")
        rows = book.items("rows", count_max=HOME_ROWS_MAX)
        book.done()
        leased = fields.integers("leased", count_max=4 * REGIONS_MAX, low=1, high=REGION_NUMBER_MAX)
        floor = fields.integer("epochs_above", low=FIRST_FLOOR, high=EPOCH_MAX) if fields.has("epochs_above") else 0
        obeyed = _read_obeyed(fields)
        fields.done()
        self.book = HomeBook.restored({"rows": rows}, rows_max=HOME_ROWS_MAX, floor=floor)
        self.leased = {RegionNumber(number) for number in leased}
        self.obeyed = obeyed

    def elected(self) -> None:
        """Begin to lead: carry on what the book says."""
        if self.duties is not None:
            self.duties.elected()

    def deposed(self) -> None:
        """Lead no more."""
        if self.duties is not None:
            self.duties.deposed()

    @staticmethod
    def read_refused(outcome: JsonObject) -> list[tuple[StreamKey, str, str]]:
        """Return (stream, code, text) of the refusals in an outcome of `apply`."""
        rows = outcome["refused"]
        assert isinstance(rows, list), outcome  # `apply` made it
        return [
            (
                StreamKey(bytes.fromhex(row["topic_id"]), RegionNumber(row.get("origin", 0)), row["partition"]),
                row["code"],
                row["text"],
            )
            for row in rows
        ]

    # --- commands ---------------------------------------------------------------------------------

    def _forget_deleted(self) -> None:
        """Drop the rows of topics that are gone: their ids never come back."""
        gone = {row.topic_id for row in self.book.rows() if self._topics.find(row.topic_id) is None}
        for topic_id in gone:
            self.book.forget_topic(topic_id)

    def _begin(self, wishes: list[Beginning], index: int) -> JsonObject:
        refused: list[JsonObject] = []
        for wish in sorted(wishes, key=lambda wish: _place(wish.key)):
            try:
                topic = self._movable(wish.key)
                self._check_target(wish)
                row = self.book.row(wish.key) or self._first(topic, wish.key)
                self.book.begin(wish, first=row, regions=tuple(sorted(self._to_ask(topic, row))), index=index)
            except GeorelayError as error:
                refused.append(_refusal(wish.key, error))
        return {"refused": refused}

    def _end(self, ends: list[Ending], index: int) -> JsonObject:
        refused: list[JsonObject] = []
        for ending in sorted(ends, key=lambda ending: _place(ending.key)):
            try:
                topic = self._movable(ending.key)
                self._check_ending(topic, ending)
                self.book.end(ending, regions=self._topics.holders(topic), index=index)
            except GeorelayError as error:
                refused.append(_refusal(ending.key, error))
        return {"refused": refused}

    def _to_ask(self, topic: TopicDefinition, row: HomeRow) -> set[RegionNumber]:
        """Return who is to be asked: the home, and whoever may have counted in this epoch.

        A region that came since may have. One that was removed is not missed: before it was, all others had what was
        acknowledged with its help (region.control.departure).
        """
        stayed = (region for region in row.regions if not self._topics.is_removed(region))
        return {row.home, *self._topics.holders(topic), *stayed}

    def _check_ending(self, topic: TopicDefinition, ending: Ending) -> None:
        """Refuse to end an attempt of which the regions changed under it (rule 4)."""
        if self._topics.is_removed(ending.home):
            raise BadRequest(f"region {ending.home} left the mesh: it cannot be the home of {ending.key}")
        row = self.book.row(ending.key)
        if row is None or row.moving is None or row.moving.kind is not MoveKind.FORCED:
            return
        joined = sorted(self._to_ask(topic, row).difference(row.regions))
        if joined:
            raise Busy(f"regions {joined} joined since the attempt for {ending.key} began: it has to begin anew")

    def _check_target(self, wish: Beginning) -> None:
        if wish.kind is MoveKind.PLANNED and not self._topics.may_be_home(wish.target):
            raise BadRequest(f"region {wish.target} takes no homes: it is unknown, a witness, leaving or too old")

    def _movable(self, key: StreamKey) -> TopicDefinition:
        topic = self._topics.find(key.topic_id)
        if topic is None or not 0 <= key.partition < topic.partitions:
            raise UnknownTopic(f"stream {key} is unknown")
        if topic.homes is not Homes.ONE and not is_coordination(topic):
            raise BadRequest(f"every region is home of its own stream of {topic.name}: there is nothing to move")
        if not self._is_stream(topic, key):
            raise UnknownTopic(f"stream {key} is unknown")
        return topic

    def _first(self, topic: TopicDefinition, key: StreamKey) -> HomeRow:
        home = key.origin or topic.home
        regions = {home, *self._topics.holders(topic)}
        return HomeRow.first(
            key.topic_id,
            key.partition,
            home=home,
            regions=tuple(sorted(regions)),
            digest=first_digest(key),
            origin=key.origin,
        )


def begin_command(
    keys: list[StreamKey], *, move_id: str, kind: MoveKind, target: RegionNumber = _ONE_HOME
) -> JsonObject:
    """Return the command that begins attempts for at most STREAMS_PER_COMMAND_MAX streams."""
    streams = [[key.topic_id.hex(), key.partition, *([key.origin] if key.origin else [])] for key in keys]
    return {"kind": "begin", "move_id": move_id, "move": str(kind), "target": target, "streams": streams}


def end_command(ends: list[Ending]) -> JsonObject:
    """Return the command that ends attempts of at most STREAMS_PER_COMMAND_MAX streams."""
    rows: list[JsonObject] = [
        key_json(ending.key)
        | {
            "move_id": ending.move_id,
            "home": ending.home,
            "start": ending.start,
            "digest": ending.digest.hex(),
            "accept_loss": ending.accept_loss,
        }
        for ending in ends
    ]
    return {"kind": "end", "ends": rows}


def leased_command(region: RegionNumber) -> JsonObject:
    """Return the command that notes that the brokers of a region ask for leases."""
    return {"kind": "leased", "region": region}


def obeyed_command(region: RegionNumber, *, index: int) -> JsonObject:
    """Return the command that notes up to which definition the brokers of a region follow failover policies."""
    return {"kind": "obeyed", "region": region, "index": index}


def _read_obeyed(fields: Fields) -> dict[RegionNumber, int]:
    found: dict[RegionNumber, int] = {}
    for item in fields.items("obeyed", count_max=4 * REGIONS_MAX) if fields.has("obeyed") else ():
        if not isinstance(item, list):
            raise FieldError("obeyed holds something else than pairs")
        pair = Fields({"region": item[:1], "index": item[1:]}, "obeyed")
        regions = pair.integers("region", count_max=1, low=1, high=REGION_NUMBER_MAX)
        indexes = pair.integers("index", count_max=1, low=0, high=INT64_MAX)
        if len(regions) != 1 or len(indexes) != 1:
            raise FieldError("obeyed holds something else than pairs")
        found[RegionNumber(regions[0])] = indexes[0]
    return found


def _read_begin(fields: Fields) -> list[Beginning]:
    move_id = fields.text("move_id", chars_min=1, chars_max=MOVE_ID_CHARS_MAX)
    kind = fields.member("move", MoveKind)
    target = RegionNumber(fields.integer("target", low=0, high=REGION_NUMBER_MAX))
    keys = [_read_key(item) for item in fields.items("streams", count_max=STREAMS_PER_COMMAND_MAX)]
    fields.done()
    if len(set(keys)) != len(keys):
        raise FieldError("a command names one stream twice")
    return [Beginning(key=key, move_id=move_id, kind=kind, target=target) for key in keys]


def _read_key(item: object) -> StreamKey:
    if not isinstance(item, list) or not 2 <= len(item) <= 3:
        raise FieldError("a stream is not [topic id, partition] or [topic id, partition, origin]")
    return read_key(Fields(dict(zip(("topic_id", "partition", "origin"), item, strict=False)), "stream"))


def _read_ends(fields: Fields) -> list[Ending]:
    ends = [_read_ending(item) for item in fields.items("ends", count_max=STREAMS_PER_COMMAND_MAX)]
    fields.done()
    if len({ending.key for ending in ends}) != len(ends):
        raise FieldError("a command names one stream twice")
    return ends


def _read_ending(item: object) -> Ending:
    fields = Fields(item, "end")
    ending = Ending(
        key=read_key(fields),
        move_id=fields.text("move_id", chars_min=1, chars_max=MOVE_ID_CHARS_MAX),
        home=RegionNumber(fields.integer("home", low=1, high=REGION_NUMBER_MAX)),
        start=Offset(fields.integer("start", low=0, high=INT64_MAX)),
        digest=fields.blob("digest", size_bytes=DIGEST_BYTES),
        accept_loss=fields.flag("accept_loss"),
    )
    fields.done()
    return ending


def _place(key: StreamKey) -> tuple[bytes, int, int]:
    return key.topic_id, key.partition, key.origin


def _refusal(key: StreamKey, error: GeorelayError) -> JsonObject:
    return key_json(key) | {"code": error.code, "text": str(error)}
