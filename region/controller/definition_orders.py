"""Ordering definitions: what the one who orders does with a wish. Until mesh control exists that is the leader of the
definitions home's controller; afterwards it is control's leader, with the same code.

Rule 1: a wish is judged against the newest state and judged again when its command is applied.
Rule 2: the same wish sent twice is fulfilled once: a creation carries its topic id from the start.
Rule 3: a setting that brokers of before do not enforce is ordered once every region understands it: an older one would
        show its consumers what too few regions have, or delete what is to be kept. Back to its default it may go at any
        time. Who asks judges that too, because who orders may be the older one.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from georelay.errors import Busy, GeorelayError, OutcomeUnknown, PolicyViolation, TopicExists, UnknownTopic
from georelay.fields import Fields, JsonObject
from region.controller import security_wishes
from region.controller.command_kinds import MESH_LEVEL, SETTINGS_LEVEL
from region.controller.commands import BY_CHARS_MAX, AlterTopic, Command, DefineSecurity, DefineTopic, DropTopic
from region.controller.definition_rules import alter, define
from region.controller.effects import Done
from region.controller.geo_settings import GEO_DEFAULTS
from region.controller.security_book import SecurityBook
from region.controller.security_rules import SECURITY_LEVEL
from region.controller.topic import TOPIC_ID_BYTES, Definition, Tombstone, TopicDefinition, TopicSpec
from region.controller.topic_settings import (
    ALTERABLE,
    ENFORCED_SINCE_LEVEL_5,
    SETTING_NAME_CHARS_MAX,
    SETTING_VALUE_CHARS_MAX,
    SETTINGS_MAX,
)
from region.controller.topology import Topology
from region.security.definition import SECRET_BYTES, Kind, Secret, SecurityDefinition, kind_of
from region.security.user import OLDER_SALT_BYTES_MIN, SHORT_SALT_LEVEL, User

CREATE: Final = "definitions.create"
ALTER: Final = "definitions.alter"
DELETE: Final = "definitions.delete"
CHANGE: Final = "security.change"
BY: Final = "by"  # who wishes it, as the broker says that was asked: for the audit log, and for shares of topics
TRIES_MAX: Final = 5  # against other administrators
# The feature level from which a region enforces a setting; the others are enforced by all, or have no effect.
LEVEL_OF_SETTING: Final[Mapping[str, int]] = {
    **dict.fromkeys(GEO_DEFAULTS, MESH_LEVEL),
    **dict.fromkeys(ENFORCED_SINCE_LEVEL_5, SETTINGS_LEVEL),
}
Config = tuple[tuple[str, str], ...]
LEVELS_WAIT_S: Final = 3.0  # for regions that have just begun to say what they understand
_LEVELS_LOOK_S: Final = 0.1


class OrderedBooks(Protocol):
    """What is defined, as its orderer knows it."""

    @property
    def feature_level(self) -> int:
        """Return what may be written."""

    @property
    def own_brokers(self) -> int | None:
        """Return how many brokers the orderer's region counts on; None: what the topology says."""

    @property
    def security(self) -> SecurityBook:
        """Return users, lists, quotas and bindings."""

    def topic_by_name(self, name: str) -> TopicDefinition | None:
        """Return the live topic of that name."""


Commit = Callable[[Command], Awaitable[Done]]
OlderRegions = Callable[[int], Sequence[str]]


def every_region_is_new(_level: int) -> Sequence[str]:
    """Name no region that is below a feature level."""
    return ()


async def until_understood(wanted: Config, before: Config, older_regions: OlderRegions) -> None:
    """Return when every region enforces what `wanted` sets and `before` did not. Raises PolicyViolation."""
    new = sorted(name for name, _ in set(wanted) - set(before) if name in LEVEL_OF_SETTING)
    if not new:
        return
    name = max(new, key=LEVEL_OF_SETTING.__getitem__)
    tries = round(LEVELS_WAIT_S / _LEVELS_LOOK_S)
    while (older := older_regions(LEVEL_OF_SETTING[name])) and tries:
        await asyncio.sleep(_LEVELS_LOOK_S)
        tries -= 1
    if older:
        raise PolicyViolation(
            f"setting {name}: every region has to understand it, and {', '.join(older)} did not say so; "
            "upgrade or reach them, then ask again"
        )


