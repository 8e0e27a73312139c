"""Commands of the controller's Raft group, each one compact JSON object: {"kind": ..., "v": 1, ...}.

Rule 1: `decode(encode(command)) == command`, and equal commands have equal bytes.
Rule 2: a command that this version does not know in full is a CommandError; the group stops rather than
guess, because a guess would let the brokers of a region disagree for ever.
"""

from __future__ import annotations

import re
from typing import Final

from georelay.fields import INT64_MAX, FieldError, Fields, JsonObject, dump_object, parse_object
from georelay.ids import BROKERS_PER_REGION_MAX, BrokerId, GroupId
from mesh.home.home_row import HomeRow
from region.controller.assignment import read_brokers
from region.controller.command_kinds import (
    FEATURE_LEVEL,
    FEATURE_LEVEL_MAX,
    PRODUCER_BLOCK_MAX,
    AddBroker,
    AllocateProducerIds,
    AlterTopic,
    CedeDefinitions,
    Command,
    CommandError,
    DefineHome,
    DefineSecurity,
    DefineTopic,
    DrainBroker,
    DropTopic,
    ForgetDeleted,
    FormRegion,
    LearnMesh,
    MarkAbsent,
    MarkPresent,
    OpenControl,
    RaiseFeatureLevel,
    Reassign,
    RegisterBroker,
    RemoveBroker,
    ReplaceDisk,
    ReplicaLost,
    ReplicasChanged,
)
from region.controller.mesh_rows import CONTROL_ID, REGION_ROWS_MAX, Charter, ControlRow, RegionRow
from region.controller.registration import ADDRESS_CHARS_MAX, DISK_UUID_CHARS_MAX, BrokerRegistration
from region.controller.topic import TOPIC_ID_BYTES, Tombstone, TopicDefinition
from region.controller.topology import BROKER_ID_MAX, Topology
from region.security import definition as security
from region.security.definition import KEY_CHARS_MAX

__all__ = [
    "FEATURE_LEVEL",
    "FEATURE_LEVEL_MAX",
    "PRODUCER_BLOCK_MAX",
    "AddBroker",
    "AllocateProducerIds",
    "AlterTopic",
    "CedeDefinitions",
    "Command",
    "CommandError",
    "DefineHome",
    "DefineSecurity",
    "DefineTopic",
    "DrainBroker",
    "DropTopic",
    "ForgetDeleted",
    "FormRegion",
    "LearnMesh",
    "MarkAbsent",
    "MarkPresent",
    "OpenControl",
    "RaiseFeatureLevel",
    "Reassign",
    "RegisterBroker",
    "RemoveBroker",
    "ReplaceDisk",
    "ReplicaLost",
    "ReplicasChanged",
    "decode",
    "encode",
]

COMMAND_VERSION: Final = 1
HOMES_PER_COMMAND_MAX: Final = 200
BY_CHARS_MAX: Final = 1_200  # of a principal's name
TOPICS_PER_PAGE_MAX: Final = 1_000  # that one question, or one command, has of what a region still holds
PLACES_PER_PAGE_MAX: Final = 60  # the same of security: a key has up to 8 KiB
_KIND: Final = re.compile(r"[a-z_]{1,40}")
_OF_ONE_BROKER: Final[dict[str, type[DrainBroker | RemoveBroker | MarkAbsent | MarkPresent]]] = {
    "drain_broker": DrainBroker,
    "remove_broker": RemoveBroker,
    "mark_absent": MarkAbsent,
    "mark_present": MarkPresent,
}
_KIND_OF_ONE: Final = {command: kind for kind, command in _OF_ONE_BROKER.items()}


def encode(command: Command) -> bytes:
    """Return the JSON of a command."""
    return dump_object({"v": COMMAND_VERSION, **_body(command)})


def _body(command: Command) -> JsonObject:
    match command:
        case FormRegion():
            body: JsonObject = {
                "kind": "form_region",
                "topology": command.topology.to_json(),
                "feature_level": command.feature_level,
            }
            return body | {"disks": disks_to_json(command.disks)} if command.disks else body
        case RegisterBroker():
            return {"kind": "register_broker", "registration": command.registration.to_json()}
        case DefineTopic():
            defined: JsonObject = {"kind": "define_topic", "definition": command.definition.to_json()}
            return defined | {"by": command.by} if command.by else defined
        case AlterTopic():
            return {"kind": "alter_topic", "definition": command.definition.to_json()}
        case DropTopic():
            return {"kind": "drop_topic", "tombstone": command.tombstone.to_json()}
        case AllocateProducerIds():
            return {"kind": "allocate_producer_ids", "broker": command.broker, "count": command.count}
        case _:
            return _life_cycle_body(command)


