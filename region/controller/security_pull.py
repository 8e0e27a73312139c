"""How another region's controller gets users, lists and quotas: with the topics, in the same answer.

Rule: an answer stays below PULL_BYTES_MAX, so that no number of users makes a region unable to pull; what is left
comes with the next pull.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from georelay.errors import BadRequest
from georelay.fields import INT64_MAX, FieldError, Fields, JsonObject, dump_object
from region.controller.commands import Command, DefineSecurity
from region.controller.effects import Done
from region.controller.security_book import SecurityBook
from region.security import definition as security

log = structlog.get_logger()

SINCE: Final = "security_since"
ROWS: Final = "security"
MORE: Final = "security_more"
ROWS_PER_PULL: Final = 200
PULL_BYTES_MAX: Final = 128 * 1024  # plus one definition


def give(book: SecurityBook, fields: Fields) -> JsonObject:
    """Return the definitions above the asked index, as many as an answer may have. Raises FieldError."""
    since = fields.integer(SINCE, low=0, high=INT64_MAX)
    rows: list[object] = []
    size_bytes = 0
    newer = book.since(since, limit=ROWS_PER_PULL)
    for definition in newer:
        if size_bytes >= PULL_BYTES_MAX:
            break
        row = security.to_json(definition)
        rows.append(row)
        size_bytes += len(dump_object(row))
    return {ROWS: rows, MORE: len(rows) < len(newer) or len(newer) == ROWS_PER_PULL}


async def take(result: JsonObject, since: int, commit: Callable[[Command], Awaitable[Done]]) -> bool:
    """Commit the definitions of an answer in order; return whether there may be more.

    Raises:
        BadRequest: not an answer. Others as `commit`.
    """
    if ROWS not in result:  # a definitions home of an earlier version, or this region did not ask
        return False
    try:
        fields = Fields({ROWS: result[ROWS], MORE: result.get(MORE)}, "answer")
        rows = [security.from_json(item) for item in fields.items(ROWS, count_max=ROWS_PER_PULL)]
        has_more = fields.flag(MORE)
    except FieldError as error:
        raise BadRequest(f"the definitions home's answer is not readable: {error}") from error
    for row in rows:
        if row.index <= since:
            raise BadRequest(f"security definition {row.index} came after {since}: not in order")
        since = row.index
        await commit(DefineSecurity(definition=row))
    if rows:
        log.info("security.pulled", count=len(rows), index=since)
    return has_more and bool(rows)
