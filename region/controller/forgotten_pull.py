"""How a region follows that deletions were forgotten, also when it was away for longer than they were remembered.

Who answers a pull says up to which index deletions may be forgotten. A region that is above has them all. One that is
below, because its data came back from a backup or because it joins, may hold what was deleted and not be told so any
more. It asks for what it holds, page by page, and drops what the mesh has no more, before it goes on.

Rule 1: only an answer that has forgotten beyond the position of this region says that something is gone: it comes from
        somebody who has all that this region ever pulled. A replica that is behind knows less than the region.
Rule 2: nothing is asked again while the answers have forgotten the same; what was pulled meanwhile is from there.
Rule 3: a region below feature level 8 takes nothing where deletions are forgotten.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from georelay.errors import BadRequest, Unavailable
from georelay.fields import INT64_MAX, FieldError, Fields, JsonObject
from region.controller.command_kinds import FORGET_LEVEL
from region.controller.commands import (
    PLACES_PER_PAGE_MAX,
    TOPICS_PER_PAGE_MAX,
    Command,
    ForgetDeleted,
    read_places,
    read_topic_ids,
)
from region.controller.effects import Done
from region.controller.security_book import SecurityBook
from region.controller.state_core import ControllerState
from region.controller.state_snapshot import read_forgotten
from region.controller.topic import TopicDefinition
from region.security.definition import Grave, Kind, kind_of

log = structlog.get_logger()

HELD: Final = "held"
GONE: Final = "gone"
Held = tuple[tuple[bytes, ...], tuple[tuple[Kind, str], ...]]


def gone_of(topic_by_id: Callable[[bytes], TopicDefinition | None], security: SecurityBook, held: Fields) -> JsonObject:
    """Answer which of the things that a region holds are no more. Raises FieldError."""
    topics, places = _read_held(held)
    return {GONE: _held_json(_gone_topics(topics, topic_by_id), _gone_places(places, security))}


def _gone_topics(
    topics: tuple[bytes, ...], topic_by_id: Callable[[bytes], TopicDefinition | None]
) -> tuple[bytes, ...]:
    return tuple(topic_id for topic_id in topics if topic_by_id(topic_id) is None)


def _gone_places(places: tuple[tuple[Kind, str], ...], book: SecurityBook) -> tuple[tuple[Kind, str], ...]:
    return tuple(place for place in places if isinstance(book.find(*place), Grave | None))


class ForgottenPull:
    """Seen from the leader of a region's controller."""

    def __init__(self) -> None:
        self._checked = (0, 0)

    async def follow(
        self,
        result: JsonObject,
        state: ControllerState,
        ask: Callable[[JsonObject], Awaitable[JsonObject]],
        commit: Callable[[Command], Awaitable[Done]],
    ) -> None:
        """Forget what the giver of an answer has forgotten, after dropping what it has no more.

        Raises:
            Unavailable, BadRequest: take nothing of the answer. Others as `ask` and `commit`.
        """
        forgotten = _forgotten_in(result)
        if forgotten == (0, 0):
            return
        if state.feature_level < FORGET_LEVEL:
            raise Unavailable(
                f"the mesh has forgotten deletions, which a region understands from feature level {FORGET_LEVEL} on; "
                f"this one is at {state.feature_level}: upgrade all its brokers"
            )
        if forgotten != self._checked:
            for topics, places in _pages(state, forgotten):
                await self._drop_gone(topics, places, forgotten, ask, commit)
        if any(own < wanted for own, wanted in zip(state.forgotten_to, forgotten, strict=True)):
            await commit(ForgetDeleted(topics_to=forgotten[0], security_to=forgotten[1]))
            log.info("definitions.deletions_forgotten", topics_to=forgotten[0], security_to=forgotten[1])
        self._checked = forgotten

    async def _drop_gone(
        self,
        topics: tuple[bytes, ...],
        places: tuple[tuple[Kind, str], ...],
        forgotten: tuple[int, int],
        ask: Callable[[JsonObject], Awaitable[JsonObject]],
        commit: Callable[[Command], Awaitable[Done]],
    ) -> None:
        answer = await ask({"since": INT64_MAX, HELD: _held_json(topics, places)})
        if _forgotten_in(answer) != forgotten:
            raise Unavailable("two replicas of mesh control have forgotten different deletions; ask again")
        try:
            gone_topics, gone_places = _read_held(Fields(answer, "answer").child(GONE))
        except FieldError as error:
            raise BadRequest(f"what is gone is not readable: {error}") from error
        if gone_topics or gone_places:
            gone = ForgetDeleted(topics_to=0, security_to=0, topics=gone_topics, security=gone_places)
            await commit(gone)
            log.warning(
                "definitions.dropped_late",
                topics=[topic_id.hex() for topic_id in gone_topics],
                security=[[kind.value, key] for kind, key in gone_places],
            )


def _pages(state: ControllerState, forgotten: tuple[int, int]) -> list[Held]:
    """Return what lives here of the books that are behind, in pages."""
    topics = [topic.topic_id for topic in state.topics()] if state.definitions_index < forgotten[0] else []
    places = (
        [(kind_of(row), row.key) for row in state.security.everything() if not isinstance(row, Grave)]
        if state.security.index < forgotten[1]
        else []
    )
    pages: list[Held] = []
    for at in range(0, len(topics), TOPICS_PER_PAGE_MAX):
        pages.append((tuple(topics[at : at + TOPICS_PER_PAGE_MAX]), ()))
    for at in range(0, len(places), PLACES_PER_PAGE_MAX):
        pages.append(((), tuple(places[at : at + PLACES_PER_PAGE_MAX])))
    return pages


def _forgotten_in(answer: JsonObject) -> tuple[int, int]:
    try:
        return read_forgotten(Fields(answer, "answer"))
    except FieldError as error:
        raise BadRequest(f"the answer of who orders definitions is not readable: {error}") from error


def _held_json(topics: tuple[bytes, ...], places: tuple[tuple[Kind, str], ...]) -> JsonObject:
    return {
        "topics": [topic_id.hex() for topic_id in topics],
        "security": [[kind.value, key] for kind, key in places],
    }


def _read_held(fields: Fields) -> Held:
    found = read_topic_ids(fields, "topics"), read_places(fields, "security")
    fields.done()
    return found
