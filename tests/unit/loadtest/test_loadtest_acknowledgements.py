"""What a campaign demands back of a producer that was told "stored" and not where."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from loadtest.campaign.mesh import acknowledgement_of
from loadtest.campaign.verdict_core import UNTOLD, Acknowledgement, judge
from loadtest.history.operation import Kind, Operation, Outcome

STORED = Acknowledgement(record=("a", 1), offset=UNTOLD, at_ns=5)


def missing(found: Sequence[tuple[str, int]]) -> int:
    return judge(sent=2, failed=0, acknowledgements=[STORED], found=found, mirrors={}).missing


@pytest.mark.parametrize("found", [[("a", 1)], [("a", 0), ("a", 1)]])
def test_a_record_without_an_offset_may_be_anywhere(found: Sequence[tuple[str, int]]) -> None:
    assert missing(found) == 0


@pytest.mark.parametrize("found", [[], [("a", 0)], [("b", 1)]])
def test_a_record_without_an_offset_must_be_there(found: Sequence[tuple[str, int]]) -> None:
    assert missing(found) == 1


def test_a_send_that_was_acknowledged_without_an_offset_is_an_acknowledgement() -> None:
    send = Operation(
        process="a",
        number=0,
        kind=Kind.PRODUCE,
        key="k/0",
        invoked_ns=1,
        completed_ns=5,
        outcome=Outcome.OK,
        value="a:1",
    )
    assert acknowledgement_of(send) == STORED
