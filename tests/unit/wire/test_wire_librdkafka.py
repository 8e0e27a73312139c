"""What librdkafka sends although the protocol says otherwise, byte for byte as captured from version 2.16."""

from __future__ import annotations

import pytest

from georelay.wire.api import WireError, decode_request
from georelay.wire.requests import MetadataRequest

# Metadata version 12 for all topics: the null array takes four bytes where the protocol has one.
ALL_TOPICS = bytes.fromhex("0003000c00000003000772646b61666b61 00 00000000010000")


def test_a_request_for_all_topics_with_an_unfilled_array_length_is_understood() -> None:
    header, request = decode_request(ALL_TOPICS)
    assert header.correlation_id == 3
    assert isinstance(request, MetadataRequest)
    assert (request.topics, request.allow_auto_topic_creation) == (None, False)


@pytest.mark.parametrize("frame", [ALL_TOPICS + b"\0", ALL_TOPICS[:-1]], ids=["one more", "one less"])
def test_any_other_number_of_bytes_too_many_is_refused(frame: bytes) -> None:
    with pytest.raises(WireError, match="follow the METADATA body"):
        decode_request(frame)


def test_three_bytes_too_many_after_named_topics_are_refused() -> None:
    no_topics = ALL_TOPICS.replace(bytes.fromhex("00 00000000010000"), bytes.fromhex("00 01000000010000"))
    with pytest.raises(WireError, match="3 bytes follow"):
        decode_request(no_topics)
