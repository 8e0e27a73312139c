"""Commands of the controller's Raft group, each one compact JSON object: {"kind": ..., "v": 1, ...}.

Rule 1: `decode(encode(command)) == command`, and equal commands have equal bytes.
Rule 2: a command that this version does not know in full is a CommandError; the group stops rather than
guess, because a guess would let the brokers of a region disagree for ever.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, TypeAlias

from georelay.ids import BrokerId
from region.controller.fields import FieldError, Fields, JsonObject, dump_object, parse_object
from region.controller.registration import BrokerRegistration
from region.controller.topic import Tombstone, TopicDefinition
from region.controller.topology import BROKER_ID_MAX, Topology

COMMAND_VERSION: Final = 1
FEATURE_LEVEL: Final = 1  # what this version may write; raised only when every broker of a region can read it
FEATURE_LEVEL_MAX: Final = 1_000
PRODUCER_BLOCK_MAX: Final = 100_000
_KIND: Final = re.compile(r"[a-z_]{1,40}")


class CommandError(ValueError):
    """Bytes that are not a command this version knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormRegion:
    """Record the shape of mesh and region; proposed by the leader when the recorded one differs from its own."""

    topology: Topology
    feature_level: int = FEATURE_LEVEL


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBroker:
    """Record where a broker listens and which disk it has."""

    registration: BrokerRegistration


@dataclass(frozen=True, slots=True, kw_only=True)
class DefineTopic:
    """Define a topic. Index 0: the definitions home gives it the next index at apply; else it was given there."""

    definition: TopicDefinition


@dataclass(frozen=True, slots=True, kw_only=True)
class DropTopic:
    """Delete a topic for ever (by id). Index as in DefineTopic."""

    tombstone: Tombstone


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerIds:
    """Hand `count` producer ids, never given out before, to one broker."""

    broker: BrokerId
    count: int


Command: TypeAlias = FormRegion | RegisterBroker | DefineTopic | DropTopic | AllocateProducerIds


def encode(command: Command) -> bytes:
    """Return the JSON of a command."""
    return dump_object({"v": COMMAND_VERSION, **_body(command)})


def _body(command: Command) -> JsonObject:
    match command:
        case FormRegion():
            return {
                "kind": "form_region",
                "topology": command.topology.to_json(),
                "feature_level": command.feature_level,
            }
        case RegisterBroker():
            return {"kind": "register_broker", "registration": command.registration.to_json()}
        case DefineTopic():
            return {"kind": "define_topic", "definition": command.definition.to_json()}
        case DropTopic():
            return {"kind": "drop_topic", "tombstone": command.tombstone.to_json()}
        case AllocateProducerIds():
            return {"kind": "allocate_producer_ids", "broker": command.broker, "count": command.count}


def decode(raw: bytes | bytearray | memoryview) -> Command:
    """Read a command.

    Raises:
        CommandError: anything but a whole command of a known kind and version.
    """
    try:
        fields = Fields(parse_object(bytes(raw)), "command")
        fields.integer("v", low=COMMAND_VERSION, high=COMMAND_VERSION)
        command = _read(fields)
        fields.done()
    except FieldError as error:
        raise CommandError(f"not a controller command: {error}") from error
    return command


def _read(fields: Fields) -> Command:
    kind = fields.text("kind", chars_max=40, pattern=_KIND)
    match kind:
        case "form_region":
            return FormRegion(
                topology=Topology.from_json(fields.value("topology")),
                feature_level=fields.integer("feature_level", low=1, high=FEATURE_LEVEL_MAX),
            )
        case "register_broker":
            return RegisterBroker(registration=BrokerRegistration.from_json(fields.value("registration")))
        case "define_topic":
            return DefineTopic(definition=TopicDefinition.from_json(fields.value("definition")))
        case "drop_topic":
            return DropTopic(tombstone=Tombstone.from_json(fields.value("tombstone")))
        case "allocate_producer_ids":
            return AllocateProducerIds(
                broker=BrokerId(fields.integer("broker", low=1001, high=BROKER_ID_MAX)),
                count=fields.integer("count", low=1, high=PRODUCER_BLOCK_MAX),
            )
        case _:
            raise FieldError(f"kind {kind!r} is unknown")
