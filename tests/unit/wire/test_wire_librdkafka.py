"""What librdkafka sends although the protocol says otherwise, byte for byte as captured from version 2.16."""

from __future__ import annotations

import struct

import pytest

from georelay.wire.api import ApiKey, WireError, api_versions_response, decode_request, encode_request
from georelay.wire.requests import MetadataRequest
from georelay.wire.scram_users import AlterUserScramCredentialsRequest, ScramCredentialUpsertion

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


def test_produce_is_shown_from_version_0_so_that_old_librdkafka_compresses() -> None:
    shown = {row.api_key: (row.min_version, row.max_version) for row in api_versions_response().api_keys}
    assert shown[ApiKey.PRODUCE] == (0, 9)
    assert shown[ApiKey.FETCH] == (4, 12)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_produce_of_a_version_that_is_only_shown_is_refused(version: int) -> None:
    with pytest.raises(WireError, match="not supported"):
        decode_request(struct.pack(">hhihhii", ApiKey.PRODUCE, version, 1, -1, 1, 1000, 0))


def test_a_second_empty_tag_section_behind_scram_users_is_understood_and_nothing_else() -> None:
    user = ScramCredentialUpsertion("alice", 1, 4096, b"salt", b"salted")
    request = AlterUserScramCredentialsRequest(upsertions=(user,))
    frame = b"".join(encode_request(request, api_version=0, correlation_id=1, client_id="rdkafka"))[4:]
    assert decode_request(frame + b"\0")[1] == decode_request(frame)[1] == request
    for excess in (b"\1", b"\0\0"):
        with pytest.raises(WireError, match="follow the ALTER_USER_SCRAM_CREDENTIALS body"):
            decode_request(frame + excess)
