"""Errors of georelay on the native API: written by a broker, read back by a client as the same class.

A code that a newer broker knows and this client does not becomes the base class of its outcome and retry.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from georelay import errors
from georelay._pb import streams_pb2 as pb
from georelay.errors import GeorelayError, Outcome, OutcomeUnknown, Retry, Unavailable

TEXT_CHARS_MAX: Final = 1_000

ERROR_OF_CODE: Final[Mapping[str, type[GeorelayError]]] = MappingProxyType(
    {
        kind.code: kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, GeorelayError) and kind is not GeorelayError
    }
)
# What some classes carry beyond their text; the text says it too, a client does not act on the number.
_ABSENT: Final = MappingProxyType({"leader": -1, "epoch": -1, "home": 0, "resource": ""})


def refusal_of(error: GeorelayError) -> pb.Refusal:
    """Return the message for an error."""
    return pb.Refusal(
        code=error.code, text=str(error)[:TEXT_CHARS_MAX], retry=error.retry.value, outcome=error.outcome.value
    )


def error_of(refusal: pb.Refusal) -> GeorelayError:
    """Return the error that a broker meant."""
    return error_from(refusal.code, refusal.text, outcome=refusal.outcome, retry=refusal.retry)


def error_from(code: str, text: str, *, outcome: str = "", retry: str = "") -> GeorelayError:
    """Return the error of a code; `outcome` and `retry` decide what an unknown code becomes."""
    kind = ERROR_OF_CODE.get(code)
    if kind is None:
        kind, text = _stand_in(outcome, retry), f"{code}: {text}"
    error = kind.__new__(kind)
    error.args = (text,)
    for name, value in _ABSENT.items():
        setattr(error, name, value)
    return error


def _stand_in(outcome: str, retry: str) -> type[GeorelayError]:
    if outcome == Outcome.UNKNOWN.value:
        return OutcomeUnknown
    return GeorelayError if retry == Retry.NEVER.value else Unavailable