def _life_cycle_body(
    command: RaiseFeatureLevel
    | AddBroker
    | DrainBroker
    | RemoveBroker
    | ReplaceDisk
    | MarkAbsent
    | MarkPresent
    | ReplicasChanged
    | Reassign
    | ReplicaLost
    | DefineSecurity
    | DefineHome
    | CedeDefinitions
    | OpenControl
    | LearnMesh
    | ForgetDeleted,
) -> JsonObject:
    match command:
        case CedeDefinitions():
            return {"kind": "cede_definitions", "charter": command.charter.to_json()}
        case OpenControl():
            return {"kind": "open_control", "control_id": command.control_id}
        case LearnMesh():
            learned: JsonObject = {
                "kind": "learn_mesh",
                "control": None if command.control is None else command.control.to_json(),
                "regions": [row.to_json() for row in command.regions],
            }
            return learned if command.is_all else learned | {"is_all": False}
        case ForgetDeleted():
            return _forget_body(command)
        case DefineHome():
            return {"kind": "define_home", "rows": [row.to_json() for row in command.rows]}
        case DefineSecurity():
            return {
                "kind": "define_security",
                "definition": security.to_json(command.definition),
                "replaces": command.replaces,
            }
        case RaiseFeatureLevel():
            return {"kind": "raise_feature_level", "level": command.level}
        case AddBroker():
            return {"kind": "add_broker", "broker": command.broker, "peers": command.peers}
        case ReplaceDisk():
            return {
                "kind": "replace_disk",
                "registration": command.registration.to_json(),
                "replaces": command.replaces,
            }
        case ReplicasChanged():
            return {
                "kind": "replicas_changed",
                "group": command.group_id,
                "voters": list(command.voters),
                "learners": list(command.learners),
                "generation": command.generation,
                "index": command.index,
            }
        case Reassign():
            return {
                "kind": "reassign",
                "group": command.group_id,
                "target": list(command.target),
                "generation": command.generation,
                "pinned": command.pinned,
            }
        case ReplicaLost():
            return {
                "kind": "replica_lost",
                "group": command.group_id,
                "broker": command.broker,
                "generation": command.generation,
            }
        case _:
            return {"kind": _KIND_OF_ONE[type(command)], "broker": command.broker}


def _forget_body(command: ForgetDeleted) -> JsonObject:
    body: JsonObject = {
        "kind": "forget_deleted",
        "topics_to": command.topics_to,
        "security_to": command.security_to,
    }
    if command.topics:
        body["topics"] = [topic_id.hex() for topic_id in command.topics]
    if command.security:
        body["security"] = [[kind.value, key] for kind, key in command.security]
    return body


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
                disks=disks_from_json(fields.child("disks")) if fields.has("disks") else (),
            )
        case "register_broker":
            return RegisterBroker(registration=BrokerRegistration.from_json(fields.value("registration")))
        case "define_topic":
            definition = TopicDefinition.from_json(fields.value("definition"))
            by = fields.text("by", chars_min=1, chars_max=BY_CHARS_MAX) if fields.has("by") else ""
            return DefineTopic(definition=definition, by=by)
        case "alter_topic":
            return AlterTopic(definition=TopicDefinition.from_json(fields.value("definition")))
        case "drop_topic":
            return DropTopic(tombstone=Tombstone.from_json(fields.value("tombstone")))
        case "allocate_producer_ids":
            return AllocateProducerIds(
                broker=_read_broker(fields), count=fields.integer("count", low=1, high=PRODUCER_BLOCK_MAX)
            )
        case _:
            return _read_life_cycle(kind, fields)


