"""Topic definitions: ordered by one region, the definitions home, and pulled by all others.

Rule 1: only the controller leader of the definitions home orders; everybody else asks it, and is refused while it
cannot be reached.
Rule 2: a creation carries the topic id from the start, so that the same wish sent twice makes one topic.
Rule 3: another region proposes pulled definitions one after the other in order of their index, and stops at the first
that fails: a region never holds a later definition without the earlier ones. Topics and security have a position each,
see security_book.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import structlog

from georelay.errors import BadRequest, PolicyViolation, TopicExists, UnknownTopic
from georelay.fields import INT64_MAX, FieldError, Fields, JsonObject
from region.controller import security_pull
from region.controller.commands import AlterTopic, Command, DefineTopic, DropTopic
from region.controller.definition_rules import ALTERABLE, alter, define, region_prefix
from region.controller.routing import PASSING, Route
from region.controller.security_rules import SECURITY_LEVEL
from region.controller.state_core import ControllerState, Done
from region.controller.topic import (
    SETTING_NAME_CHARS_MAX,
    SETTING_VALUE_CHARS_MAX,
    SETTINGS_MAX,
    TOPIC_ID_BYTES,
    Definition,
    Tombstone,
    TopicDefinition,
    TopicSpec,
)
from region.controller.topology import Topology

log = structlog.get_logger()

DEFINITIONS_PER_PULL: Final = 200
CREATE: Final = "definitions.create"
ALTER: Final = "definitions.alter"
DELETE: Final = "definitions.delete"
SINCE: Final = "definitions.since"
HINT: Final = "definitions.hint"


class Definitions:
    """Creating, deleting and pulling definitions, seen from one broker.

    Args:
        commit: proposes a command on this broker and returns its outcome, or raises why it was refused.
        ordered: told the index of each definition that this broker, as leader of the definitions home, ordered.
    """

    def __init__(
        self,
        *,
        state: ControllerState,
        topology: Topology,
        route: Route,
        commit: Callable[[Command], Awaitable[Done]],
        new_topic_id: Callable[[], bytes],
        ordered: Callable[[int], None],
    ) -> None:
        self._state = state
        self._topology = topology
        self._route = route
        self._commit = commit
        self._new_topic_id = new_topic_id
        self._ordered = ordered

    async def create(self, spec: TopicSpec, *, if_absent: bool) -> TopicDefinition:
        """Have a topic defined; return the definition with its index. `if_absent` takes the one that is there already.

        Raises:
            InvalidTopic, TopicExists, PolicyViolation: nothing was defined.
            HomeUnreachable: the definitions home cannot be reached; nothing was defined.
            Unavailable, OutcomeUnknown: it may be defined; ask again.
        """
        body: JsonObject = {"spec": spec.to_json(), "topic_id": self._new_topic_id().hex(), "if_absent": if_absent}
        result = await self._route.retrying(lambda: self._ask_home(CREATE, body, self.serve_create))
        return _definition_in(result)

    async def alter(
        self, name: str, settings: Mapping[str, str | None], *, partitions: int | None = None
    ) -> TopicDefinition:
        """Have settings of a topic changed (None: back to the default), or partitions added; return the definition.

        Raises:
            UnknownTopic, InvalidTopic, PolicyViolation: nothing was changed. Others as in `create`.
        """
        if region_prefix(name, self._topology) is not None:
            raise PolicyViolation(f"{name} is one region's stream of a topic; alter the topic by its plain name")
        body: JsonObject = {
            "name": name,
            "settings": {key: value for key, value in settings.items() if value is not None},
            "defaults": [key for key, value in settings.items() if value is None],
            "partitions": partitions or 0,
        }
        return _definition_in(await self._route.retrying(lambda: self._ask_home(ALTER, body, self.serve_alter)))

    async def delete(self, name: str) -> Tombstone:
        """Have a topic deleted for ever; return its tombstone.

        Raises:
            UnknownTopic, PolicyViolation: nothing was deleted. Others as in `create`.
        """
        if region_prefix(name, self._topology) is not None:
            raise PolicyViolation(f"{name} is one region's stream of a topic; delete the topic by its plain name")
        known = self._state.topic_by_name(name)
        lost_an_answer = False

        async def attempt() -> Tombstone:
            nonlocal lost_an_answer
            try:
                return _tombstone_in(await self._ask_home(DELETE, {"name": name}, self.serve_delete))
            except PASSING:
                lost_an_answer = True
                raise
            except UnknownTopic:
                if not lost_an_answer or known is None:
                    raise
                return Tombstone(name=name, topic_id=known.topic_id, index=known.index + 1)

        return await self._route.retrying(attempt)

    async def pull(self) -> bool:
        """Fetch and apply newer definitions, as leader of another region; return whether there may be more.

        Raises:
            HomeUnreachable, OutcomeUnknown, Unavailable, BadRequest: try again later.
        """
        since = self._state.definitions_index
        body: JsonObject = {"since": since}
        if self._state.feature_level >= SECURITY_LEVEL:
            body["security_since"] = self._state.security.index
        result = await self._route.to_region(self._topology.definitions_home, SINCE, body)
        pulled = _definitions_in(result)
        for definition in pulled:
            if definition.index <= since:
                raise BadRequest(f"definition {definition.index} came after {since}: not in order")
            since = definition.index
            await self._commit(
                DropTopic(tombstone=definition)
                if isinstance(definition, Tombstone)
                else DefineTopic(definition=definition)
            )
        if pulled:
            log.info("definitions.pulled", count=len(pulled), index=since)
        has_more = await security_pull.take(result, self._state.security.index, self._commit)
        return has_more or len(pulled) == DEFINITIONS_PER_PULL

    # --- what other brokers ask ---------------------------------------------------------------------------------------

    async def serve_create(self, body: JsonObject) -> JsonObject:
        """Define a topic, as leader of the definitions home."""
        self._require_home()
        fields = Fields(body, CREATE)
        spec = TopicSpec.from_json(fields.value("spec"))
        topic_id = fields.blob("topic_id", size_bytes=TOPIC_ID_BYTES)
        if_absent = fields.flag("if_absent")
        existing = self._state.topic_by_name(spec.name)
        if existing is not None and if_absent:
            return {"definition": existing.to_json()}
        if existing is not None and existing.topic_id != topic_id:
            raise TopicExists(f"topic {spec.name} is there already")
        brokers = self._state.strength if self._state.has_life_cycle else None
        wanted = define(spec, topic_id=topic_id, topology=self._topology, own_brokers=brokers)
        try:
            done = await self._commit(DefineTopic(definition=wanted))
        except TopicExists:
            # Somebody else's wish was ordered while ours was on its way.
            existing = self._state.topic_by_name(spec.name)
            if existing is None or not if_absent:
                raise
            return {"definition": existing.to_json()}
        return self._report(done)

    async def serve_alter(self, body: JsonObject) -> JsonObject:
        """Alter a topic, as leader of the definitions home; the same wish twice changes it once."""
        self._require_home()
        fields = Fields(body, ALTER)
        name = fields.text("name", chars_max=1000)
        given = fields.child("settings").texts(
            count_max=SETTINGS_MAX, name_chars_max=SETTING_NAME_CHARS_MAX, chars_max=SETTING_VALUE_CHARS_MAX
        )
        partitions = fields.integer("partitions", low=0, high=2**31)
        existing = self._state.topic_by_name(name)
        if existing is None:
            raise UnknownTopic(f"there is no topic {name[:60]!r}")
        settings: dict[str, str | None] = dict(given)
        for value in fields.items("defaults", count_max=len(ALTERABLE)):
            settings[Fields({"name": value}, ALTER).text("name", chars_max=SETTING_NAME_CHARS_MAX)] = None
        wanted = alter(existing, settings, partitions=partitions or None)
        if wanted == existing:
            return {"definition": existing.to_json()}
        return self._report(await self._commit(AlterTopic(definition=wanted)))

    async def serve_delete(self, body: JsonObject) -> JsonObject:
        """Delete a topic, as leader of the definitions home."""
        self._require_home()
        name = Fields(body, DELETE).text("name", chars_max=1000)
        existing = self._state.topic_by_name(name)
        if existing is None:
            raise UnknownTopic(f"there is no topic {name[:60]!r}")
        return self._report(
            await self._commit(DropTopic(tombstone=Tombstone(name=name, topic_id=existing.topic_id, index=0)))
        )

    async def serve_since(self, body: JsonObject) -> JsonObject:
        """Return definitions above an index; any broker may, since all it has applied is committed."""
        self._require_home()
        fields = Fields(body, SINCE)
        since = fields.integer("since", low=0, high=INT64_MAX)
        newer = self._state.definitions_since(since, limit=DEFINITIONS_PER_PULL)
        answer: JsonObject = {"definitions": [_to_json(definition) for definition in newer]}
        if fields.has("security_since"):  # a region of the second feature level does not ask: it could not read them
            answer |= security_pull.give(self._state.security, fields)
        return answer

    def _require_home(self) -> None:
        if not self._topology.is_definitions_home:
            raise PolicyViolation(f"region {self._topology.own.name} is not the definitions home of this mesh")

    def _report(self, done: Done) -> JsonObject:
        assert done.definition is not None, "a definition was applied without an outcome"
        self._ordered(done.definition.index)
        return _to_json(done.definition)

    async def _ask_home(
        self, method: str, body: JsonObject, serve: Callable[[JsonObject], Awaitable[JsonObject]]
    ) -> JsonObject:
        if self._topology.is_definitions_home:
            return await self._route.to_leader(method, body, serve)
        return await self._route.to_region(self._topology.definitions_home, method, body)


def _to_json(definition: Definition) -> JsonObject:
    return {"tombstone" if isinstance(definition, Tombstone) else "definition": definition.to_json()}


def _read(value: object) -> Definition:
    fields = Fields(value, "definition")
    if fields.has("tombstone"):
        return Tombstone.from_json(fields.value("tombstone"))
    return TopicDefinition.from_json(fields.value("definition"))


def _definition_in(result: JsonObject) -> TopicDefinition:
    definition = _read_answer(result)
    if isinstance(definition, Tombstone):
        raise UnknownTopic(f"topic {definition.name} was deleted meanwhile")
    return definition


def _tombstone_in(result: JsonObject) -> Tombstone:
    definition = _read_answer(result)
    if isinstance(definition, Tombstone):
        return definition
    raise BadRequest(f"a deletion of {definition.name} was answered with a definition")


def _read_answer(result: JsonObject) -> Definition:
    try:
        return _read(result)
    except FieldError as error:
        raise BadRequest(f"the definitions home's answer is not readable: {error}") from error


def _definitions_in(result: JsonObject) -> list[Definition]:
    try:
        return [_read(item) for item in Fields(result, "answer").items("definitions", count_max=DEFINITIONS_PER_PULL)]
    except FieldError as error:
        raise BadRequest(f"the definitions home's answer is not readable: {error}") from error