@dataclass(frozen=True, slots=True)
class Ordered:
    """A definition of security that was ordered here.

    Args:
        asker: the broker that asked for it, 0 where that is not known.
        by: whom that broker names.
    """

    definition: SecurityDefinition
    index: int
    asker: int
    by: str


class DefinitionOrders:
    """Topics.

    Args:
        commit: proposes a command and returns its outcome, or raises why it was refused.
        ordered: told the index of each definition that was ordered.
        older_regions: names of the regions that hold topics and are below a feature level, or have not said which they
            are at.
        pace: told of a principal and the partitions of a topic that it is about to create; may raise Throttled.
        keeps_owners: whether all who keep definitions here can read whose a topic is.
    """

    def __init__(
        self,
        *,
        books: OrderedBooks,
        topology: Callable[[], Topology],
        commit: Commit,
        ordered: Callable[[int], None],
        older_regions: OlderRegions = every_region_is_new,
        keeps_owners: Callable[[], bool] = lambda: False,
        pace: Callable[[str, int], None] = lambda _, __: None,
    ) -> None:
        self._pace = pace
        self._older_regions = older_regions
        self._keeps_owners = keeps_owners
        self._books = books
        self._topology = topology
        self._commit = commit
        self._ordered = ordered

    async def create(self, body: JsonObject) -> JsonObject:
        """Define a topic."""
        fields = Fields(body, CREATE)
        spec = TopicSpec.from_json(fields.value("spec"))
        topic_id = fields.blob("topic_id", size_bytes=TOPIC_ID_BYTES)
        if_absent = fields.flag("if_absent")
        by = fields.text(BY, chars_max=BY_CHARS_MAX) if fields.has(BY) else ""
        existing = self._books.topic_by_name(spec.name)
        if existing is not None and if_absent:
            return {"definition": existing.to_json()}
        if existing is not None and existing.topic_id != topic_id:
            raise TopicExists(f"topic {spec.name} is there already")
        wanted = define(spec, topic_id=topic_id, topology=self._topology(), own_brokers=self._books.own_brokers)
        await until_understood(wanted.config, (), self._older_regions)
        self._pace(by, wanted.partitions)
        try:
            done = await self._commit(DefineTopic(definition=wanted, by=by if self._keeps_owners() else ""))
        except TopicExists:
            # Somebody else's wish was ordered while ours was on its way.
            existing = self._books.topic_by_name(spec.name)
            if existing is None or not if_absent:
                raise
            return {"definition": existing.to_json()}
        return self._report(done)

    async def alter(self, body: JsonObject) -> JsonObject:
        """Alter a topic; the same wish twice changes it once."""
        fields = Fields(body, ALTER)
        name = fields.text("name", chars_max=1000)
        given = fields.child("settings").texts(
            count_max=SETTINGS_MAX, name_chars_max=SETTING_NAME_CHARS_MAX, chars_max=SETTING_VALUE_CHARS_MAX
        )
        partitions = fields.integer("partitions", low=0, high=2**31)
        existing = self._books.topic_by_name(name)
        if existing is None:
            raise UnknownTopic(f"there is no topic {name[:60]!r}")
        settings: dict[str, str | None] = dict(given)
        for value in fields.items("defaults", count_max=len(ALTERABLE)):
            settings[Fields({"name": value}, ALTER).text("name", chars_max=SETTING_NAME_CHARS_MAX)] = None
        regions = len(self._topology().data_regions)
        wanted = alter(existing, settings, partitions=partitions or None, regions=regions)
        if wanted == existing:
            return {"definition": existing.to_json()}
        await until_understood(wanted.config, existing.config, self._older_regions)
        return self._report(await self._commit(AlterTopic(definition=wanted)))

    async def delete(self, body: JsonObject) -> JsonObject:
        """Delete a topic."""
        name = Fields(body, DELETE).text("name", chars_max=1000)
        existing = self._books.topic_by_name(name)
        if existing is None:
            raise UnknownTopic(f"there is no topic {name[:60]!r}")
        return self._report(
            await self._commit(DropTopic(tombstone=Tombstone(name=name, topic_id=existing.topic_id, index=0)))
        )

    def _report(self, done: Done) -> JsonObject:
        assert done.definition is not None, "a definition was applied without an outcome"
        self._ordered(done.definition.index)
        return definition_to_json(done.definition)


