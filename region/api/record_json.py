"""Records as JSON: strict in what it reads, exact in what it writes. Pure.

A record is {"key": str|null, "key_b64": str, "value": str|null, "value_b64": str, "headers": {name: str},
"headers_b64": {name: str}, "partition": int, "timestamp_ms": int}; every field is optional, unknown fields are
refused, `key` and `key_b64` (`value` and `value_b64`) exclude each other. A missing key or value is null.
Every refusal names the field: "records[3].headers.trace: must be a string".
Of several headers with one name JSON keeps the last.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any, Final, NoReturn

from georelay.errors import BadRequest, TooLarge
from georelay.limits import HEADERS_PER_RECORD_MAX, PARTITIONS_PER_TOPIC_MAX, REST_RECORDS_MAX
from georelay.wire.batch import Record
from region.api.coalescer import NewRecord

TIMESTAMP_MS_MAX: Final = 253_402_300_799_999  # 9999-12-31
_FIELDS: Final = frozenset(
    {"key", "key_b64", "value", "value_b64", "headers", "headers_b64", "partition", "timestamp_ms"}
)


def parse_json(body: bytes) -> Any:
    """Return the JSON value of `body`: UTF-8, no NaN or Infinity, no field twice.

    Raises:
        BadRequest: not that; the text has the position.
    """
    try:
        return json.loads(body.decode(), parse_constant=_refuse_constant, object_pairs_hook=_unique_fields)
    except UnicodeDecodeError as error:
        raise BadRequest(f"the body is not UTF-8 at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise BadRequest(f"the body is not JSON: {error.msg} at line {error.lineno} column {error.colno}") from error
    except RecursionError as error:
        raise BadRequest("the body is nested too deeply") from error
    except ValueError as error:  # an integer of more digits than Python converts
        raise BadRequest(f"the body is not JSON: {error}") from error


def _refuse_constant(name: str) -> NoReturn:
    raise BadRequest(f"the body is not JSON: {name} is not a JSON number")


def _unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise BadRequest(f"{twice[:64]}: the field stands twice in one object")
    return value


def parse_records(body: bytes) -> list[tuple[NewRecord, int | None]]:
    """Return (record, wanted partition) for a body that is one record or an array of 1..REST_RECORDS_MAX.

    Raises:
        BadRequest, TooLarge: the text names the field.
    """
    return records_of(parse_json(body), "the body")


def records_of(value: Any, what: str) -> list[tuple[NewRecord, int | None]]:
    """Return the same for a JSON value; `what` names it in errors."""
    if isinstance(value, dict):
        return [_record(value, "record")]
    if not isinstance(value, list):
        raise BadRequest(f"{what} must be one record (an object) or an array of records")
    if not value:
        raise BadRequest("the array of records is empty")
    if len(value) > REST_RECORDS_MAX:
        raise TooLarge(f"{len(value)} records are over REST_RECORDS_MAX ({REST_RECORDS_MAX}) per request")
    return [_record(item, f"records[{index}]") for index, item in enumerate(value)]


def _record(item: Any, where: str) -> tuple[NewRecord, int | None]:
    if not isinstance(item, dict):
        raise BadRequest(f"{where}: must be an object")
    unknown = item.keys() - _FIELDS
    if unknown:
        raise BadRequest(f"{where}.{min(unknown)}: unknown field; known are {', '.join(sorted(_FIELDS))}")
    record = NewRecord(
        value=_bytes_field(item, where, "value"),
        key=_bytes_field(item, where, "key"),
        headers=_headers(item, where),
        timestamp_ms=integer_field(item, where, "timestamp_ms", low=0, high=TIMESTAMP_MS_MAX),
    )
    return record, integer_field(item, where, "partition", low=0, high=PARTITIONS_PER_TOPIC_MAX - 1)


def _bytes_field(item: dict[str, Any], where: str, name: str) -> bytes | None:
    encoded_name = f"{name}_b64"
    if encoded_name in item:
        if name in item:
            raise BadRequest(f"{where}.{encoded_name}: give either {name} or {encoded_name}, not both")
        return _base64(item[encoded_name], f"{where}.{encoded_name}")
    text = item.get(name)
    return None if text is None else _utf8(text, f"{where}.{name}", "a string or null")


def _headers(item: dict[str, Any], where: str) -> tuple[tuple[str, bytes | None], ...]:
    headers: list[tuple[str, bytes | None]] = []
    for field, read in (("headers", _header_text), ("headers_b64", _base64)):
        values = item.get(field, {})
        if not isinstance(values, dict):
            raise BadRequest(f"{where}.{field}: must be an object of strings")
        for name, value in values.items():
            _utf8(name, f"{where}.{field} name", "a string")
            headers.append((name, read(value, f"{where}.{field}.{name}")))
    if len(headers) > HEADERS_PER_RECORD_MAX:
        raise TooLarge(f"{where}.headers: {len(headers)} are over HEADERS_PER_RECORD_MAX ({HEADERS_PER_RECORD_MAX})")
    return tuple(headers)


def _header_text(value: Any, where: str) -> bytes:
    return _utf8(value, where, "a string")


def _utf8(value: Any, where: str, what: str) -> bytes:
    if not isinstance(value, str):
        raise BadRequest(f"{where}: must be {what}")
    try:
        return value.encode()
    except UnicodeEncodeError as error:  # a lone surrogate from a \ud800 escape
        raise BadRequest(f"{where}: has half of a surrogate pair") from error


def _base64(value: Any, where: str) -> bytes:
    if not isinstance(value, str):
        raise BadRequest(f"{where}: must be a string of base64")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadRequest(f"{where}: is not base64 ({error})") from error


def integer_field(item: dict[str, Any], where: str, name: str, *, low: int, high: int) -> int | None:
    """Return the integer `name` of a JSON object, None when absent (BadRequest: another type or out of range)."""
    if name not in item:
        return None
    value = item[name]
    if type(value) is not int or not low <= value <= high:  # bool is an int, but not in JSON
        raise BadRequest(f"{where}.{name}: must be an integer in {low}..{high}")
    return value


def record_json(record: Record) -> dict[str, Any]:
    """Return the JSON object of a stored record; text where it is UTF-8, else the `_b64` field."""
    item: dict[str, Any] = {"offset": record.offset, "timestamp_ms": record.timestamp_ms}
    for name, raw in (("key", record.key), ("value", record.value)):
        text = _text(raw)
        if raw is not None and text is None:
            item[f"{name}_b64"] = base64.b64encode(raw).decode()
        else:
            item[name] = text
    item["headers"] = {}
    for name, raw in record.headers:
        text = _text(raw)
        if raw is not None and text is None:
            item.setdefault("headers_b64", {})[name] = base64.b64encode(raw).decode()
        else:
            item["headers"][name] = text
    return item


def _text(raw: bytes | None) -> str | None:
    if raw is None:
        return None
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None
