"""Commands that wait for their commit: a defect below them leaves nobody waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from georelay.errors import OutcomeUnknown
from georelay.ids import RaftIndex
from region.coordination import proposals
from region.coordination.part import Part
from region.coordination.proposals import Command, Proposals


async def test_a_defect_while_commands_are_appended_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proposals, "RECORDS_PER_BATCH_MAX", 1)
    calls: list[int] = []

    def append(commands: Sequence[Command]) -> RaftIndex:
        calls.append(len(commands))
        if len(calls) == 2:
            raise ZeroDivisionError
        return RaftIndex(len(calls))

    waiting = Proposals(append)
    futures = [waiting.add(Part.GROUPS, b"12345") for _ in range(3)]
    await asyncio.sleep(0)
    assert [future.done() for future in futures] == [False, True, True]
    assert isinstance(futures[1].exception(), OutcomeUnknown) and isinstance(futures[2].exception(), OutcomeUnknown)
    assert waiting.pending_bytes == 5
    waiting.applied(RaftIndex(1))
    assert (futures[0].result(), waiting.pending_bytes) == (1, 0)

    later = waiting.add(Part.GROUPS, b"1")
    await asyncio.sleep(0)
    waiting.applied(RaftIndex(3))
    assert later.result() == 3
