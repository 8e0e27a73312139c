"""One entry: sealing, decoding, and every way in which bytes are not an entry."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from mesh.replication.stream_header import OWNS_OFFSETS, EntryType
from region.log.entry import ENTRY_HEADER_BYTES, EntryError, decode_entry, frame_bytes

if TYPE_CHECKING:
    from tests.unit.log.conftest import EntryMaker


@pytest.mark.parametrize("kind", sorted(set(EntryType) - OWNS_OFFSETS))
def test_a_control_entry_survives_its_bytes(make: EntryMaker, kind: EntryType) -> None:
    entry = make.control(kind, term=7)
    again = decode_entry(entry.frame, previous_chain=0)
    assert (again.term, again.index, again.type, again.chain, again.frame) == (7, 1, kind, entry.chain, entry.frame)
    assert again.record_count == 0 and again.header() == entry.header()


def test_a_data_entry_survives_its_bytes(make: EntryMaker) -> None:
    make.data(records=5)
    entry = make.data(b"p" * 300, records=3)
    again = decode_entry(b"before" + entry.frame + b"after", 6)
    assert (again.base_offset, again.record_count, again.next_offset, again.size) == (5, 3, 8, 428)
    assert bytes(again.payload) == b"p" * 300 and again.stream_part == entry.frame[48:128]


def test_every_truncation_is_torn(make: EntryMaker) -> None:
    frame = make.data(b"payload").frame
    for size in range(len(frame)):
        with pytest.raises(EntryError) as caught:
            decode_entry(frame[:size])
        assert caught.value.torn, size


def test_every_flipped_bit_is_an_error_and_not_torn(make: EntryMaker) -> None:
    frame = make.data(b"payload").frame
    for position in range(len(frame)):
        for bit in range(8):
            damaged = bytearray(frame)
            damaged[position] ^= 1 << bit
            with pytest.raises(EntryError) as caught:
                decode_entry(damaged)
            assert not caught.value.torn, position


def test_a_wrong_length_is_never_believed(make: EntryMaker) -> None:
    damaged = bytearray(make.data(b"payload").frame)
    damaged[4:8] = b"\x7f\xff\xff\xff"
    with pytest.raises(EntryError, match="header checksum"):
        frame_bytes(damaged)


def test_the_chain_ties_an_entry_to_the_one_before(entry_maker: Callable[[], EntryMaker]) -> None:
    one, other = entry_maker(), entry_maker()
    first, _ = one.data(b"1"), other.data(b"2")
    second = one.data(b"same")
    assert decode_entry(second.frame, previous_chain=first.chain).index == 2
    assert second.chain != other.data(b"same").chain
    with pytest.raises(EntryError, match="does not continue"):
        decode_entry(second.frame, previous_chain=first.chain ^ 1)


def test_the_header_is_128_bytes(make: EntryMaker) -> None:
    assert ENTRY_HEADER_BYTES == 128 == make.control().size
