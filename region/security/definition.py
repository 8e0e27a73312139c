"""What the mesh agrees on about security: users, lists, quotas, one secret, and the graves of each.

They are definitions as topics are: ordered by the definitions home in the same sequence of indexes, pulled by other
regions. A definition replaces the one with the same (kind, key) and a lower index as a whole.
"""

from __future__ import annotations

import enum
import ipaddress
import re
from dataclasses import dataclass, field
from typing import Final, TypeAlias, TypeVar

from georelay.credentials import USER_CHARS_MAX
from georelay.fields import INT64_MAX, FieldError, Fields, JsonObject
from georelay.limits import TOPIC_NAME_CHARS_MAX
from region.routing.binding import Binding
from region.security.acl import (
    ANY_HOST,
    ANY_NAME,
    CLUSTER_NAME,
    OPERATIONS_OF,
    USER_PREFIX,
    AclEntry,
    Operation,
    Pattern,
    Permission,
    Resource,
    ResourcePattern,
)
from region.security.user import User

ENTRIES_PER_LIST_MAX: Final = 200
PRINCIPAL_CHARS_MAX: Final = len(USER_PREFIX) + 1_024  # the subject of a certificate is longer than a user's name
NAME_CHARS_MAX: Final = max(TOPIC_NAME_CHARS_MAX, USER_CHARS_MAX, 1_000)  # group and transactional ids are longer
KEY_CHARS_MAX: Final = PRINCIPAL_CHARS_MAX + NAME_CHARS_MAX
SECRET_BYTES: Final = 32
SECRET_NAME: Final = "sign_in"  # noqa: S105
BYTES_PER_S_MAX: Final = 10**12
SHARE_PPM_MAX: Final = 10**8  # 100 cores: Kafka's request_percentage counts one core as 100
T = TypeVar("T")
_NAME: Final = re.compile(r"[\x20-\x7e\u00a0-\U0010ffff]+")


class Kind(enum.StrEnum):
    """Of a definition."""

    USER = "user"
    ACLS = "acls"
    QUOTA = "quota"
    SECRET = "secret"  # noqa: S105
    BINDING = "binding"  # of region.routing: no security, but a definition of the mesh as these are


