"""Bytes of an EPOCH entry that cannot be are refused."""

from __future__ import annotations

import pytest

from georelay.ids import RaftIndex
from region.topics.epoch_entry_core import EpochBegun, EpochCut, decode_epoch, encode_epoch


def test_an_epoch_entry_without_states_has_nothing_behind_its_cut() -> None:
    begun = EpochBegun(control_index=7, cut=EpochCut(first_index=RaftIndex(3), states=None))
    raw = encode_epoch(begun)
    assert decode_epoch(raw) == begun
    with pytest.raises(ValueError, match="without states"):
        decode_epoch(raw + b"\x00")
