"""The bootstrap's byte relay: which bytes may pass, whole and byte by byte."""

from __future__ import annotations

import struct

import pytest

from gateway.kafka.bootstrap_core import BootstrapSession, FrameRefused
from georelay.limits import KAFKA_FRAME_BYTES_MAX, PRODUCE_FRAME_BYTES_MAX


def request(api_key: int, version: int, body: bytes = b"") -> bytes:
    frame = struct.pack(">hhih", api_key, version, 7, -1) + body
    return struct.pack(">i", len(frame)) + frame


def answer(body: bytes) -> bytes:
    frame = struct.pack(">i", 7) + body
    return struct.pack(">i", len(frame)) + frame


SIGN_IN = request(17, 1, b"\0\5PLAIN") + request(36, 1, b"token")
SIGN_IN_FLEXIBLE = request(18, 3) + request(17, 1, b"\0\5PLAIN") + request(36, 2, b"token")
METADATA = request(3, 12, b"x" * 100)


def feed(session: BootstrapSession, data: bytes, step: int) -> bytes:
    return b"".join(session.on_client_bytes(data[at : at + step]) for at in range(0, len(data), step))


def feed_answers(session: BootstrapSession, data: bytes, step: int) -> None:
    for at in range(0, len(data), step):
        session.on_broker_bytes(data[at : at + step])


@pytest.mark.parametrize("step", [1, 3, 7, 8, 9, 1000])
def test_without_users_every_frame_passes_unchanged_however_it_is_cut(step: int) -> None:
    stream = request(18, 3) + METADATA + request(0, 9, b"r" * 5000) + request(20, 6)
    assert feed(BootstrapSession(sign_in_required=False), stream, step) == stream


def test_who_the_client_wants_to_reach_passes_to_the_broker_before_a_sign_in() -> None:
    session = BootstrapSession(sign_in_required=True)
    wanted = request(18, 5, b"\0\5java\0064.4.0\5mesh\0\0\3\xe9\0")
    assert session.on_client_bytes(wanted + SIGN_IN) == wanted + SIGN_IN


@pytest.mark.parametrize("api_key", [0, 1, 2, 3, 19, 20, 22, 23, -1, 32767])
def test_before_sign_in_no_other_api_passes_a_single_byte(api_key: int) -> None:
    session = BootstrapSession(sign_in_required=True)
    assert session.on_client_bytes(request(18, 3)) == request(18, 3)
    with pytest.raises(FrameRefused) as refused:
        session.on_client_bytes(request(api_key, 0))
    assert refused.value.reason == "not_signed_in"


@pytest.mark.parametrize("step", [1, 2, 5, 11, 1000])
@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        (SIGN_IN, answer(b"\0\0\0\0\0\0") + answer(b"\0\0\0\0" + b"\0" * 12)),
        (SIGN_IN_FLEXIBLE, answer(b"\0\0" * 20) + answer(b"\0\0\0\0\0\0") + answer(b"\0\0\0\0\1" + b"\0" * 9)),
    ],
)
def test_a_successful_sign_in_opens_every_api(asked: bytes, answered: bytes, step: int) -> None:
    session = BootstrapSession(sign_in_required=True)
    assert feed(session, asked, step) == asked
    feed_answers(session, answered, step)
    assert session.signed_in
    assert feed(session, METADATA, step) == METADATA


@pytest.mark.parametrize("step", [1, 1000])
@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        (SIGN_IN, answer(b"\0\0\0\0\0\0") + answer(b"\0\x3a\0\0")),
        (SIGN_IN_FLEXIBLE, answer(b"\0\0" * 20) + answer(b"\0\0\0\0\0\0") + answer(b"\0\0\x3a\0\1")),
        (SIGN_IN, answer(b"\0\0\0\0\0\0") + answer(b"")),
    ],
)
def test_a_refused_sign_in_opens_nothing(asked: bytes, answered: bytes, step: int) -> None:
    session = BootstrapSession(sign_in_required=True)
    feed(session, asked, step)
    feed_answers(session, answered, step)
    with pytest.raises(FrameRefused):
        feed(session, METADATA, step)


@pytest.mark.parametrize("step", [1, 1000])
def test_the_first_sasl_form_with_a_bare_token_is_followed(step: int) -> None:
    session = BootstrapSession(sign_in_required=True)
    asked = request(17, 0, b"\0\5PLAIN")
    assert feed(session, asked, step) == asked
    feed_answers(session, answer(b"\0\0\0\0\0\0"), step)
    token = struct.pack(">i", 11) + b"\0ann\0secret"
    assert feed(session, token, step) == token
    assert not session.signed_in
    feed_answers(session, struct.pack(">i", 0), step)
    assert session.signed_in


@pytest.mark.parametrize("step", [1, 1000])
@pytest.mark.parametrize("code", [33, 34])  # no such mechanism; no sign-in is asked for there
def test_a_request_in_the_place_of_a_token_does_not_pass_when_the_handshake_was_refused(code: int, step: int) -> None:
    session = BootstrapSession(sign_in_required=True)
    feed(session, request(17, 0, b"\0\5PLAIN"), step)
    feed_answers(session, answer(struct.pack(">h", code) + bytes(4)), step)
    with pytest.raises(FrameRefused, match="before a successful sign-in"):
        feed(session, METADATA, step)
    feed_answers(session, answer(b"\0" * 40), step)
    assert not session.signed_in


@pytest.mark.parametrize("step", [1, 1000])
def test_nothing_passes_before_the_answer_to_the_first_form_of_a_handshake(step: int) -> None:
    session = BootstrapSession(sign_in_required=True)
    with pytest.raises(FrameRefused):
        feed(session, request(17, 0, b"\0\5PLAIN") + struct.pack(">i", 11) + b"\0ann\0secret", step)


@pytest.mark.parametrize("step", [1, 1000])
def test_an_answer_with_something_in_it_is_no_success_of_a_token(step: int) -> None:
    session = BootstrapSession(sign_in_required=True)
    feed(session, request(17, 0, b"\0\5PLAIN"), step)
    feed_answers(session, answer(b"\0\0\0\0\0\0"), step)
    feed(session, struct.pack(">i", 4) + b"\0a\0b", step)
    feed_answers(session, answer(b"\0" * 8), step)
    assert not session.signed_in


@pytest.mark.parametrize(
    ("api_key", "length", "passes"),
    [
        (0, PRODUCE_FRAME_BYTES_MAX, True),
        (0, PRODUCE_FRAME_BYTES_MAX + 1, False),
        (3, KAFKA_FRAME_BYTES_MAX, True),
        (3, KAFKA_FRAME_BYTES_MAX + 1, False),
        (3, 7, False),
        (3, -1, False),
        (3, 0x47455420, False),
    ],
)
def test_the_length_of_a_frame_is_judged_from_its_head(api_key: int, length: int, passes: bool) -> None:
    session = BootstrapSession(sign_in_required=False)
    head = struct.pack(">ihh", length, api_key, 0)
    if passes:
        assert session.on_client_bytes(head) == head
    else:
        with pytest.raises(FrameRefused):
            session.on_client_bytes(head)


def test_requests_that_wait_for_sign_in_are_bounded() -> None:
    session = BootstrapSession(sign_in_required=True)
    with pytest.raises(FrameRefused, match="64 requests wait"):
        session.on_client_bytes(request(18, 3) * 65)
