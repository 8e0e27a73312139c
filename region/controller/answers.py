"""Answers between brokers as JSON: {"ok": {...}} or {"error": {"code": ..., "text": ...}}.

An error crosses the wire as its code and text and is raised again as the same class; a code that is not in the
table (a newer broker's) becomes OutcomeUnknown: claiming that nothing was done would be a guess.
"""

from __future__ import annotations

from typing import Final

from georelay import errors
from georelay.fields import FieldError, Fields, JsonObject

ERROR_TEXT_CHARS_MAX: Final = 2_000
_CARRIED: Final[tuple[type[errors.GeorelayError], ...]] = (
    errors.BadRequest,
    errors.InvalidTopic,
    errors.TopicExists,
    errors.UnknownTopic,
    errors.PolicyViolation,
    errors.DataDirectoryError,
    errors.Busy,
    errors.Throttled,
    errors.NotLeader,
    errors.HomeUnreachable,
    errors.ControlUnavailable,
    errors.Unavailable,
    errors.OutcomeUnknown,
)
_BY_CODE: Final = {error.code: error for error in _CARRIED}


def ok(result: JsonObject) -> JsonObject:
    """Return the answer that carries a result."""
    return {"ok": result}


def failed(error: errors.GeorelayError) -> JsonObject:
    """Return the answer that carries an error."""
    return {"error": {"code": error.code, "text": str(error)[:ERROR_TEXT_CHARS_MAX]}}


def result_of(answer: JsonObject) -> JsonObject:
    """Return the result in an answer, or raise the error in it.

    Raises:
        GeorelayError: what the other broker raised; OutcomeUnknown when the answer is not one.
    """
    try:
        fields = Fields(answer, "answer")
        if fields.has("ok"):
            result = fields.value("ok")
            if isinstance(result, dict):
                return result
        failure = fields.child("error")
        code = failure.text("code", chars_max=64)
        text = failure.text("text", chars_max=ERROR_TEXT_CHARS_MAX)
    except FieldError as error:
        raise errors.OutcomeUnknown(f"another broker's answer is not readable: {error}") from error
    known = _BY_CODE.get(code)
    raise errors.OutcomeUnknown(f"{code}: {text}") if known is None else known(text)
