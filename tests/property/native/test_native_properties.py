"""Properties of the pure parts of the native API: assignors, group metadata, standings, errors on the wire."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from georelay.errors import BadRequest, GeorelayError
from georelay.refusals import ERROR_OF_CODE, error_from, error_of, refusal_of
from georelay.wire.consumer_protocol import (
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from region.api.streams.assignor_core import ASSIGNORS, Subscriber
from region.api.streams.standing_core import Standing, StreamBounds, judge
from tests.tiers import in_one_test

TOPICS = ("a", "b", "c")
topic_names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
partition_maps = st.dictionaries(topic_names, st.lists(st.integers(0, 999), unique=True).map(sorted), max_size=5)


@st.composite
def groups(draw: st.DrawFn) -> list[Subscriber]:
    count = draw(st.integers(1, 8))
    return [
        Subscriber(
            member_id=f"m{number}",
            instance_id=draw(st.sampled_from(("", f"i{number}"))),
            topics=tuple(draw(st.lists(st.sampled_from(TOPICS), min_size=1, unique=True))),
        )
        for number in range(count)
    ]


@pytest.mark.parametrize("name", list(ASSIGNORS))
@given(
    members=groups(),
    counts=st.fixed_dictionaries({"a": st.integers(0, 20), "b": st.integers(0, 5)}),
    order=st.randoms(),
)
def test_every_partition_has_exactly_one_reader_that_wants_it(name: str, members, counts, order) -> None:  # type: ignore[no-untyped-def]
    given_out = ASSIGNORS[name](members, counts)
    wanted = {topic for member in members for topic in member.topics}
    owners = [
        (topic, partition, member)
        for member, topics in given_out.items()
        for topic, partitions in topics.items()
        for partition in partitions
    ]
    expected = {(topic, partition) for topic in wanted for partition in range(counts.get(topic, 0))}
    assert sorted((topic, partition) for topic, partition, _ in owners) == sorted(expected)
    topics_of = {member.member_id: member.topics for member in members}
    assert all(topic in topics_of[member] for topic, _, member in owners)
    shuffled = list(members)
    order.shuffle(shuffled)
    assert ASSIGNORS[name](shuffled, counts) == given_out


@given(members=groups(), count=st.integers(0, 30))
def test_range_gives_nobody_more_than_one_partition_of_a_topic_beyond_the_others(
    members: list[Subscriber], count: int
) -> None:
    given_out = ASSIGNORS["range"](members, {"a": count})
    takers = [member.member_id for member in members if "a" in member.topics]
    sizes = [len(given_out[member].get("a", ())) for member in takers]
    assert not sizes or max(sizes) - min(sizes) <= 1


@given(
    topics=st.lists(topic_names, unique=True, max_size=5),
    user_data=st.none() | st.binary(max_size=20),
    owned=st.lists(st.tuples(topic_names, st.integers(0, 99)), unique=True, max_size=5),
)
def test_subscriptions_are_read_back(topics: list[str], user_data: bytes | None, owned: list[tuple[str, int]]) -> None:
    found = decode_subscription(
        encode_subscription(Subscription(topics=tuple(topics), user_data=user_data, owned=tuple(owned)))
    )
    assert (found.topics, found.user_data, sorted(found.owned)) == (tuple(sorted(topics)), user_data, sorted(owned))


@given(partitions=partition_maps)
def test_assignments_are_read_back(partitions: dict[str, list[int]]) -> None:
    found = decode_assignment(encode_assignment(partitions))
    assert found == {topic: tuple(numbers) for topic, numbers in partitions.items()}


@given(raw=st.binary(max_size=60))
def test_bytes_of_strangers_are_read_or_refused_and_never_break(raw: bytes) -> None:
    for read in (decode_subscription, decode_assignment):
        try:
            read(raw)
        except BadRequest:
            continue


@given(raw=st.binary(min_size=1, max_size=40), cut=st.integers(0, 39))
def test_a_subscription_that_is_cut_short_is_refused(raw: bytes, cut: int) -> None:
    whole = encode_subscription(Subscription(topics=("orders",), user_data=raw))
    shorter = whole[: min(cut, 12)]  # within the topics: what follows may be absent in older versions
    with pytest.raises(BadRequest):
        decode_subscription(shorter)


@given(
    epoch=st.integers(-1, 5),
    offset=st.integers(0, 30),
    log_start=st.integers(0, 10),
    committed=st.integers(0, 20),
    ends=st.lists(st.integers(0, 30), min_size=1, max_size=5).map(sorted),
)
def test_a_position_within_its_epoch_and_the_log_is_ok_and_no_other(
    epoch: int, offset: int, log_start: int, committed: int, ends: list[int]
) -> None:
    """`ends[n]` is where epoch n ends; the stream has committed up to `high_watermark`, in its last epoch."""
    high_watermark = max(log_start, committed, ends[-1])
    known = min(epoch, len(ends) - 1) if epoch >= 0 else -1
    is_last = known == len(ends) - 1
    known_end = -1 if known < 0 else high_watermark if is_last else ends[known]
    bounds = StreamBounds(log_start=log_start, high_watermark=high_watermark, known_epoch=known, known_end=known_end)
    found = judge(epoch, offset, bounds)
    if offset < log_start:
        assert found.standing is Standing.OUT_OF_RANGE
    elif epoch >= 0 and known == epoch and not is_last and offset > ends[epoch]:
        assert found.standing is Standing.DIVERGED or ends[epoch] == high_watermark
    elif offset > high_watermark:
        assert found.standing in (Standing.BEHIND, Standing.DIVERGED)
    if found.standing is Standing.BEHIND:
        assert found.behind == offset - high_watermark > 0
    if found.standing is Standing.DIVERGED:
        assert found.offset < offset


@in_one_test("code", sorted(ERROR_OF_CODE))
def test_every_error_comes_back_as_its_class_with_its_text(code: str) -> None:
    kind = ERROR_OF_CODE[code]
    error = error_from(code, "because")
    again = error_of(refusal_of(error))
    assert type(again) is kind
    assert str(again) == "because"


@given(code=st.text(max_size=20), outcome=st.text(max_size=10), retry=st.text(max_size=10))
def test_a_code_of_a_newer_broker_is_still_an_error_with_its_outcome(code: str, outcome: str, retry: str) -> None:
    error = error_from(code, "text", outcome=outcome, retry=retry)
    assert isinstance(error, GeorelayError)
    if outcome == "unknown" and code not in ERROR_OF_CODE:
        assert error.outcome.value == "unknown"
