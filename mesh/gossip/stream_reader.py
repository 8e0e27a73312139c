"""Collects the one blob of a TCP connection: bytes in as they come, the plain blob out once it is whole.

A plain push/pull state does not say its length, so the end is found by walking its objects; the walk goes on where it
stopped. Memory: at most `limit_bytes` of what arrived, and as much again once it is decrypted or decompressed.

Rule 1: one blob per connection: bytes behind it are an error.
Rule 2: lengths are judged before their bytes are waited for.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import msgpack

from mesh.gossip.codec import STREAM_BYTES_MAX, MessageType, push_pull_lengths
from mesh.gossip.compound import unfold
from mesh.gossip.dialect import FieldMap, read_map
from mesh.gossip.faults import CodecError, PacketError
from mesh.gossip.keyring import SEALED_OVERHEAD_BYTES, Keyring
from mesh.gossip.packet import LABEL_BYTES_MAX, without_label

_HEADER: Final = struct.Struct(">BI")
_ONE_OBJECT: Final = frozenset({MessageType.PING, MessageType.ACK, MessageType.COMPRESS, MessageType.ERROR})
_MSGPACK_ERRORS: Final = (ValueError, TypeError, msgpack.exceptions.UnpackException, RecursionError, OverflowError)


class StreamReader:
    """Reader of one connection.

    Args:
        keyring: opens the blob; None takes plain ones.
        label: of the pool, "" for none.
        is_reply: this is the dialling side: replies have no label header.
        verify_incoming: refuse plaintext when there is a keyring.
        limit_bytes: largest blob, sealed or plain.
    """

    def __init__(
        self,
        *,
        keyring: Keyring | None,
        label: str = "",
        is_reply: bool,
        verify_incoming: bool = True,
        limit_bytes: int = STREAM_BYTES_MAX,
    ) -> None:
        self._keyring = keyring
        self._label = label
        self._wants_label = not is_reply
        self._verify = verify_incoming
        self._limit = limit_bytes
        self._buffer = bytearray()
        self._plain: _PlainEnd | None = None

    def feed(self, data: bytes) -> bytes | None:
        """Take the next bytes.

        Returns:
            the plain blob (decrypted, decompressed), or None while it is not whole. Feed nothing after it.

        Raises:
            PacketError: the envelope is wrong, too large, or not ours: close the connection.
        """
        self._buffer += data
        if len(self._buffer) > self._limit + LABEL_BYTES_MAX + 2 + _HEADER.size:
            raise PacketError("size", f"a blob of more than {self._limit} bytes")
        if self._wants_label and not self._strip_label():
            return None
        if not self._buffer:
            return None
        if self._buffer[0] == MessageType.ENCRYPTED:
            return self._sealed()
        if self._keyring is not None and self._verify:
            raise PacketError("plaintext", "a plain connection to an encrypted pool")
        return self._unsealed()

    def _strip_label(self) -> bool:
        if not self._buffer:
            return False
        if self._buffer[0] == MessageType.LABEL and (len(self._buffer) < 2 or len(self._buffer) < 2 + self._buffer[1]):
            return False
        self._buffer = bytearray(without_label(bytes(self._buffer), self._label))
        self._wants_label = False
        return True

    def _sealed(self) -> bytes | None:
        if len(self._buffer) < _HEADER.size:
            return None
        length = _HEADER.unpack_from(self._buffer)[1]
        if not SEALED_OVERHEAD_BYTES < length <= self._limit:
            raise PacketError("size", f"an encrypted blob of {length} bytes")
        if self._keyring is None:
            raise PacketError("no_key", "an encrypted connection, and this pool has no key")
        end = _HEADER.size + length
        if len(self._buffer) < end:
            return None
        if len(self._buffer) > end:
            raise PacketError("size", "bytes behind the blob")
        header = bytes(self._buffer[: _HEADER.size])
        return self._unfolded(self._keyring.open(bytes(self._buffer[_HEADER.size :]), header + self._label.encode()))

    def _unsealed(self) -> bytes | None:
        if self._plain is None:
            self._plain = _PlainEnd(self._buffer[0], self._limit)
        end = self._plain.find(self._buffer)
        if end is None:
            return None
        if len(self._buffer) > end:
            raise PacketError("size", "bytes behind the blob")
        return self._unfolded(bytes(self._buffer))

    def _unfolded(self, blob: bytes) -> bytes:
        if blob[:1] != bytes((MessageType.COMPRESS,)):
            return blob
        try:
            return unfold(blob, limit_bytes=self._limit)
        except CodecError as error:
            raise PacketError("compress", str(error)) from error


class _PlainEnd:
    """Finds the end of a plain blob while it grows."""

    def __init__(self, kind: int, limit_bytes: int) -> None:
        if kind not in _ONE_OBJECT and kind not in (MessageType.PUSH_PULL, MessageType.USER):
            raise PacketError("version", f"a connection that begins with {kind}")
        self._kind = kind
        self._limit = limit_bytes
        self._unpacker: Any = msgpack.Unpacker(raw=True, strict_map_key=False, max_buffer_size=limit_bytes + 1024)
        self._fed = 1  # the type byte is no msgpack
        self._objects_left = -1  # behind the header; -1: the header is not there yet
        self._tail_bytes = 0

    def find(self, buffer: bytearray) -> int | None:
        """Return the length of the blob, None while more is needed."""
        try:
            self._unpacker.feed(memoryview(buffer)[self._fed :])
            self._fed = len(buffer)
            if self._objects_left < 0:
                self._unpacker.skip()
                self._header(bytes(buffer[1 : 1 + self._unpacker.tell()]))
            while self._objects_left > 0:
                self._unpacker.skip()
                self._objects_left -= 1
        except msgpack.exceptions.OutOfData:
            return None
        except _MSGPACK_ERRORS as error:
            raise PacketError("version", "a connection that does not speak gossip") from error
        end: int = 1 + self._unpacker.tell() + self._tail_bytes
        if end > self._limit:
            raise PacketError("size", f"a blob of {end} bytes")
        return end if len(buffer) >= end else None

    def _header(self, raw: bytes) -> None:
        self._objects_left = 0
        if self._kind in _ONE_OBJECT:
            return
        header: FieldMap = read_map(raw)
        if self._kind == MessageType.USER:
            self._tail_bytes = header.uint("UserMsgLen")
        else:
            self._objects_left, self._tail_bytes, _ = push_pull_lengths(header)
