"""How a region's controller gets what mesh control ordered: every list of it in one answer.

Lists and the position that is asked from:

    mesh          regions and control's own replicas, by index       mesh_since
    definitions   topics and tombstones, by index                    since
    security      users, lists, quotas, bindings (security_pull)     security_since
    homes         homes of streams, by (index, topic id, partition, origin)  homes_since

Rule 1: a region asks only for the lists that its feature level can take.
Rule 2: an answer is bounded; what is left comes with the next pull.
Rule 3: rows are committed in order, and the first that fails ends the pull: a region never holds a later row of a list
        without the earlier ones.
Rule 4: between two commits no home is in a region that is unknown or has left. So regions come first, except that one
        has left: that comes after the homes that went away from it, all of them. Topics come after both: streams find
        their regions, and rows of homes wait for their topics.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Protocol

import structlog

from georelay.errors import BadRequest
from georelay.fields import INT64_MAX, FieldError, Fields, JsonObject, dump_object
from mesh.home.home_row import HomeRow
from region.controller import forgotten_pull, security_pull
from region.controller.command_kinds import MESH_LEVEL
from region.controller.commands import (
    HOMES_PER_COMMAND_MAX,
    Command,
    DefineHome,
    DefineTopic,
    DropTopic,
    LearnMesh,
)
from region.controller.definition_orders import definition_to_json
from region.controller.effects import Done
from region.controller.home_book import BEFORE_ALL, HomePosition, position_of
from region.controller.mesh_rows import REGION_ROWS_MAX, ControlRow, RegionRow, RegionState
from region.controller.security_book import SecurityBook
from region.controller.security_rules import SECURITY_LEVEL
from region.controller.state_core import ControllerState
from region.controller.state_snapshot import forgotten_json, position_json, read_position
from region.controller.topic import Definition, Tombstone, TopicDefinition

log = structlog.get_logger()

DEFINITIONS_PER_PULL: Final = 200
HOMES_PER_PULL: Final = 1_000
HOMES_BYTES_MAX: Final = 512 * 1024  # of one answer, plus one row
HOMES_COMMAND_BYTES_MAX: Final = 256 * 1024
MESH_SINCE: Final = "mesh_since"
HOMES_SINCE: Final = "homes_since"


class PulledBooks(Protocol):
    """What can be asked for: control's own state, or what the definitions home has of it."""

    @property
    def security(self) -> SecurityBook:
        """Return users, lists, quotas and bindings."""

    @property
    def forgotten_to(self) -> tuple[int, int]:
        """Return up to which index deletions of topics, and of security, may be forgotten."""

    def topic_by_id(self, topic_id: bytes) -> TopicDefinition | None:
        """Return the live topic with that id."""

    def definitions_since(self, index: int, *, limit: int) -> list[Definition]:
        """Return topics and tombstones above an index."""

    def homes_since(self, position: HomePosition, *, limit: int) -> list[HomeRow]:
        """Return homes above a position."""

    def regions_since(self, index: int) -> list[RegionRow]:
        """Return regions above an index."""

    def control_since(self, index: int) -> ControlRow | None:
        """Return who control is, when that is above an index."""


def question(state: ControllerState) -> JsonObject:
    """Return what this region asks: its position in every list that its feature level takes."""
    body: JsonObject = {"since": state.definitions_index}
    if state.feature_level >= SECURITY_LEVEL:
        body[security_pull.SINCE] = state.security.index
    if state.feature_level >= MESH_LEVEL:
        body[MESH_SINCE] = state.mesh.index
        if state.homes.position != BEFORE_ALL:
            body[HOMES_SINCE] = position_json(state.homes.position)
    return body


def give(books: PulledBooks, fields: Fields) -> JsonObject:
    """Return the answer to a question. Raises FieldError."""
    since = fields.integer("since", low=0, high=INT64_MAX)
    newer = books.definitions_since(since, limit=DEFINITIONS_PER_PULL)
    answer: JsonObject = {"definitions": [definition_to_json(definition) for definition in newer]}
    answer |= forgotten_json(*books.forgotten_to)
    if fields.has(forgotten_pull.HELD):
        answer |= forgotten_pull.gone_of(books.topic_by_id, books.security, fields.child(forgotten_pull.HELD))
    if fields.has(security_pull.SINCE):  # a region of the second feature level does not ask: it could not read them
        answer |= security_pull.give(books.security, fields)
    if fields.has(MESH_SINCE):
        answer |= _give_mesh(books, fields)
    return answer


def _give_mesh(books: PulledBooks, fields: Fields) -> JsonObject:
    since = fields.integer(MESH_SINCE, low=0, high=INT64_MAX)
    control = books.control_since(since)
    position = read_position(fields.child(HOMES_SINCE)) if fields.has(HOMES_SINCE) else BEFORE_ALL
    newer = books.homes_since(position, limit=HOMES_PER_PULL)
    rows = list(_up_to((row.to_json() for row in newer), HOMES_BYTES_MAX))
    return {
        "control": None if control is None else control.to_json(),
        "regions": [row.to_json() for row in books.regions_since(since)],
        "homes": rows,
        "homes_more": len(rows) < len(newer) or len(newer) == HOMES_PER_PULL,
    }