@dataclass(frozen=True, slots=True, kw_only=True)
class AclList:
    """All entries about one pattern, sorted; none: nobody said anything about it."""

    pattern: ResourcePattern
    entries: tuple[AclEntry, ...]
    index: int = 0

    @property
    def key(self) -> str:
        """Return what is unique to it among definitions of its kind."""
        return self.pattern.key

    def to_json(self) -> JsonObject:
        """Return the JSON of a definition."""
        return {
            **pattern_to_json(self.pattern),
            "entries": [entry_to_json(entry) for entry in self.entries],
            "index": self.index,
        }

    @classmethod
    def from_json(cls, value: object) -> AclList:
        """Read what `to_json` made. Raises FieldError."""
        fields = Fields(value, "acls")
        pattern = read_pattern(fields)
        items = fields.items("entries", count_max=ENTRIES_PER_LIST_MAX)
        entries = tuple(entry_from_json(item, pattern.resource) for item in items)
        if list(entries) != sorted(set(entries), key=entry_order):
            raise FieldError("entries are out of order or there twice")
        acls = cls(pattern=pattern, entries=entries, index=fields.integer("index", low=0, high=INT64_MAX))
        fields.done()
        return acls


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What one principal ("User:*": everybody without an own quota) may use of each broker; 0: as much as it likes.

    `request_share_ppm`: of one core, in millionths; Kafka's request_percentage times 10,000.
    """

    principal: str
    produce_bytes_per_s: int = 0
    fetch_bytes_per_s: int = 0
    request_share_ppm: int = 0
    index: int = 0

    @property
    def key(self) -> str:
        """Return what is unique to it among definitions of its kind."""
        return self.principal

    def to_json(self) -> JsonObject:
        """Return the JSON of a definition."""
        return {
            "principal": self.principal,
            "produce_bytes_per_s": self.produce_bytes_per_s,
            "fetch_bytes_per_s": self.fetch_bytes_per_s,
            "request_share_ppm": self.request_share_ppm,
            "index": self.index,
        }

    @classmethod
    def from_json(cls, value: object) -> Quota:
        """Read what `to_json` made. Raises FieldError."""
        fields = Fields(value, "quota")
        quota = cls(
            principal=read_principal(fields),
            produce_bytes_per_s=fields.integer("produce_bytes_per_s", low=0, high=BYTES_PER_S_MAX),
            fetch_bytes_per_s=fields.integer("fetch_bytes_per_s", low=0, high=BYTES_PER_S_MAX),
            request_share_ppm=fields.integer("request_share_ppm", low=0, high=SHARE_PPM_MAX),
            index=fields.integer("index", low=0, high=INT64_MAX),
        )
        fields.done()
        return quota


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """Random bytes that all brokers share: what the salts of unknown users are made of. See scram_core."""

    value: bytes = field(repr=False)
    index: int = 0

    @property
    def key(self) -> str:
        """Return what is unique to it among definitions of its kind."""
        return SECRET_NAME

    def to_json(self) -> JsonObject:
        """Return the JSON of a definition."""
        return {"value": self.value.hex(), "index": self.index}

    @classmethod
    def from_json(cls, value: object) -> Secret:
        """Read what `to_json` made. Raises FieldError."""
        fields = Fields(value, "secret")
        secret = cls(
            value=fields.blob("value", size_bytes=SECRET_BYTES),
            index=fields.integer("index", low=0, high=INT64_MAX),
        )
        fields.done()
        return secret


@dataclass(frozen=True, slots=True, kw_only=True)
class Grave:
    """A definition that was deleted: kept so that every region learns of it."""

    kind: Kind
    key: str
    index: int = 0

    def to_json(self) -> JsonObject:
        """Return the JSON of a definition."""
        return {"kind": self.kind.value, "key": self.key, "index": self.index}

    @classmethod
    def from_json(cls, value: object) -> Grave:
        """Read what `to_json` made. Raises FieldError."""
        fields = Fields(value, "grave")
        grave = cls(
            kind=fields.member("kind", Kind),
            key=fields.text("key", chars_min=1, chars_max=KEY_CHARS_MAX),
            index=fields.integer("index", low=0, high=INT64_MAX),
        )
        fields.done()
        return grave


SecurityDefinition: TypeAlias = User | AclList | Quota | Secret | Binding | Grave
_GRAVE: Final = "grave"


def kind_of(definition: SecurityDefinition) -> Kind:
    """Return the kind of a definition, of a grave that of what lies in it."""
    match definition:
        case User():
            return Kind.USER
        case AclList():
            return Kind.ACLS
        case Quota():
            return Kind.QUOTA
        case Secret():
            return Kind.SECRET
        case Binding():
            return Kind.BINDING
        case Grave():
            return definition.kind


def to_json(definition: SecurityDefinition) -> JsonObject:
    """Return {kind: definition}."""
    word = _GRAVE if isinstance(definition, Grave) else kind_of(definition).value
    return {word: definition.to_json()}


def from_json(value: object) -> SecurityDefinition:
    """Read what `to_json` made. Raises FieldError."""
    fields = Fields(value, "security definition")
    found: SecurityDefinition
    if fields.has(_GRAVE):
        found = Grave.from_json(fields.value(_GRAVE))
    elif fields.has(Kind.USER):
        found = User.from_json(fields.value(Kind.USER))
    elif fields.has(Kind.ACLS):
        found = AclList.from_json(fields.value(Kind.ACLS))
    elif fields.has(Kind.QUOTA):
        found = Quota.from_json(fields.value(Kind.QUOTA))
    elif fields.has(Kind.BINDING):
        found = Binding.from_json(fields.value(Kind.BINDING))
    else:
        found = Secret.from_json(fields.value(Kind.SECRET))
    fields.done()
    return found


def entry_order(entry: AclEntry) -> tuple[str, str, int, int]:
    """Return what entries of a list are sorted by."""
    return entry.principal, entry.host, entry.operation.value, entry.permission.value


def pattern_to_json(pattern: ResourcePattern) -> JsonObject:
    """Return the three fields of a pattern."""
    return {"resource": pattern.resource.value, "pattern": pattern.pattern.name.lower(), "name": pattern.name}


def entry_to_json(entry: AclEntry) -> JsonObject:
    """Return the fields of an entry."""
    return {
        "principal": entry.principal,
        "host": entry.host,
        "operation": entry.operation.name.lower(),
        "permission": entry.permission.name.lower(),
    }


def read_pattern(fields: Fields) -> ResourcePattern:
    """Take resource, pattern and name. Raises FieldError."""
    resource = _member(fields, "resource", {resource.value: resource for resource in Resource})
    kind = _member(fields, "pattern", {pattern.name.lower(): pattern for pattern in Pattern})
    name = fields.text("name", chars_min=1, chars_max=NAME_CHARS_MAX, pattern=_NAME)
    if resource is Resource.CLUSTER and (name != CLUSTER_NAME or kind is not Pattern.LITERAL):
        raise FieldError(f"the cluster has one name, the literal {CLUSTER_NAME}")
    if kind is Pattern.PREFIXED and name == ANY_NAME:
        raise FieldError("every name is the literal '*', not a prefix")
    return ResourcePattern(resource=resource, name=name, pattern=kind)


def entry_from_json(value: object, resource: Resource) -> AclEntry:
    """Read an entry of a list about `resource`. Raises FieldError."""
    fields = Fields(value, "entry")
    entry = read_entry(fields, resource)
    fields.done()
    return entry


def read_entry(fields: Fields, resource: Resource) -> AclEntry:
    """Take principal, host, operation and permission. Raises FieldError."""
    operation = _member(fields, "operation", {operation.name.lower(): operation for operation in Operation})
    if operation is not Operation.ALL and operation not in OPERATIONS_OF[resource]:
        known = ", ".join(known.name.lower() for known in OPERATIONS_OF[resource])
        raise FieldError(f"{operation.name.lower()} is no operation of a {resource.value}; use all, {known}")
    host = fields.text("host", chars_min=1, chars_max=45)
    if host != ANY_HOST:
        try:
            host = str(ipaddress.ip_address(host))
        except ValueError as error:
            raise FieldError(f"host {host!r} is neither an IP address nor '*'") from error
    return AclEntry(
        principal=read_principal(fields),
        host=host,
        operation=operation,
        permission=_member(fields, "permission", {permission.name.lower(): permission for permission in Permission}),
    )


def read_principal(fields: Fields) -> str:
    """Take a principal: "User:" and a name, or "User:*". Raises FieldError."""
    text = fields.text("principal", chars_max=PRINCIPAL_CHARS_MAX, pattern=_NAME)
    if not text.startswith(USER_PREFIX) or text == USER_PREFIX:
        raise FieldError(f"a principal is {USER_PREFIX}<name>, or {USER_PREFIX}* for everybody")
    return text


def _member(fields: Fields, name: str, members: dict[str, T]) -> T:
    text = fields.text(name, chars_max=40)
    found = members.get(text)
    if found is None:
        raise FieldError(f"{name} {text!r} is not one of {', '.join(members)}")
    return found
