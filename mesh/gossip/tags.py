"""Tags of a member in its gossiped meta data: ff, then a msgpack map of texts; 512 bytes in all (serf-wire 2.7).

Meta data without the leading ff is what Serf wrote before there were tags: the whole of it is the tag `role`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mesh.gossip.dialect import pack, read_map
from mesh.gossip.faults import CodecError
from mesh.gossip.member import META_BYTES_MAX

TAGS_MAX: Final = 64
TAG_CHARS_MAX: Final = 400
_MARK: Final = b"\xff"


class TagsTooLong(ValueError):
    """The tags do not fit into the meta data of a member."""


def encode_tags(tags: Mapping[str, str]) -> bytes:
    """Return the meta data of these tags.

    Raises:
        TagsTooLong: over META_BYTES_MAX bytes.
    """
    meta = _MARK + pack(dict(sorted(tags.items())))
    if len(meta) > META_BYTES_MAX or len(tags) > TAGS_MAX:
        raise TagsTooLong(f"{len(tags)} tags take {len(meta)} bytes; a member may have {META_BYTES_MAX}")
    return meta


def decode_tags(meta: bytes) -> dict[str, str]:
    """Return the tags in meta data; {} for none.

    Raises:
        CodecError: not a map of texts.
    """
    if not meta:
        return {}
    if meta[:1] != _MARK:
        return {"role": meta.decode("utf-8", "replace")}
    if len(meta) > META_BYTES_MAX:
        raise CodecError(f"{len(meta)} bytes of tags are over {META_BYTES_MAX}")
    return read_map(meta[1:], map_max=TAGS_MAX).as_texts(limit=TAGS_MAX, each_limit=TAG_CHARS_MAX)