class SecurityOrders:
    """Users, lists, quotas, bindings. Arguments as of DefinitionOrders.

    Args:
        noted: told of each definition that was ordered, whatever way the wish came.
    """

    def __init__(
        self,
        *,
        books: OrderedBooks,
        commit: Commit,
        ordered: Callable[[int], None],
        noted: Callable[[Ordered], None] = lambda _: None,
        older_regions: Callable[[int], Sequence[str]] = lambda _: (),
        new_secret: Callable[[], bytes] = lambda: secrets.token_bytes(SECRET_BYTES),
    ) -> None:
        self._books = books
        self._commit = commit
        self._ordered = ordered
        self._noted = noted
        self._older_regions = older_regions
        self._new_secret = new_secret

    async def change(self, body: JsonObject, asker: int = 0) -> JsonObject:
        """Fulfil a wish of security_wishes; return the index from which on it is fulfilled."""
        if self._books.feature_level < SECURITY_LEVEL:
            raise PolicyViolation("the definitions home has brokers that know no users: upgrade them, then ask again")
        fields = Fields(body, CHANGE)
        value = fields.value("wish")
        wish = dict(value) if isinstance(value, dict) else {}
        by = fields.text(BY, chars_max=BY_CHARS_MAX) if fields.has(BY) else ""
        done = 0
        for _ in range(TRIES_MAX):
            try:
                for definition in await self._planned(wish):
                    index = await self._order(definition)
                    done += 1
                    self._noted(Ordered(definition, index, asker, by))
                return {"index": self._books.security.index}
            except Busy:
                continue  # somebody else was first: judge the wish against what is there now
            except GeorelayError as error:
                if not done:
                    raise
                raise OutcomeUnknown(f"{done} definitions were changed, then: {error}") from error
        text = "others change the same users or lists all the time; ask again"
        raise OutcomeUnknown(f"{done} definitions were changed, then: {text}") if done else Busy(text)

    async def _planned(self, wish: JsonObject) -> Sequence[SecurityDefinition]:
        planned = security_wishes.plan(self._books.security, wish)
        self._refuse_unreadable(planned)
        if any(kind_of(definition) is Kind.USER for definition in planned) and not self._books.security.secret():
            await self._order(Secret(value=self._new_secret()))
        return planned

    def _refuse_unreadable(self, planned: Sequence[SecurityDefinition]) -> None:
        """Refuse a key that a region of an older version could not read: it would pull nothing any more."""
        salts = [key.salt for user in planned if isinstance(user, User) for key in user.keys]
        if all(len(salt) >= OLDER_SALT_BYTES_MIN for salt in salts):
            return
        if older := self._older_regions(SHORT_SALT_LEVEL):
            raise PolicyViolation(
                f"a salt of fewer than {OLDER_SALT_BYTES_MIN} bytes: every region has to understand it, and "
                f"{', '.join(older)} did not say so; upgrade or reach them, or take a longer salt"
            )

    async def _order(self, definition: SecurityDefinition) -> int:
        known = self._books.security.find(kind_of(definition), definition.key)
        replaces = 0 if known is None else known.index
        done = await self._commit(DefineSecurity(definition=definition, replaces=replaces))
        self._ordered(done.definition_index)
        return done.definition_index


def definition_to_json(definition: Definition) -> JsonObject:
    """Return a topic or a tombstone with the word for which it is."""
    return {"tombstone" if isinstance(definition, Tombstone) else "definition": definition.to_json()}
