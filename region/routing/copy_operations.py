"""What copiers ask the coordinator of a binding: where to begin, and to keep how far they are. JSON as for queues.

copy_find  {binding, index, stream} -> the row, {} where there is none
copy_begin {binding, index, stream, producer_id, cursor, sequence, partitions} -> the row that there is from then on
copy_save  the same -> the row, {} where it was forgotten
copy_renew the same + instead_of -> the row      copy_take the same + epoch -> the row
copy_hand  {binding, index, stream, producer_id, ended, epoch} -> the row
copy_list  {binding} -> {rows: [{binding, index, stream, ...row}]}      copy_forget {binding, index} -> {}
"""

from __future__ import annotations

from typing import Final

from georelay.errors import BadRequest, Busy
from georelay.fields import INT64_MAX, FieldError, Fields
from region.coordination.log import CoordinatorLog, check_level
from region.coordination.part import JsonObject, Part
from region.routing.copies_core import (
    ROWS_MAX,
    BeginCopies,
    CopyBook,
    CopyCommand,
    CopyKey,
    ForgetCopies,
    RenewCopies,
    SaveCopies,
    TakeCopies,
    encode_copy_command,
    named,
    needed_level,
    read_hand,
    read_key,
    read_row,
)

COPY_OPERATIONS: Final = "copy_"


class CopyOperations:
    """Answers at the leader of a coordinator."""

    def __init__(self, coordinator: CoordinatorLog, book: CopyBook) -> None:
        self._log = coordinator
        self._book = book

    async def answer(self, operation: str, body: JsonObject) -> JsonObject:
        """Answer one operation (BadRequest: unknown, or a body that is not its)."""
        try:
            fields = Fields(body, operation[:32])
            if operation == "copy_list":
                binding = fields.text("binding", chars_max=100)
                fields.done()
                return {"rows": [{**named(key), **row.to_json()} for key, row in self._book.of(binding)]}
            if operation == "copy_find":
                key = read_key(fields)
                fields.done()
                known = self._book.find(key)
                return {} if known is None else known.to_json()
            if operation == "copy_forget":
                binding = fields.text("binding", chars_max=100)
                index = fields.integer("index", low=0, high=INT64_MAX)
                fields.done()
                await self._propose(ForgetCopies(binding=binding, index=index))
                return {}
            if operation == "copy_hand":
                hand = read_hand(fields)
                fields.done()
                await self._propose(hand)
                return self._row(hand.key)
            return await self._change(operation, fields)
        except FieldError as error:
            raise BadRequest(str(error)) from error

    async def _change(self, operation: str, fields: Fields) -> JsonObject:
        key, row = read_key(fields), read_row(fields)
        match operation:
            case "copy_begin":
                fields.done()
                if self._book.find(key) is None:
                    if len(self._book) >= ROWS_MAX:
                        raise Busy(f"a coordinator keeps the copies of {ROWS_MAX} streams, its maximum")
                    await self._propose(BeginCopies(key=key, row=row))
                return self._row(key)
            case "copy_save":
                fields.done()
                await self._propose(SaveCopies(key=key, row=row))
                known = self._book.find(key)
                return {} if known is None else known.to_json()
            case "copy_take":
                fields.done()
                await self._propose(TakeCopies(key=key, row=row))
                return self._row(key)
            case "copy_renew":
                instead_of = fields.integer("instead_of", low=0, high=INT64_MAX)
                fields.done()
                await self._propose(RenewCopies(key=key, row=row, instead_of=instead_of))
                return self._row(key)
        raise BadRequest(f"operation {operation[:32]!r} of copies is unknown")

    def _row(self, key: CopyKey) -> JsonObject:
        row = self._book.find(key)
        if row is None:
            raise BadRequest(f"the copies of binding {key.binding} were forgotten: it was removed")
        return row.to_json()

    async def _propose(self, command: CopyCommand) -> None:
        check_level(self._log, needed_level(command))
        shrinks = not isinstance(command, BeginCopies)
        await self._log.propose(Part.QUEUES, encode_copy_command(command, 0), shrinks=shrinks)
