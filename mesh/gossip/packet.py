"""Envelopes of UDP packets and TCP blobs, from outside in.

    packet   [f4 | len u8 | label]  [sealed, label authenticated]  [0c | crc32 u32 of the rest]  message
    blob     [f4 | len u8 | label]  [0a | length u32 | sealed, these five bytes and the label authenticated]  message

Rule 1: with a keyring plaintext is dropped, unless a migration says otherwise (`verify_incoming=False`).
Rule 2: with a label packets of other labels and of none are dropped; without one, labelled packets are. Two meshes that
        meet on a reused address stay apart.
Rule 3: a reply over TCP carries no label header, but its label is authenticated all the same.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

from mesh.gossip import lzw
from mesh.gossip.codec import Compress, MessageType, encode
from mesh.gossip.faults import PacketError
from mesh.gossip.keyring import SEALED_OVERHEAD_BYTES, Keyring

LABEL_BYTES_MAX: Final = 255
PACKET_BYTES_MAX: Final = 65_535
CRC_BYTES: Final = 5
UDP_BUDGET_BYTES: Final = 1400  # memberlist's: messages, encryption and label together
_U32: Final = struct.Struct(">I")


def seal_packet(
    messages: bytes, *, keyring: Keyring | None, label: str = "", with_crc: bool = False, compress: bool = False
) -> bytes:
    """Return the packet for one message or compound.

    Args:
        messages: what compound.py made.
        keyring: seals with its primary key; None sends plain.
        label: of the pool, "" for none.
        with_crc: the receiver is known to read checksums.
        compress: try LZW; it costs 0.4 ms for 1 KiB and is kept only if it is shorter.
    """
    if compress:
        folded = encode(Compress(buffer=lzw.compress(messages)))
        messages = min(folded, messages, key=len)
    if with_crc:
        messages = bytes((MessageType.CHECKSUM,)) + _U32.pack(zlib.crc32(messages)) + messages
    name = label.encode()
    if keyring is not None:
        messages = keyring.seal(messages, name)
    return label_header(label) + messages


def open_packet(raw: bytes, *, keyring: Keyring | None, label: str = "", verify_incoming: bool = True) -> bytes:
    """Return the message of a packet.

    Raises:
        PacketError: see PACKET_REASONS; the packet is dropped and counted.
    """
    if len(raw) > PACKET_BYTES_MAX:
        raise PacketError("size", f"a packet of {len(raw)} bytes")
    raw = without_label(raw, label)
    if keyring is not None:
        try:
            raw = keyring.open(raw, label.encode())
        except PacketError:
            if verify_incoming:
                raise
    if raw[:1] == b"\x0c":
        raw = _checked(raw)
    if not raw:
        raise PacketError("truncated", "an empty packet")
    return raw


def packet_overhead_bytes(*, keyring: Keyring | None, label: str) -> int:
    """Return what envelopes may add to a message: subtract it from UDP_BUDGET_BYTES."""
    sealed = 0 if keyring is None else SEALED_OVERHEAD_BYTES
    return sealed + len(label_header(label)) + CRC_BYTES


def seal_stream(
    blob: bytes, *, keyring: Keyring | None, label: str = "", is_reply: bool, compress_from_bytes: int = 4096
) -> bytes:
    """Return the bytes of one TCP request or reply.

    Args:
        blob: a message, or a push/pull state.
        keyring, label: as for packets.
        is_reply: replies carry no label header.
        compress_from_bytes: shorter ones are sent as they are.
    """
    if len(blob) >= compress_from_bytes:
        folded = encode(Compress(buffer=lzw.compress(blob)))
        blob = min(folded, blob, key=len)
    if keyring is not None:
        header = bytes((MessageType.ENCRYPTED,)) + _U32.pack(len(blob) + SEALED_OVERHEAD_BYTES)
        blob = header + keyring.seal(blob, header + label.encode())
    return blob if is_reply else label_header(label) + blob


def label_header(label: str) -> bytes:
    """Return the header of a label, nothing without one.

    Raises:
        ValueError: longer than 255 bytes.
    """
    name = label.encode()
    if len(name) > LABEL_BYTES_MAX:
        raise ValueError(f"a label has at most {LABEL_BYTES_MAX} bytes")
    return bytes((MessageType.LABEL, len(name))) + name if name else b""


def without_label(raw: bytes, label: str) -> bytes:
    """Return what follows the label header, which must be that of `label`.

    Raises:
        PacketError: "label" or "truncated".
    """
    if raw[:1] != bytes((MessageType.LABEL,)):
        if label:
            raise PacketError("label", "a packet without a label: another mesh")
        return raw
    if len(raw) < 2 or len(raw) < 2 + raw[1]:
        raise PacketError("truncated", "a label header that ends early")
    if not label or raw[1] == 0 or raw[2 : 2 + raw[1]] != label.encode():
        raise PacketError("label", "a packet with another label: another mesh")
    return raw[2 + raw[1] :]


def _checked(raw: bytes) -> bytes:
    if len(raw) < CRC_BYTES:
        raise PacketError("truncated", "a checksum that ends early")
    body = raw[CRC_BYTES:]
    if zlib.crc32(body) != _U32.unpack_from(raw, 1)[0]:
        raise PacketError("crc", "a packet was damaged on its way")
    return body
