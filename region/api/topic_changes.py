"""Changes of a topic that exists, as values: settings, replicas, log start. Pure; read by the HTTP and gRPC doors.

Rule 1: every refusal names the field: "replicas: must be ...".
Rule 2: what is judged here is the form only; the controller and the home judge what it means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from georelay.errors import BadRequest
from georelay.ids import BROKERS_PER_REGION_MAX
from georelay.limits import PARTITIONS_PER_TOPIC_MAX
from region.api.record_json import integer_field, parse_json
from region.controller.topic_settings import (
    RETENTION_BYTES,
    RETENTION_MS,
    SEGMENT_BYTES,
    TOPIC_SETTINGS,
    setting_named,
)
from region.controller.topology import BROKER_ID_MAX
from region.kafka.ports import BEFORE_HIGH_WATERMARK

INT64_MAX: Final = 2**63 - 1
LATEST: Final = "latest"
SETTINGS: Final = "settings"
SETTING_OF: Final[Mapping[str, str]] = {
    "retention_ms": RETENTION_MS,
    "retention_bytes": RETENTION_BYTES,
    "segment_bytes": SEGMENT_BYTES,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassignment:
    """Brokers that are wanted for one partition, or for all of a topic when `partition` is None."""

    partition: int | None
    replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """Records of one partition below `before` go; BEFORE_HIGH_WATERMARK: whatever is committed."""

    partition: int
    before: int


def parse_alteration(body: bytes) -> dict[str, str]:
    """Return settings in the words of `Cluster.alter_topic`; null gives back the default (BadRequest)."""
    value = _object(body, known={*SETTING_OF, SETTINGS})
    if not value:
        raise BadRequest(f"name what changes: {', '.join(sorted((*SETTING_OF, SETTINGS)))}")
    numbers = {name: None if value[name] is None else _integer(value, name) for name in value if name != SETTINGS}
    return settings_of(numbers) | parse_settings(value)


def parse_settings(value: Mapping[str, Any]) -> dict[str, str]:
    """Return the object `settings` of a body: name of the table -> value; null is the default.

    Raises:
        BadRequest: the form is wrong, or a field says the same. InvalidTopic: an unknown setting.
    """
    settings = value.get(SETTINGS, {})
    if not isinstance(settings, dict):
        raise BadRequest(f'{SETTINGS}: must be an object such as {{"cleanup.policy": "delete"}}')
    named: dict[str, str] = {}
    for name, setting in settings.items():
        row = setting_named(name)
        if any(field in value for field, known in SETTING_OF.items() if known == name):
            raise BadRequest(f"{SETTINGS}.{name}: is given twice, here and as a field")
        if setting is not None and type(setting) not in (bool, float, int, str):
            raise BadRequest(f"{SETTINGS}.{name}: must be a string, a number, true, false or null")
        named[name] = row.default if setting is None else _text_of(setting)
    return named


def given_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return settings with the default of those whose value is empty (InvalidTopic: an unknown one)."""
    return {name: value or setting_named(name).default for name, value in settings.items()}


def _text_of(setting: bool | float | str) -> str:
    return str(setting).lower() if isinstance(setting, bool) else str(setting)


def settings_of(values: Mapping[str, int | None]) -> dict[str, str]:
    """Return settings from fields of the API; None is the default."""
    return {
        SETTING_OF[name]: TOPIC_SETTINGS[SETTING_OF[name]].default if value is None else str(value)
        for name, value in values.items()
    }


def parse_reassignment(body: bytes) -> Reassignment:
    """Return what a POST .../reassign body asks for (BadRequest)."""
    value = _object(body, known={"partition", "replicas"})
    partition = integer_field(value, "reassign", "partition", low=0, high=PARTITIONS_PER_TOPIC_MAX - 1)
    return Reassignment(partition=partition, replicas=check_replicas(value.get("replicas")))


def check_replicas(replicas: object) -> tuple[int, ...]:
    """Return the brokers (BadRequest: not 1..BROKERS_PER_REGION_MAX different broker ids)."""
    if (
        not isinstance(replicas, Sequence)
        or isinstance(replicas, str)
        or not 1 <= len(replicas) <= BROKERS_PER_REGION_MAX
        or any(type(broker) is not int or not 1 <= broker <= BROKER_ID_MAX for broker in replicas)
    ):
        raise BadRequest(f"replicas: must be a list of 1..{BROKERS_PER_REGION_MAX} broker ids")
    if len(set(replicas)) != len(replicas):
        raise BadRequest("replicas: a broker stands twice")
    return tuple(replicas)


def parse_deletion(body: bytes) -> Deletion:
    """Return what a POST .../delete-records body asks for (BadRequest)."""
    value = _object(body, known={"partition", "before"})
    partition = integer_field(value, "delete-records", "partition", low=0, high=PARTITIONS_PER_TOPIC_MAX - 1)
    before = value.get("before")
    if before == LATEST:
        before = BEFORE_HIGH_WATERMARK
    elif type(before) is not int or not 0 <= before <= INT64_MAX:
        raise BadRequest(f'before: must be an offset in 0..{INT64_MAX} or "{LATEST}"')
    if partition is None:
        raise BadRequest("partition: must be given")
    return Deletion(partition=partition, before=before)


def _object(body: bytes, *, known: set[str]) -> dict[str, Any]:
    value = parse_json(body)
    if not isinstance(value, dict):
        raise BadRequest("the body must be an object")
    unknown = value.keys() - known
    if unknown:
        raise BadRequest(f"{min(unknown)[:64]}: unknown field; known are {', '.join(sorted(known))}")
    return value


def _integer(value: dict[str, Any], name: str) -> int:
    number = integer_field(value, "topic", name, low=-1, high=INT64_MAX)
    assert number is not None, name  # the caller has seen the field
    return number
