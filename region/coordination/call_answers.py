"""Answers to coordinator calls as JSON: {"ok": {...}} or {"error": {"code": ..., "text": ..., ...}}.

An error crosses as its code and text and is raised again as the same class. A code that is unknown (a newer broker's)
becomes OutcomeUnknown: claiming that nothing was done would be a guess.
"""

from __future__ import annotations

from typing import Final

from georelay import errors
from georelay.errors import AccessDenied, GeorelayError, NotCoordinator, NotHome, NotLeader, OutcomeUnknown
from georelay.fields import FieldError, Fields
from georelay.ids import BROKERS_PER_REGION_MAX, REGION_NUMBER_MAX
from region.coordination.part import JsonObject

ERROR_TEXT_CHARS_MAX: Final = 2_000
_LEADER_MAX: Final = REGION_NUMBER_MAX * 1000 + BROKERS_PER_REGION_MAX
_BY_CODE: Final[dict[str, type[GeorelayError]]] = {
    value.code: value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, GeorelayError) and value is not GeorelayError
}


def ok(result: JsonObject) -> JsonObject:
    """Return the answer that carries a result."""
    return {"ok": result}


def failed(error: GeorelayError) -> JsonObject:
    """Return the answer that carries an error."""
    said: JsonObject = {"code": error.code, "text": str(error)[:ERROR_TEXT_CHARS_MAX]}
    if isinstance(error, NotLeader | NotCoordinator):
        said["leader"] = error.leader
    if isinstance(error, AccessDenied):
        said["resource"] = error.resource
    return {"error": said}


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
        raise _error_in(fields.child("error"))
    except FieldError as error:
        raise OutcomeUnknown(f"another broker's answer is not readable: {error}") from error


def _error_in(failure: Fields) -> GeorelayError:
    code = failure.text("code", chars_max=64)
    text = failure.text("text", chars_max=ERROR_TEXT_CHARS_MAX)
    known = _BY_CODE.get(code)
    if known is None or issubclass(known, NotHome):
        return OutcomeUnknown(f"{code}: {text}")
    if issubclass(known, NotLeader | NotCoordinator):
        leader = failure.integer("leader", low=-1, high=_LEADER_MAX) if failure.has("leader") else -1
        return known(text, leader=leader)
    if issubclass(known, AccessDenied):
        denied = known(text)
        denied.resource = failure.text("resource", chars_max=64)
        return denied
    return known(text)
