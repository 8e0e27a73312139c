"""One bootstrap connection as a byte stream with frames in it (pure: bytes in, permission out).

A bootstrap connection is relayed to one broker byte for byte, so that ApiVersions, Metadata and errors are that
broker's own words. What is decided here, before a byte of a frame goes on:
Rule 1: a frame is never longer than its API allows, and its body is never kept: memory is a few bytes.
Rule 2: while sign-in is outstanding only ApiVersions, SaslHandshake and SaslAuthenticate pass. The broker
enforces the same; its answer to SaslAuthenticate is what ends the rule, the last one where SCRAM takes two.
Rule 3: Kafka's first SASL form (SaslHandshake v0) sends the token as a bare length-prefixed frame, which nobody can
tell from a request: it passes once the broker has accepted that handshake, and nothing passes before it has answered.
"""

from __future__ import annotations

import enum
import struct
from collections import deque
from typing import Final

from georelay.errors import BadRequest
from georelay.limits import KAFKA_FRAME_BYTES_MAX, KAFKA_REQUESTS_IN_FLIGHT_MAX
from georelay.wire.keys import ApiKey, frame_bytes_max, is_flexible

_LENGTH: Final = struct.Struct(">i")
_REQUEST_HEAD: Final = struct.Struct(">ihh")  # length, api key, api version
_REQUEST_BYTES_MIN: Final = 8  # api key, api version, correlation id
# Length, correlation id, empty tag section of header v1, error code, no error message, length of the token and its
# first two bytes: enough to see whether a SCRAM exchange has ended.
_RESPONSE_HEAD_BYTES: Final = 18
_EMPTY_FRAME: Final = bytes(_LENGTH.size)
_CHALLENGE: Final = b"r="  # how a SCRAM server's first message begins (RFC 5802); its last begins with "v="
_CLIENT_ID_AT: Final = 12
_BEFORE_SIGN_IN: Final = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.API_VERSIONS, ApiKey.SASL_AUTHENTICATE})
_LEGACY_HANDSHAKE_VERSION: Final = 0


