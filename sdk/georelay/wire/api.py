"""Frames of the Kafka protocol to typed values and back, for both ends of a connection.

Rule 1: whatever the bytes, decoding raises WireError and nothing else, within time and memory bounded by the
        frame's cap (`frame_bytes_max`) and its budget of items.
Rule 2: a frame must be used up exactly; bytes left over are refused. Two exceptions: a flexible Metadata request for
        all topics may carry LIBRDKAFKA_NULL_ARRAY_BYTES more, because librdkafka reserves four bytes for the null
        array and fills one (librdkafka issue 5049; seen in 2.16). Without it `list_topics()` could not work. And an
        AlterUserScramCredentials request may end with a second empty tag section (seen in librdkafka 2.16).
Rule 3: encoders return framed buffers (length first) for `transport.writelines`; records are never copied there
        unless they are tiny.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from georelay.wire import hot, requests
from georelay.wire.calls import KEY_OF, REQUESTS, RESPONSES, Request, Response
from georelay.wire.codec import codec_of
from georelay.wire.frames import LENGTH_BYTES, FrameReader
from georelay.wire.header import Buffer
from georelay.wire.keys import (
    CODED,
    SPOKEN,
    SUPPORTED,
    ApiKey,
    ErrorCode,
    FrameCap,
    frame_bytes_max,
    is_coded,
    is_flexible,
    is_supported,
    response_frame_bytes_max,
)
from georelay.wire.primitives import (
    INT32,
    REQUEST_ITEMS_MAX,
    RESPONSE_ITEMS_MAX,
    Reader,
    WireError,
    skip_tags,
    take_text,
)
from georelay.wire.responses import ApiVersion, ApiVersionsResponse
from georelay.wire.scram_users import AlterUserScramCredentialsRequest

__all__ = [
    "CODED",
    "REQUESTS",
    "RESPONSES",
    "SUPPORTED",
    "ApiKey",
    "ErrorCode",
    "FrameCap",
    "FrameReader",
    "Request",
    "RequestHeader",
    "Response",
    "WireError",
    "api_versions_response",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
    "frame_bytes_max",
    "is_coded",
    "is_flexible",
    "is_supported",
    "parse_request_header",
    "refuse_api_versions",
    "response_frame_bytes_max",
]

LIBRDKAFKA_NULL_ARRAY_BYTES: Final = 3
# librdkafka before 2.8.1 compresses only for brokers that show Produce 0, which nobody sends any more. Apache Kafka 4
# shows it for the same reason (KAFKA-18659); a request in a version below SUPPORTED is refused all the same.
PRODUCE_VERSION_SHOWN: Final = 0

_HOT_DECODE: Final[Mapping[int, Callable[[Reader, int], Request]]] = {
    ApiKey.PRODUCE: hot.decode_produce_request,
    ApiKey.FETCH: hot.decode_fetch_request,
}
_HOT_ENCODE: Final[Mapping[int, Callable[[bytearray, Any, int], list[Buffer]]]] = {
    ApiKey.PRODUCE: hot.encode_produce_response,
    ApiKey.FETCH: hot.encode_fetch_response,
}

_HEADER: Final = struct.Struct(">hhih")  # API key, version, correlation id, length of the client id
_ROOM: Final = bytes(LENGTH_BYTES)  # where the frame's length goes once it is known


class RequestHeader(NamedTuple):
    """What precedes every request; the body starts at `body_position` of the frame."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_position: int

    @property
    def is_supported(self) -> bool:
        """Return whether brokers serve this; `decode_request` reads the body of everything that is coded."""
        return is_supported(self.api_key, self.api_version)


def parse_request_header(frame: Buffer) -> RequestHeader:
    """Read the header of a request, also of an API or version that is not supported (then the body stays closed).

    Args:
        frame: a whole frame without its length.

    Raises:
        WireError: not a request header.
    """
    raw = frame if type(frame) is memoryview else memoryview(frame)
    try:
        api_key, api_version, correlation_id, length = _HEADER.unpack_from(raw)
        position = _HEADER.size
        client_id = None
        if length != -1:
            reader = Reader(raw, position, 0)
            client_id = take_text(reader, length)
            position += length
        if SPOKEN.get((api_key, api_version)):
            if raw[position]:
                reader = Reader(raw, position, REQUEST_ITEMS_MAX)
                skip_tags(reader)
                position = reader.position
            else:  # nearly always: no tag
                position += 1
    except (struct.error, IndexError):
        raise WireError("a request header is cut short") from None
    return RequestHeader(api_key, api_version, correlation_id, client_id, position)


def decode_request(frame: Buffer, header: RequestHeader | None = None) -> tuple[RequestHeader, Request]:
    """Decode a request.

    Args:
        frame: a whole frame without its length; the records of a Produce stay views of it.
        header: what `parse_request_header` returned for this frame, to save doing it again.

    Raises:
        WireError: malformed, or of an API or version that is not coded.
    """
    header = header or parse_request_header(frame)
    key, version = header.api_key, header.api_version
    flexible = SPOKEN.get((key, version))
    if flexible is None:
        raise WireError(f"API {key} version {version} is not supported")
    # Single bytes are read faster from bytes than from a view, and only Produce frames are worth not copying.
    raw = memoryview(frame) if key == ApiKey.PRODUCE else bytes(frame)
    reader = Reader(raw, header.body_position, REQUEST_ITEMS_MAX)
    fast = _HOT_DECODE.get(key)
    try:
        if fast is not None:
            request = fast(reader, version)
        else:
            request = codec_of(REQUESTS[ApiKey(key)], version, flexible).decode(reader)
    except (struct.error, IndexError):
        raise WireError(f"a {ApiKey(key).name} request of version {version} is cut short") from None
    if reader.position != reader.end and not (flexible and _is_librdkafka_excess(request, reader)):
        _check_end(reader, key)
    return header, request


