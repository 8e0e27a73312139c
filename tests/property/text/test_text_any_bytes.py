"""Any bytes, cut anywhere: the same lines, and records that come back as they were."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from georelay.wire.batch import Record, RecordDraft
from mesh.listening.line_core import OVERLONG, Line, LineBuffer
from region.text.assignment_core import assign_ranges
from region.text.record_core import body_text, parse_body

LIMIT = 30
STREAMS = st.lists(
    st.one_of(
        st.binary(max_size=20),
        st.sampled_from([b"\n", b"\r\n", b"\xff\xfb\x01", b"\xff\xfa\x18x\xff\xf0", b"x" * 50, b"HELP\r\n"]),
    ),
    max_size=12,
).map(b"".join)
CUTS = st.lists(st.integers(1, 40), min_size=1, max_size=30)


def lines_of(stream: bytes, cuts: Sequence[int]) -> list[Line]:
    buffer, lines, position = LineBuffer(LIMIT), [], 0
    for number in range(len(stream)):
        if position >= len(stream):
            break
        step = cuts[number % len(cuts)]
        lines += buffer.feed(stream[position : position + step])
        assert buffer.buffered_bytes <= LIMIT + 2
        position += step
    return lines


@given(STREAMS, CUTS)
def test_lines_do_not_depend_on_how_the_bytes_are_cut(stream: bytes, cuts: list[int]) -> None:
    whole = lines_of(stream, [max(1, len(stream))])
    assert lines_of(stream, cuts) == whole
    assert all(line is OVERLONG or (isinstance(line, bytes) and len(line) <= LIMIT + 2) for line in whole)


@given(
    st.none() | st.binary(max_size=30),
    st.none() | st.binary(max_size=30),
    st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=8), st.none() | st.binary(max_size=8), max_size=4),
)
def test_a_record_that_is_shown_reads_back_the_same(
    key: bytes | None, value: bytes | None, headers: dict[str, bytes | None]
) -> None:
    text = body_text(Record(1, 0, key, value, tuple(headers.items())))
    assert not {"\n", "\r"} & set(text)
    draft = parse_body(text)
    assert (draft.key, draft.value, dict(draft.headers)) == (key, value, headers)
    assert isinstance(draft, RecordDraft)


@given(
    st.dictionaries(st.text("abc", min_size=1, max_size=4), st.sets(st.sampled_from("xyz")), min_size=1, max_size=6),
    st.dictionaries(st.sampled_from("xyz"), st.integers(0, 20)),
)
def test_shares_cover_every_wanted_partition_once(topics_of: dict[str, set[str]], counts: dict[str, int]) -> None:
    shares = assign_ranges(topics_of, lambda topic: counts.get(topic, 0))
    for topic in {topic for topics in topics_of.values() for topic in topics}:
        given_out = [number for share in shares.values() for number in share.get(topic, ())]
        assert sorted(given_out) == list(range(counts.get(topic, 0)))
    for member, share in shares.items():
        assert set(share) <= topics_of[member]
