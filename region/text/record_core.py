"""A record as the JSON object of the text protocol: {"Header": {name: text}, "Key": text, "Body": anything}. Pure.

`Header` may be one text, too: it is kept as the header with the empty name, and shown so where it is the only one.
`Key` and `Body` may be null or absent (a null key, a null value). A body that is no string is stored as its JSON text.
Bytes that are not UTF-8 are written and read as `KeyB64`, `BodyB64` and, in headers, `HeaderB64`.
Every refusal names the field. Of several headers with one name JSON keeps the last.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any, Final, NoReturn

from georelay.errors import BadRequest, TooLarge
from georelay.limits import HEADERS_PER_RECORD_MAX
from georelay.wire.batch import Record, RecordDraft

_FIELDS: Final = frozenset({"Header", "HeaderB64", "Key", "KeyB64", "Body", "BodyB64"})
_SHOWN_CHARS_MAX: Final = 40


def parse_body(text: str) -> RecordDraft:
    """Return the record that a JSON object describes.

    Raises:
        BadRequest, TooLarge: the text names the field.
    """
    try:
        value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique_fields)
    except json.JSONDecodeError as error:
        raise BadRequest(f"not JSON: {error.msg} at character {error.pos + 1}") from None
    except RecursionError:
        raise BadRequest("not JSON: nested too deeply") from None
    except ValueError as error:  # an integer of more digits than Python converts
        raise BadRequest(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadRequest('a record is an object: {"Header":{},"Key":"k","Body":"text"}')
    unknown = value.keys() - _FIELDS
    if unknown:
        name = min(unknown)[:_SHOWN_CHARS_MAX]
        raise BadRequest(f"{name!r}: unknown field; known are Header, Key and Body (HeaderB64, KeyB64, BodyB64)")
    return RecordDraft(_body(value), _key(value), _headers(value))


def body_text(record: Record) -> str:
    """Return a stored record as one line of JSON."""
    shown: dict[str, Any] = {"Header": {}}
    alone = record.headers[0] if len(record.headers) == 1 else None
    if alone is not None and not alone[0] and (text := _text(alone[1])):
        shown["Header"] = text
    for name, raw in record.headers if isinstance(shown["Header"], dict) else ():
        _show(shown.setdefault("Header", {}), shown, name, raw)
    for name, raw in (("Key", record.key), ("Body", record.value)):
        text = _text(raw)
        if raw is not None and text is None:
            shown[f"{name}B64"] = base64.b64encode(raw).decode()
        else:
            shown[name] = text
    return json.dumps(shown, ensure_ascii=False, separators=(",", ":"))


def _show(headers: dict[str, Any], shown: dict[str, Any], name: str, raw: bytes | None) -> None:
    text = _text(raw)
    if raw is not None and text is None:
        shown.setdefault("HeaderB64", {})[name] = base64.b64encode(raw).decode()
    else:
        headers[name] = text


def _text(raw: bytes | None) -> str | None:
    if raw is None:
        return None
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


def _body(value: dict[str, Any]) -> bytes | None:
    if "BodyB64" in value:
        return _either(value, "Body", "BodyB64")
    body = value.get("Body")
    if body is None:
        return None
    text = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    return _utf8(text, "Body")


def _key(value: dict[str, Any]) -> bytes | None:
    if "KeyB64" in value:
        return _either(value, "Key", "KeyB64")
    key = value.get("Key")
    return None if key is None else _utf8(key, "Key")


def _either(value: dict[str, Any], name: str, encoded: str) -> bytes:
    if name in value:
        raise BadRequest(f"{encoded}: give either {name} or {encoded}, not both")
    return _base64(value[encoded], encoded)


def _headers(value: dict[str, Any]) -> tuple[tuple[str, bytes | None], ...]:
    headers: list[tuple[str, bytes | None]] = []
    for field, read in (("Header", _header_text), ("HeaderB64", _base64)):
        rows = value.get(field) or {}
        if field == "Header" and isinstance(rows, str):
            rows = {"": rows}
        if not isinstance(rows, dict):
            raise BadRequest(f"{field}: must be a text, or an object of texts")
        for name, item in rows.items():
            _utf8(name, f"{field} name")
            headers.append((name, read(item, f"{field}.{name[:_SHOWN_CHARS_MAX]}")))
    if len(headers) > HEADERS_PER_RECORD_MAX:
        raise TooLarge(f"Header: {len(headers)} are over HEADERS_PER_RECORD_MAX ({HEADERS_PER_RECORD_MAX})")
    return tuple(headers)


def _header_text(value: Any, where: str) -> bytes | None:
    return None if value is None else _utf8(value, where)


def _utf8(value: Any, where: str) -> bytes:
    if not isinstance(value, str):
        raise BadRequest(f"{where}: must be a string or null")
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise BadRequest(f"{where}: has half of a surrogate pair") from None


def _base64(value: Any, where: str) -> bytes:
    if not isinstance(value, str):
        raise BadRequest(f"{where}: must be a string of base64")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise BadRequest(f"{where}: is not base64") from None


def _refuse_constant(name: str) -> NoReturn:
    raise BadRequest(f"not JSON: {name} is not a JSON number")


def _unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise BadRequest(f"{twice[:_SHOWN_CHARS_MAX]!r}: the field stands twice in one object")
    return value
