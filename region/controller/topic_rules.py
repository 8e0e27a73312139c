"""Rules of definitions while commands are applied: defining, altering and deleting topics.

Rule 1: only a higher definition index applies. The definitions home gives the indexes at apply, so two creations that
race are ordered by its log and the second one sees the first.
Rule 2: a topic id that was dropped never comes back.
Rule 3: an alteration names the index of the definition that it was made from; another one in between refuses it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from georelay.errors import Busy, InvalidTopic, PolicyViolation, TopicExists, Unavailable, UnknownTopic
from georelay.limits import GROUPS_PER_BROKER_MAX, TOPICS_MAX
from region.controller.effects import Done, Effect, Outcome, Refused, TopicAltered
from region.controller.ledger import RegionLedger
from region.controller.topic import Tombstone, TopicDefinition

TOMBSTONES_MAX: Final = 100_000
_TOO_MANY_DELETED: Final = (
    f"the mesh remembers {TOMBSTONES_MAX} deleted topics, its maximum: some region has not followed all of them, "
    "'georelay control status' names it; bring it back or remove it, topics can be created ten minutes later"
)


def define(ledger: RegionLedger, wanted: TopicDefinition, effects: list[Effect]) -> Outcome:
    """Define a topic, or take over a definition that is ordered already."""
    book = ledger.definitions
    if ledger.topology is None:
        return Refused(error=Unavailable, text="this region is not formed yet")
    if wanted.index == 0:
        refused = ledger.refuse_to_order() or _refuse_definition(ledger, wanted)
        if refused is not None:
            return refused
        existing = book.topic_by_id(wanted.topic_id)
        if existing is not None:  # the same wish again, after an answer that got lost
            return Done(definition=existing)
        wanted = replace(wanted, index=ledger.next_definition_index)
    elif wanted.index <= book.index:
        return Done(definition=book.topic_by_id(wanted.topic_id))
    replaced = book.id_of(wanted.name)
    if replaced is not None and replaced != wanted.topic_id:
        _bury(ledger, Tombstone(name=wanted.name, topic_id=replaced, index=wanted.index), effects)
    _enter(ledger, wanted, effects)
    return Done(definition=wanted)


def alter(ledger: RegionLedger, wanted: TopicDefinition, effects: list[Effect]) -> Outcome:
    """Change settings and grow partitions of a topic; `wanted.index` is that of the definition it was made from."""
    refused = ledger.refuse_to_order()
    if refused is not None:
        return refused
    current = ledger.definitions.topic_by_id(wanted.topic_id)
    if current is None:
        return Refused(error=UnknownTopic, text=f"there is no topic {wanted.name}")
    if current.index != wanted.index:
        return Refused(error=Busy, text=f"topic {wanted.name} was changed by somebody else meanwhile; ask again")
    if wanted.partitions < current.partitions:
        text = f"topic {wanted.name} has {current.partitions} partitions; their number can only grow"
        return Refused(error=InvalidTopic, text=text)
    altered = replace(
        current,
        partitions=wanted.partitions,
        retention_ms=wanted.retention_ms,
        retention_bytes=wanted.retention_bytes,
        config=wanted.config,
    )
    if altered == current:
        return Done(definition=current)
    refused = _refuse_growth(ledger, altered)
    if refused is not None:
        return refused
    altered = replace(altered, index=ledger.next_definition_index)
    _enter(ledger, altered, effects)
    return Done(definition=altered)


def drop(ledger: RegionLedger, wanted: Tombstone, effects: list[Effect]) -> Outcome:
    """Delete a topic for ever."""
    book = ledger.definitions
    if wanted.index == 0:
        refused = ledger.refuse_to_order()
        if refused is not None:
            return refused
        known = book.find(wanted.topic_id)
        if isinstance(known, Tombstone):
            return Done(definition=known)
        if known is None:
            return Refused(error=UnknownTopic, text=f"there is no topic {wanted.name}")
        wanted = replace(wanted, name=known.name, index=ledger.next_definition_index)
    elif wanted.index <= book.index:
        return Done(definition=book.find(wanted.topic_id))
    _bury(ledger, wanted, effects)
    ledger.settle(effects)
    ledger.metadata_changed(effects)
    return Done(definition=wanted)


def _enter(ledger: RegionLedger, wanted: TopicDefinition, effects: list[Effect]) -> None:
    known = ledger.definitions.topic_by_id(wanted.topic_id)
    ledger.definitions.remember(wanted)
    ledger.assign_missing(wanted, effects)
    if known is not None:
        effects.append(TopicAltered(topic=wanted))
    ledger.metadata_changed(effects)


def _bury(ledger: RegionLedger, tombstone: Tombstone, effects: list[Effect]) -> None:
    known = ledger.definitions.topic_by_id(tombstone.topic_id)
    ledger.definitions.remember(tombstone)
    if known is not None:
        ledger.drop_groups(known, effects)
        ledger.homes.forget(known.topic_id)


def _refuse_definition(ledger: RegionLedger, wanted: TopicDefinition) -> Refused | None:
    book = ledger.definitions
    known = book.find(wanted.topic_id)
    if isinstance(known, Tombstone):
        text = f"topic id {wanted.topic_id.hex()} was deleted; an id never comes back"
        return Refused(error=InvalidTopic, text=text)
    if known is None and book.id_of(wanted.name) is not None:
        return Refused(error=TopicExists, text=f"topic {wanted.name} is there already")
    if known is None and book.live_count >= TOPICS_MAX:
        return Refused(error=PolicyViolation, text=f"the mesh has {TOPICS_MAX} topics, its maximum; delete some first")
    if book.tombstone_count >= TOMBSTONES_MAX:
        return Refused(error=PolicyViolation, text=_TOO_MANY_DELETED)
    return _refuse_growth(ledger, wanted)


def _refuse_growth(ledger: RegionLedger, wanted: TopicDefinition) -> Refused | None:
    groups = ledger.streams_with(wanted)
    if groups <= GROUPS_PER_BROKER_MAX:
        return None
    text = f"{groups} streams are over {GROUPS_PER_BROKER_MAX}; use fewer partitions or delete topics"
    return Refused(error=PolicyViolation, text=text)