def decode_response(api_key: ApiKey, api_version: int, frame: Buffer) -> tuple[int, Response]:
    """Decode the response to a request of `api_key` and `api_version`, and return its correlation id with it.

    Args:
        frame: a whole frame without its length; fetched records stay views of it.

    Raises:
        WireError: malformed.
        ValueError: this codec does not speak that version.
    """
    _check_version(api_key, api_version)
    flexible = is_flexible(api_key, api_version)
    reader = Reader(memoryview(frame), INT32.size, RESPONSE_ITEMS_MAX)
    try:
        correlation_id = INT32.unpack_from(frame)[0]
        if flexible and api_key is not ApiKey.API_VERSIONS:
            skip_tags(reader)
        response = codec_of(RESPONSES[api_key], api_version, flexible).decode(reader)
    except (struct.error, IndexError):
        raise WireError(f"a {api_key.name} response of version {api_version} is cut short") from None
    _check_end(reader, api_key)
    return correlation_id, response


def _is_librdkafka_excess(request: Request, reader: Reader) -> bool:
    return _is_librdkafka_for_all_topics(request, reader) or _is_librdkafka_scram_user(request, reader)


def _is_librdkafka_for_all_topics(request: Request, reader: Reader) -> bool:
    return (
        isinstance(request, requests.MetadataRequest)
        and request.topics is None
        and reader.end - reader.position == LIBRDKAFKA_NULL_ARRAY_BYTES
    )


def _is_librdkafka_scram_user(request: Request, reader: Reader) -> bool:
    """Return whether only the empty tag section is left that librdkafka writes twice behind these requests."""
    return (
        isinstance(request, AlterUserScramCredentialsRequest)
        and reader.end - reader.position == 1
        and reader.raw[reader.position] == 0
    )


def _check_end(reader: Reader, api_key: int) -> None:
    if reader.position != reader.end:
        raise WireError(f"{reader.end - reader.position} bytes follow the {ApiKey(api_key).name} body")


def _check_version(api_key: ApiKey, api_version: int) -> None:
    if not is_coded(api_key, api_version):
        raise ValueError(f"{api_key.name} version {api_version} is outside {CODED[api_key]}")


def encode_response(response: Response, *, api_version: int, correlation_id: int) -> list[Buffer]:
    """Return the framed response as buffers to send in order; the API follows from the class.

    Raises:
        ValueError: a version that is not spoken, or a value that it cannot carry.
    """
    key = KEY_OF[type(response)]
    _check_version(key, api_version)
    flexible = is_flexible(key, api_version)
    out = bytearray(_ROOM)
    out += INT32.pack(correlation_id)
    if flexible and key is not ApiKey.API_VERSIONS:  # a client must read that one before versions are agreed
        out.append(0)
    fast = _HOT_ENCODE.get(key)
    try:
        if fast is not None:
            return _framed(fast(out, response, api_version))
        codec_of(type(response), api_version, flexible).encode(out, response)
    except struct.error as error:
        raise ValueError(f"a {key.name} response holds a number out of range: {error}") from error
    return _framed([out])


def encode_request(request: Request, *, api_version: int, correlation_id: int, client_id: str | None) -> list[Buffer]:
    """Return the framed request as buffers to send in order; the API follows from the class.

    Raises:
        ValueError: a version that is not spoken, or a value that it cannot carry.
    """
    key = KEY_OF[type(request)]
    _check_version(key, api_version)
    flexible = is_flexible(key, api_version)
    name = None if client_id is None else client_id.encode()
    out = bytearray(_ROOM)
    try:
        out += _HEADER.pack(key, api_version, correlation_id, -1 if name is None else len(name))
        out += name or b""
        if flexible:
            out.append(0)
        codec_of(type(request), api_version, flexible).encode(out, request)
    except struct.error as error:
        raise ValueError(f"a {key.name} request holds a number out of range: {error}") from error
    return _framed([out])


def _framed(buffers: list[Buffer]) -> list[Buffer]:
    first = buffers[0]
    assert isinstance(first, bytearray)
    INT32.pack_into(first, 0, sum(map(len, buffers)) - LENGTH_BYTES)
    return buffers


def api_versions_response(error_code: ErrorCode = ErrorCode.NONE) -> ApiVersionsResponse:
    """Return the list of everything in SUPPORTED, and Produce from PRODUCE_VERSION_SHOWN on."""
    shown = {key: versions.start for key, versions in SUPPORTED.items()} | {ApiKey.PRODUCE: PRODUCE_VERSION_SHOWN}
    return ApiVersionsResponse(error_code, tuple(ApiVersion(k, shown[k], v.stop - 1) for k, v in SUPPORTED.items()))


def refuse_api_versions(correlation_id: int) -> list[Buffer]:
    """Return the answer to an ApiVersions newer than ours: version 0, error 35 and the list to choose from."""
    response = api_versions_response(ErrorCode.UNSUPPORTED_VERSION)
    return encode_response(response, api_version=0, correlation_id=correlation_id)