def _read_life_cycle(kind: str, fields: Fields) -> Command:
    if kind in _OF_ONE_BROKER:
        return _OF_ONE_BROKER[kind](broker=_read_broker(fields))
    match kind:
        case "raise_feature_level":
            return RaiseFeatureLevel(level=fields.integer("level", low=1, high=FEATURE_LEVEL_MAX))
        case "add_broker":
            return AddBroker(broker=_read_broker(fields), peers=fields.text("peers", chars_max=ADDRESS_CHARS_MAX))
        case "replace_disk":
            return ReplaceDisk(
                registration=BrokerRegistration.from_json(fields.value("registration")),
                replaces=fields.text("replaces", chars_max=DISK_UUID_CHARS_MAX),
            )
        case "replicas_changed":
            return ReplicasChanged(
                group_id=_read_group(fields),
                voters=read_brokers(fields, "voters"),
                learners=read_brokers(fields, "learners"),
                generation=fields.integer("generation", low=0, high=INT64_MAX),
                index=fields.integer("index", low=0, high=INT64_MAX),
            )
        case "reassign":
            return Reassign(
                group_id=_read_group(fields),
                target=read_brokers(fields, "target"),
                generation=fields.integer("generation", low=0, high=INT64_MAX),
                pinned=fields.integer("pinned", low=0, high=BROKERS_PER_REGION_MAX),
            )
        case "replica_lost":
            return ReplicaLost(
                group_id=_read_group(fields),
                broker=_read_broker(fields),
                generation=fields.integer("generation", low=0, high=INT64_MAX),
            )
        case "cede_definitions":
            return CedeDefinitions(charter=Charter.from_json(fields.value("charter")))
        case "open_control":
            return OpenControl(control_id=fields.text("control_id", chars_max=32, pattern=CONTROL_ID))
        case "learn_mesh":
            control = fields.value("control")
            return LearnMesh(
                control=None if control is None else ControlRow.from_json(control),
                regions=tuple(RegionRow.from_json(item) for item in fields.items("regions", count_max=REGION_ROWS_MAX)),
                is_all=fields.flag("is_all") if fields.has("is_all") else True,
            )
        case "forget_deleted":
            return ForgetDeleted(
                topics_to=fields.integer("topics_to", low=0, high=INT64_MAX),
                security_to=fields.integer("security_to", low=0, high=INT64_MAX),
                topics=read_topic_ids(fields, "topics") if fields.has("topics") else (),
                security=read_places(fields, "security") if fields.has("security") else (),
            )
        case "define_home":
            rows = fields.items("rows", count_max=HOMES_PER_COMMAND_MAX)
            return DefineHome(rows=tuple(HomeRow.from_json(row) for row in rows))
        case "define_security":
            return DefineSecurity(
                definition=security.from_json(fields.value("definition")),
                replaces=fields.integer("replaces", low=0, high=INT64_MAX),
            )
        case _:
            raise FieldError(f"kind {kind!r} is unknown")


def read_topic_ids(fields: Fields, name: str) -> tuple[bytes, ...]:
    """Read at most TOPICS_PER_PAGE_MAX topic ids. Raises FieldError."""
    items = fields.items(name, count_max=TOPICS_PER_PAGE_MAX)
    return tuple(Fields({name: item}, name).blob(name, size_bytes=TOPIC_ID_BYTES) for item in items)


def read_places(fields: Fields, name: str) -> tuple[tuple[security.Kind, str], ...]:
    """Read at most PLACES_PER_PAGE_MAX pairs of a kind and a key of security. Raises FieldError."""
    found = []
    for item in fields.items(name, count_max=PLACES_PER_PAGE_MAX):
        if not isinstance(item, list) or len(item) != 2:
            raise FieldError(f"{name} holds something else than pairs")
        row = Fields({"kind": item[0], "key": item[1]}, name)
        found.append((row.member("kind", security.Kind), row.text("key", chars_min=1, chars_max=KEY_CHARS_MAX)))
    return tuple(found)


def _read_broker(fields: Fields) -> BrokerId:
    return BrokerId(fields.integer("broker", low=1001, high=BROKER_ID_MAX))


def _read_group(fields: Fields) -> GroupId:
    return GroupId(fields.integer("group", low=0, high=INT64_MAX))


def disks_to_json(disks: tuple[tuple[BrokerId, str], ...]) -> JsonObject:
    """Return {broker id: disk uuid}."""
    return {str(broker): disk for broker, disk in disks}


def disks_from_json(fields: Fields) -> tuple[tuple[BrokerId, str], ...]:
    """Read all of {broker id: disk uuid}, ascending. Raises FieldError."""
    rows = fields.texts(count_max=BROKERS_PER_REGION_MAX, name_chars_max=8, chars_max=DISK_UUID_CHARS_MAX)
    if not rows or not all(name.isascii() and name.isdigit() and disk for name, disk in rows):
        raise FieldError("founders' disks are not broker id -> uuid")
    disks = sorted((BrokerId(int(name)), disk) for name, disk in rows)
    if [str(broker) for broker, _ in disks] != sorted((name for name, _ in rows), key=int):
        raise FieldError("a founder's broker id is not written plainly")
    return tuple(disks)