def _up_to(rows: Iterable[JsonObject], bytes_max: int) -> Iterable[JsonObject]:
    size_bytes = 0
    for row in rows:
        yield row
        size_bytes += len(dump_object(row))
        if size_bytes >= bytes_max:
            return


async def take(result: JsonObject, state: ControllerState, commit: Callable[[Command], Awaitable[Done]]) -> bool:
    """Commit what an answer brings, in order; return whether there may be more.

    Raises:
        BadRequest: not an answer, or not in order. Others as `commit`.
    """
    learned = _read_mesh(result)
    leavers = {row.number for row in learned.regions if _leaves(row, state)}
    if leavers:
        stayers = tuple(row for row in learned.regions if row.number not in leavers and _is_new(row, state))
        await _learn(LearnMesh(control=learned.control, regions=stayers, is_all=False), commit)
    else:
        await _learn(learned, commit)
    more_homes = await _take_homes(result, state.homes.position, commit)
    if leavers and more_homes:
        return True
    if leavers:
        await _learn(learned, commit)
    pulled = await _take_definitions(result, state.definitions_index, commit)
    has_more = await security_pull.take(result, state.security.index, commit)
    return has_more or more_homes or pulled == DEFINITIONS_PER_PULL


def _read_mesh(result: JsonObject) -> LearnMesh:
    try:
        fields = Fields(result, "answer")
        if not fields.has("regions"):  # a definitions home of an earlier version, or this region did not ask
            return LearnMesh(control=None, regions=())
        raw = fields.value("control")
        return LearnMesh(
            control=None if raw is None else ControlRow.from_json(raw),
            regions=tuple(RegionRow.from_json(item) for item in fields.items("regions", count_max=REGION_ROWS_MAX)),
        )
    except FieldError as error:
        raise _unreadable(error) from error


def _leaves(row: RegionRow, state: ControllerState) -> bool:
    """Return whether a row says that a region has left, and streams here may still have their homes in it."""
    known = state.mesh.regions.get(row.number)
    is_known = known is not None and known.state is RegionState.REMOVED
    return row.state is RegionState.REMOVED and not is_known


def _is_new(row: RegionRow, state: ControllerState) -> bool:
    known = state.mesh.regions.get(row.number)
    return known is None or row.index > known.index


async def _learn(learned: LearnMesh, commit: Callable[[Command], Awaitable[Done]]) -> None:
    if learned.control is not None or learned.regions:
        await commit(learned)
        log.info("mesh.learned", regions=[row.number for row in learned.regions], control=learned.control is not None)


async def _take_definitions(result: JsonObject, since: int, commit: Callable[[Command], Awaitable[Done]]) -> int:
    try:
        items = Fields(result, "answer").items("definitions", count_max=DEFINITIONS_PER_PULL)
        pulled = [read_definition(item) for item in items]
    except FieldError as error:
        raise _unreadable(error) from error
    for definition in pulled:
        if definition.index <= since:
            raise BadRequest(f"definition {definition.index} came after {since}: not in order")
        since = definition.index
        await commit(
            DropTopic(tombstone=definition) if isinstance(definition, Tombstone) else DefineTopic(definition=definition)
        )
    if pulled:
        log.info("definitions.pulled", count=len(pulled), index=since)
    return len(pulled)


async def _take_homes(result: JsonObject, since: HomePosition, commit: Callable[[Command], Awaitable[Done]]) -> bool:
    try:
        fields = Fields(result, "answer")
        if not fields.has("homes"):
            return False
        rows = [HomeRow.from_json(item) for item in fields.items("homes", count_max=HOMES_PER_PULL)]
        has_more = fields.flag("homes_more")
    except FieldError as error:
        raise _unreadable(error) from error
    for row in rows:
        if position_of(row) <= since:
            raise BadRequest(f"home row {row.index} of {row.key} came after {since[0]}: not in order")
        since = position_of(row)
    for some in _commands_of(rows):
        await commit(DefineHome(rows=tuple(some)))
    if rows:
        log.info("homes.pulled", count=len(rows), index=since[0])
    return has_more and bool(rows)


def _commands_of(rows: list[HomeRow]) -> Iterable[list[HomeRow]]:
    some: list[HomeRow] = []
    size_bytes = 0
    for row in rows:
        some.append(row)
        size_bytes += len(dump_object(row.to_json()))
        if len(some) == HOMES_PER_COMMAND_MAX or size_bytes >= HOMES_COMMAND_BYTES_MAX:
            yield some
            some, size_bytes = [], 0
    if some:
        yield some


def read_definition(value: object) -> Definition:
    """Read what `definition_to_json` made. Raises FieldError."""
    fields = Fields(value, "definition")
    if fields.has("tombstone"):
        return Tombstone.from_json(fields.value("tombstone"))
    return TopicDefinition.from_json(fields.value("definition"))


def _unreadable(error: FieldError) -> BadRequest:
    return BadRequest(f"the answer of who orders definitions is not readable: {error}")
