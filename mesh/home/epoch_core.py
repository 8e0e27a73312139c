"""Which numbers epochs get: those of two generations of mesh control are never equal. Pure.

An epoch is a number of 31 bits, because Kafka's leader epoch is one (a signed INT32, -1 for unknown):

    generation of control - 1   11 bits
    count                       20 bits   within one generation, for each stream

Rule 1: a control gives out only epochs of its own generation. So a survivor that lacks the last moves of the majority
        that was lost cannot give their numbers to another home, however many there were, and nobody has to be asked
        how many.
Rule 2: numbers rise with every attempt and are never given out twice: rows of a stream keep the highest one.
Rule 3: the first number of a generation is chosen by its random id, in the lower half. Two recoveries at two places
        have one generation and two ids until one of them recovers again; only chance (1 in 524288) makes them begin
        with one number.
Rule 4: a generation leaves at least 524287 epochs to each stream; a stream that needs more is refused.
"""

from __future__ import annotations

from typing import Final

from georelay.errors import BadRequest
from georelay.ids import Epoch
from mesh.home.home_row import EPOCH_MAX

COUNT_BITS: Final = 20
GENERATIONS_MAX: Final = (EPOCH_MAX + 1) >> COUNT_BITS  # 2048
FIRST_FLOOR: Final = 0  # of the first generation: streams begin with epoch 1
_COUNTS: Final = 1 << COUNT_BITS


def floor_of(generation: int, control_id: str) -> int:
    """Return what every epoch of a recovered control is above.

    Args:
        generation: 2..GENERATIONS_MAX. control_id: 32 hexadecimal digits, random.
    """
    if not 2 <= generation <= GENERATIONS_MAX:
        raise ValueError(f"generation {generation} has no epochs of its own")
    return (generation - 1) * _COUNTS + int(control_id, 16) % (_COUNTS // 2)


def ceiling_of(floor: int) -> int:
    """Return the highest epoch of the generation with that floor."""
    return floor | (_COUNTS - 1)


def next_epoch(last_epoch: int, *, floor: int) -> Epoch:
    """Return the epoch after `last_epoch`, the highest one of the stream, in the generation with that floor.

    Raises:
        BadRequest: the generation has none left for this stream.
    """
    following = max(last_epoch, floor) + 1
    if following > ceiling_of(floor):
        raise BadRequest("the home of this stream has moved too often: no further epoch is left")
    return Epoch(following)