class FrameRefused(BadRequest):
    """The connection must be closed; `reason` is a metrics label."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class _Expected(enum.Enum):
    """What kind of answer the broker owes."""

    OTHER = "other"
    HANDSHAKE = "handshake"  # of the first SASL form: whether a token comes next
    SIGN_IN = "sign_in"  # SaslAuthenticate with header v0
    SIGN_IN_FLEXIBLE = "sign_in_flexible"  # with header v1: one tag byte before the body
    TOKEN = "token"  # noqa: S105  the answer to a bare token of the first SASL form


class BootstrapSession:
    """State of one connection."""

    __slots__ = ("_answer_head", "_answer_left", "_awaited", "_frame_left", "_held", "_signed_in", "_token_next")

    def __init__(self, *, sign_in_required: bool) -> None:
        self._signed_in = not sign_in_required
        self._held = b""  # begin of a frame, too short to judge
        self._frame_left = 0  # bytes of the current request that may pass
        self._token_next = False
        self._awaited: deque[_Expected] = deque()  # kept only while signing in
        self._answer_head = b""
        self._answer_left = 0

    @property
    def signed_in(self) -> bool:
        """Return whether every API may pass."""
        return self._signed_in

    def on_client_bytes(self, data: bytes) -> bytes:
        """Return the bytes that may go on to the broker now.

        Raises:
            FrameRefused: a frame over its limit, not a request at all, or one that needs a sign-in first.
        """
        if self._held:
            data, self._held = self._held + data, b""
        position = 0
        while position < len(data):
            if self._frame_left == 0:
                head_bytes = _LENGTH.size if self._token_next else _REQUEST_HEAD.size
                if len(data) - position < head_bytes:
                    self._held = data[position:]
                    break
                self._frame_left = _LENGTH.size + self._judge(data, position)
            step = min(self._frame_left, len(data) - position)
            self._frame_left -= step
            position += step
        return data if position == len(data) else data[:position]

    def on_broker_bytes(self, data: bytes) -> None:
        """Watch the broker's answers for the one that signs the client in; they all go on to the client."""
        position = 0
        while not self._signed_in and position < len(data):
            if self._answer_left:
                step = min(self._answer_left, len(data) - position)
                self._answer_left -= step
                position += step
                continue
            head = self._answer_head + data[position:]
            wanted = _LENGTH.size
            if len(head) >= wanted:
                length = max(0, _LENGTH.unpack_from(head)[0])
                wanted = min(_RESPONSE_HEAD_BYTES, _LENGTH.size + length)
            if len(head) < wanted:
                self._answer_head = head
                return
            position += wanted - len(self._answer_head)
            self._answer_head = b""
            self._answer_left = _LENGTH.size + length - wanted
            self._on_answer(head[:wanted])

    def _judge(self, data: bytes, position: int) -> int:
        """Return the length of the frame that begins at `position`."""
        if self._token_next:
            self._token_next = False
            length: int = _LENGTH.unpack_from(data, position)[0]
            if not 0 <= length <= KAFKA_FRAME_BYTES_MAX:
                raise FrameRefused("frame_refused", f"a SASL token of {length} bytes")
            self._expect(_Expected.TOKEN)
            return length
        length, api_key, api_version = _REQUEST_HEAD.unpack_from(data, position)
        if not _REQUEST_BYTES_MIN <= length <= frame_bytes_max(api_key):
            raise FrameRefused("frame_refused", f"a frame of {length} bytes for API {api_key}")
        if not self._signed_in:
            self._judge_before_sign_in(api_key, api_version)
        return length

    def _judge_before_sign_in(self, api_key: int, api_version: int) -> None:
        if api_key not in _BEFORE_SIGN_IN:
            raise FrameRefused("not_signed_in", f"API {api_key} before a successful sign-in")
        if _Expected.HANDSHAKE in self._awaited:
            raise FrameRefused("not_signed_in", "a frame before the answer to SaslHandshake")
        if api_key == ApiKey.SASL_HANDSHAKE and api_version == _LEGACY_HANDSHAKE_VERSION:
            self._expect(_Expected.HANDSHAKE)
        elif api_key != ApiKey.SASL_AUTHENTICATE:
            self._expect(_Expected.OTHER)
        elif is_flexible(api_key, api_version):
            self._expect(_Expected.SIGN_IN_FLEXIBLE)
        else:
            self._expect(_Expected.SIGN_IN)

    def _expect(self, answer: _Expected) -> None:
        if len(self._awaited) == KAFKA_REQUESTS_IN_FLIGHT_MAX:
            raise FrameRefused("frame_refused", f"{KAFKA_REQUESTS_IN_FLIGHT_MAX} requests wait for an answer already")
        self._awaited.append(answer)

    def _on_answer(self, head: bytes) -> None:
        """Take one answer of the broker; `head` is its begin, length included."""
        if not self._awaited:
            return  # an answer nobody asked for: the client will notice
        expected = self._awaited.popleft()
        if expected is _Expected.TOKEN:
            self._signed_in = head == _EMPTY_FRAME  # a refused token is answered by closing
        elif expected is _Expected.HANDSHAKE:
            self._token_next = head[8:10] == b"\0\0"
        elif expected is not _Expected.OTHER:
            self._signed_in = _has_signed_in(head, is_flexible=expected is _Expected.SIGN_IN_FLEXIBLE)


def _has_signed_in(head: bytes, *, is_flexible: bool) -> bool:
    """Return whether an answer to SaslAuthenticate ends the sign-in well: no error, and no challenge."""
    error_at = 9 if is_flexible else 8
    if head[error_at : error_at + 2] != b"\0\0":
        return False
    # After the error a null message; then the token with its length, compact (one byte below 127, two above) or not.
    token = head[error_at + 4 :] if is_flexible else head[error_at + 8 :]
    is_long = is_flexible and head[error_at + 3 : error_at + 4] >= b"\x80"
    return not (token[1:] if is_long else token).startswith(_CHALLENGE)


def client_id_of(data: bytes) -> str:
    """Return the client id in a request's header, "" when there is none, or `data` holds no whole one.

    Source: Kafka protocol, request headers v1 and v2: length, api key, api version, correlation id, nullable string.
    """
    if len(data) < _CLIENT_ID_AT + 2:
        return ""
    size = int.from_bytes(data[_CLIENT_ID_AT : _CLIENT_ID_AT + 2], "big", signed=True)
    raw = data[_CLIENT_ID_AT + 2 : _CLIENT_ID_AT + 2 + size] if size > 0 else b""
    return raw.decode("utf-8", "replace") if len(raw) == size else ""
