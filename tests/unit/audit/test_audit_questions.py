"""What brokers say to each other in an audit: golden JSON, and nothing but FieldError on garbage."""

from __future__ import annotations

from typing import Any

import pytest

from georelay.errors import NotLeader, Unavailable
from georelay.fields import FieldError
from georelay.ids import Epoch, Offset, RegionNumber, StreamKey
from region.audit.questions import (
    DeepAsked,
    DeepFault,
    DeepPiece,
    DigestsAsked,
    answer_json,
    deep_json,
    digests_json,
    read_answers,
    read_deep,
    read_digests,
    read_piece,
)
from region.audit.values import BatchAt, LogView, OrphanRange

KEY = StreamKey(bytes(range(16)), RegionNumber(2), 7)
OTHER = StreamKey(bytes(16), RegionNumber(0), 0)
NAMED = {"topic_id": "000102030405060708090a0b0c0d0e0f", "origin": 2, "partition": 7}
DIGEST = bytes(range(16, 32))
VIEW = LogView(
    epochs=((Epoch(1), Offset(0)), (Epoch(3), Offset(40))),
    log_start=Offset(5),
    boundary=Offset(4),
    boundary_digest=DIGEST,
    end=Offset(50),
    end_digest=bytes(16),
    orphans=(OrphanRange(epoch=Epoch(3), first=Offset(40), following=Offset(44)),),
    batches={
        Offset(41): BatchAt(first=Offset(40), following=Offset(43), epoch=Epoch(3), digest=DIGEST, crc=0xDEADBEEF)
    },
)
VIEW_JSON = {
    **NAMED,
    "epochs": [[1, 0], [3, 40]],
    "log_start": 5,
    "boundary": 4,
    "boundary_digest": "101112131415161718191a1b1c1d1e1f",
    "end": 50,
    "end_digest": "00" * 16,
    "orphans": [[3, 40, 44]],
    "batches": [[41, 40, 43, 3, "101112131415161718191a1b1c1d1e1f", 0xDEADBEEF]],
}


def test_questions_have_their_golden_form() -> None:
    body = digests_json([DigestsAsked(key=KEY, at=(Offset(41),))])
    assert body == {"rows": [{**NAMED, "at": [41]}], "local": False}
    assert read_digests(body) == ((DigestsAsked(key=KEY, at=(Offset(41),)),), False)
    deep = deep_json(DeepAsked(key=KEY, offset=9, digest=DIGEST), local=True)
    assert deep == {**NAMED, "from": 9, "digest": DIGEST.hex(), "local": True}
    assert read_deep(deep) == (DeepAsked(key=KEY, offset=9, digest=DIGEST), True)


def test_answers_have_their_golden_form() -> None:
    body = answer_json({KEY: VIEW, OTHER: NotLeader("elsewhere", leader=2003)})
    assert body["rows"] == [
        VIEW_JSON,
        {
            "topic_id": "00" * 16,
            "origin": 0,
            "partition": 0,
            "fault": {"code": "NOT_LEADER", "text": "elsewhere", "leader": 2003},
        },
    ]
    asked = [DigestsAsked(key=KEY, at=(Offset(41),)), DigestsAsked(key=OTHER)]
    told = read_answers(body, asked=asked)
    assert told[KEY] == VIEW
    assert isinstance(told[OTHER], NotLeader)


def test_a_piece_has_its_golden_form() -> None:
    fault = DeepFault(first=Offset(3), following=Offset(5), what="digest chain", stored="aa", computed="bb")
    piece = DeepPiece(first=Offset(0), following=Offset(3), end=Offset(9), digest=DIGEST, size_bytes=77, fault=fault)
    assert read_piece(piece.to_json()) == piece
    assert piece.to_json()["bytes"] == 77


@pytest.mark.parametrize(
    "change",
    [
        {"epochs": [[3, 0], [2, 5]]},
        {"epochs": [[1, 0, 0]]},
        {"epochs": [[True, 0]]},
        {"log_start": 51},
        {"boundary": -1},
        {"end_digest": "zz"},
        {"orphans": [[3, 44, 40]]},
        {"batches": [[42, 40, 43, 3, DIGEST.hex(), 0]]},
        {"batches": [[41, 42, 43, 3, DIGEST.hex(), 0]]},
        {"batches": [[41, 40, 43, 3, DIGEST.hex(), 2**32]]},
        {"batches": [[41, 40, 43, 3, 5, 0]]},
        {"batches": [[41]]},
        {"more": 1},
    ],
)
def test_an_answer_that_makes_no_sense_is_refused(change: dict[str, Any]) -> None:
    asked = [DigestsAsked(key=KEY, at=(Offset(41),))]
    with pytest.raises(FieldError):
        read_answers({"rows": [VIEW_JSON | change]}, asked=asked)


def test_a_stream_that_was_not_asked_for_is_refused() -> None:
    with pytest.raises(FieldError, match="not asked for"):
        read_answers({"rows": [VIEW_JSON]}, asked=[DigestsAsked(key=OTHER)])


def test_a_question_for_one_stream_twice_is_refused() -> None:
    row = DigestsAsked(key=KEY)
    with pytest.raises(FieldError, match="twice"):
        read_digests(digests_json([row, row]))


def test_an_unavailable_log_arrives_as_such() -> None:
    told = read_answers(answer_json({KEY: Unavailable("being repaired")}), asked=[DigestsAsked(key=KEY)])
    assert isinstance(told[KEY], Unavailable)
    assert str(told[KEY]) == "being repaired"
