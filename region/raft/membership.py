"""Bytes of a Membership: payload of a CONF entry, part of a snapshot and of a stored manifest.

Layout of version 1 (big-endian; it never changes):

    u8 version 1 | u8 reserved 0 | u16 voters | u16 learners | u16 outgoing | the ids of each, u32, in that order

Rule: whatever is decoded is bounded and checked, and fills its bytes; ValueError is the only error.
"""

from __future__ import annotations

import struct
from typing import Final

from georelay.ids import BrokerId
from region.raft.core.types import Membership

VERSION: Final = 1
MEMBERS_MAX: Final = 1_000  # in each of the three lists; a region has fewer brokers than that
_HEAD: Final = struct.Struct(">BBHHH")
_ID: Final = struct.Struct(">I")
MEMBERSHIP_BYTES_MAX: Final = _HEAD.size + 3 * MEMBERS_MAX * _ID.size


def encode_membership(membership: Membership) -> bytes:
    """Return the bytes of `membership`.

    Raises:
        ValueError: a list has more than MEMBERS_MAX members.
    """
    lists = (membership.voters, membership.learners, membership.outgoing)
    counts = [len(ids) for ids in lists]
    _check_counts(counts)
    ids = [broker for members in lists for broker in members]
    return _HEAD.pack(VERSION, 0, *counts) + struct.pack(f">{len(ids)}I", *ids)


def decode_membership(raw: bytes | bytearray | memoryview) -> Membership:
    """Return the membership in `raw`.

    Raises:
        ValueError: these bytes are none; the text says what is wrong.
    """
    if len(raw) < _HEAD.size:
        raise ValueError(f"a membership takes at least {_HEAD.size} bytes, not {len(raw)}")
    version, reserved, *counts = _HEAD.unpack_from(raw)
    if version != VERSION or reserved:
        raise ValueError(f"membership version {version}.{reserved} is unknown, this broker reads version {VERSION}")
    _check_counts(counts)
    total = sum(counts)
    if len(raw) != _HEAD.size + total * _ID.size:
        raise ValueError(f"a membership of {total} ids takes {_HEAD.size + total * _ID.size} bytes, not {len(raw)}")
    ids = tuple(map(BrokerId, struct.unpack_from(f">{total}I", raw, _HEAD.size)))
    voters, learners, _ = counts
    return Membership(voters=ids[:voters], learners=ids[voters : voters + learners], outgoing=ids[voters + learners :])


def _check_counts(counts: list[int]) -> None:
    if max(counts) > MEMBERS_MAX:
        raise ValueError(f"a membership of {counts} ids is over {MEMBERS_MAX} each")
