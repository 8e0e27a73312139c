"""Payloads of the questions that members ask each other without an application (serf-wire 2.7, names `_serf_...`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from mesh.gossip.dialect import pack, read_map
from mesh.gossip.faults import CodecError
from mesh.gossip.member import OUR_VERSIONS, Address, address_raw, address_text
from mesh.gossip.serf_messages import (
    KEY_TEXT_CHARS_MAX,
    KEYS_MAX,
    NAME_CHARS_MAX,
    TEXT_CHARS_MAX,
    SerfType,
)

INTERNAL_PREFIX: Final = "_serf_"
KEY_BYTES_MAX: Final = 64
TAG_COUNT_MAX: Final = 64
NIL: Final = b"\xc0"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRequest:
    """The key that is to be installed, used or removed."""

    key: bytes = field(repr=False)

    def encode(self) -> bytes:
        """Return the bytes."""
        return bytes((SerfType.KEY_REQUEST,)) + pack({"Key": self.key})

    @classmethod
    def decode(cls, raw: bytes) -> KeyRequest:
        """Read the bytes. Raises CodecError."""
        return cls(key=read_map(_body(raw, SerfType.KEY_REQUEST)).raw("Key", limit=KEY_BYTES_MAX))


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyResponse:
    """What a member did. `keys`: base64, only of list-keys; `text`: why not, or a note."""

    result: bool
    text: str = ""
    keys: Sequence[str] = field(default=(), repr=False)
    primary: str = field(default="", repr=False)

    def encode(self) -> bytes:
        """Return the bytes."""
        return bytes((SerfType.KEY_RESPONSE,)) + pack(
            {"Result": self.result, "Message": self.text, "Keys": list(self.keys) or None, "PrimaryKey": self.primary}
        )

    @classmethod
    def decode(cls, raw: bytes) -> KeyResponse:
        """Read the bytes. Raises CodecError."""
        fields = read_map(_body(raw, SerfType.KEY_RESPONSE), array_max=KEYS_MAX)
        return cls(
            result=fields.flag("Result", default=False),
            text=fields.text("Message", limit=TEXT_CHARS_MAX, default=""),
            keys=fields.texts("Keys", limit=KEYS_MAX, each_limit=KEY_TEXT_CHARS_MAX),
            primary=fields.text("PrimaryKey", limit=KEY_TEXT_CHARS_MAX, default=""),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConflictResponse:
    """Where a member is, as another one knows it; `status` is 1 alive .. 4 failed."""

    name: str
    address: Address
    tags: Mapping[str, str]
    status: int

    def encode(self) -> bytes:
        """Return the bytes."""
        versions = OUR_VERSIONS
        return bytes((SerfType.CONFLICT_RESPONSE,)) + pack(
            {
                "Name": self.name,
                "Addr": address_raw(self.address[0]),
                "Port": self.address[1],
                "Tags": dict(self.tags),
                "Status": self.status,
                "ProtocolMin": versions.pmin,
                "ProtocolMax": versions.pmax,
                "ProtocolCur": versions.pcur,
                "DelegateMin": versions.dmin,
                "DelegateMax": versions.dmax,
                "DelegateCur": versions.dcur,
            }
        )

    @classmethod
    def decode(cls, raw: bytes) -> ConflictResponse | None:
        """Read the bytes; None: the member does not know that name. Raises CodecError."""
        body = _body(raw, SerfType.CONFLICT_RESPONSE)
        if body == NIL:
            return None
        fields = read_map(body, map_max=TAG_COUNT_MAX)
        return cls(
            name=fields.text("Name", limit=NAME_CHARS_MAX),
            address=(address_text(fields.raw("Addr", limit=16)), fields.uint("Port", bits=16)),
            tags=fields.text_texts("Tags", limit=TAG_COUNT_MAX, each_limit=TEXT_CHARS_MAX),
            status=fields.integer("Status", default=0),
        )


UNKNOWN_NAME: Final = bytes((SerfType.CONFLICT_RESPONSE,)) + NIL


def _body(raw: bytes, kind: SerfType) -> bytes:
    if raw[:1] != bytes((kind,)):
        raise CodecError(f"the payload is not one of type {int(kind)}")
    return raw[1:]
