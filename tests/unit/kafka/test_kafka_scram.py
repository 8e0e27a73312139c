"""SCRAM over the Kafka protocol, step by step; what ends a connection of a user."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from georelay.wire.api import ApiKey, ErrorCode
from georelay.wire.requests import MetadataRequest, SaslAuthenticateRequest, SaslHandshakeRequest
from region.controller.security_book import SecurityBook
from region.controller.security_wishes import delete_user, plan, put_user
from region.kafka import listener
from region.kafka.connection import SignIn
from region.kafka.handlers import sasl
from region.kafka.handlers.sasl import mechanisms
from region.security.scram_core import ScramClient, make_key
from region.security.sign_in import SignInService
from region.security.user import Mechanism

PASSWORD = "correct horse"
BOTH = pytest.mark.parametrize("mechanism", list(Mechanism))


@pytest.fixture
def book(bed: Any, monkeypatch: pytest.MonkeyPatch) -> SecurityBook:
    """Give the bed a mesh with one user, ann."""
    monkeypatch.setattr(sasl, "REFUSAL_DELAY_S", 0.0)
    book = SecurityBook()
    keys = [make_key(mechanism, PASSWORD, salt=bytes(16), iterations=4096) for mechanism in sorted(Mechanism)]
    wish(book, put_user("ann", keys=keys))
    bed.services = dataclasses.replace(bed.services, sign_in=SignInService(bed.credentials, book=lambda: book))
    return book


def wish(book: SecurityBook, wanted: dict[str, object]) -> None:
    for definition in plan(book, wanted):
        book.remember(dataclasses.replace(definition, index=book.index + 1))


async def authenticate(client: Any, token: bytes) -> Any:
    return await client.call(SaslAuthenticateRequest(auth_bytes=token), ApiKey.SASL_AUTHENTICATE, 2)


async def sign_in(client: Any, mechanism: Mechanism, user: str = "ann", password: str = PASSWORD) -> Any:
    shake = await client.call(SaslHandshakeRequest(mechanism=mechanism.value), ApiKey.SASL_HANDSHAKE, 1)
    assert shake.error_code == 0
    mine = ScramClient(mechanism=mechanism, user=user, password=password, nonce="abcdefgh")
    challenge = await authenticate(client, mine.first)
    assert challenge.error_code == 0
    return await authenticate(client, mine.final(bytes(challenge.auth_bytes)))


@BOTH
async def test_the_right_password_opens_the_gate_after_two_rounds(
    bed: Any, book: SecurityBook, mechanism: Mechanism
) -> None:
    client = await bed.client()
    answer = await sign_in(client, mechanism)
    assert (answer.error_code, bytes(answer.auth_bytes)[:2]) == (0, b"v=")
    assert (await client.call(MetadataRequest(topics=None), ApiKey.METADATA, 9)).brokers
    (connection,) = bed.listener._connections
    assert (connection.principal.name, connection.principal.host) == ("User:ann", "127.0.0.1")


@BOTH
@pytest.mark.parametrize(("user", "password"), [("ann", "wrong"), ("nobody", PASSWORD)])
async def test_a_wrong_password_and_an_unknown_user_look_the_same(
    bed: Any, book: SecurityBook, mechanism: Mechanism, user: str, password: str
) -> None:
    client = await bed.client()
    answer = await sign_in(client, mechanism, user, password)
    assert (answer.error_code, answer.error_message) == (
        ErrorCode.SASL_AUTHENTICATION_FAILED,
        "wrong user or password",
    )
    assert await client.is_closed()


async def test_between_the_rounds_the_gate_is_shut(bed: Any, book: SecurityBook) -> None:
    client = await bed.client()
    await client.call(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), ApiKey.SASL_HANDSHAKE, 1)
    assert (await authenticate(client, b"n,,n=ann,r=abc")).error_code == 0
    client.send(MetadataRequest(), 9)
    assert await client.is_closed()


@pytest.mark.parametrize("token", [b"", b"n,,n=ann", b"\0ann\0pw", b"x" * 10_000])
async def test_what_is_no_scram_message_is_refused(bed: Any, book: SecurityBook, token: bytes) -> None:
    client = await bed.client()
    await client.call(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), ApiKey.SASL_HANDSHAKE, 1)
    assert (await authenticate(client, token)).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert await client.is_closed()


async def test_a_final_message_cannot_be_said_twice(bed: Any, book: SecurityBook) -> None:
    client = await bed.client()
    assert (await sign_in(client, Mechanism.SCRAM_SHA_256)).error_code == 0
    assert (await authenticate(client, b"c=biws,r=abc,p=AAAA")).error_code == ErrorCode.ILLEGAL_SASL_STATE


async def test_users_of_the_mesh_sign_in_by_plain_too(bed: Any, book: SecurityBook) -> None:
    client = await bed.client()
    await client.call(SaslHandshakeRequest(mechanism="PLAIN"), ApiKey.SASL_HANDSHAKE, 1)
    assert (await authenticate(client, b"\0ann\0" + PASSWORD.encode())).error_code == 0


async def test_plain_is_not_offered_where_others_could_read_along(bed: Any, book: SecurityBook) -> None:
    client = await bed.client()
    shake = await client.call(SaslHandshakeRequest(mechanism="GSSAPI"), ApiKey.SASL_HANDSHAKE, 1)
    assert list(shake.mechanisms) == ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
    (connection,) = bed.listener._connections
    connection.is_private = False
    shake = await client.call(SaslHandshakeRequest(mechanism="PLAIN"), ApiKey.SASL_HANDSHAKE, 1)
    assert (shake.error_code, list(shake.mechanisms)) == (33, ["SCRAM-SHA-256", "SCRAM-SHA-512"])


async def test_the_first_form_of_sasl_has_no_frame_for_scram(bed: Any, book: SecurityBook) -> None:
    client = await bed.client()
    shake = await client.call(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), ApiKey.SASL_HANDSHAKE, 0)
    assert (shake.error_code, list(shake.mechanisms)) == (33, ["PLAIN"])


async def test_a_connection_ends_with_its_user(bed: Any, book: SecurityBook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "SWEEP_S", 0.01)
    for ending in (put_user("ann", is_enabled=False), delete_user("ann")):
        wish(book, put_user("ann", is_enabled=True))
        client = await bed.client()
        assert (await sign_in(client, Mechanism.SCRAM_SHA_256)).error_code == 0
        wish(book, ending)
        assert await client.is_closed()


async def test_who_has_a_certificate_need_not_sign_in_and_may(bed: Any, book: SecurityBook) -> None:
    client = await bed.client()
    await client.call(SaslHandshakeRequest(mechanism="GSSAPI"), ApiKey.SASL_HANDSHAKE, 1)
    (connection,) = bed.listener._connections
    connection.sign_in, connection._has_certificate = SignIn.NOT_NEEDED, True
    assert (await client.call(MetadataRequest(topics=None), ApiKey.METADATA, 9)).brokers
    assert (await sign_in(client, Mechanism.SCRAM_SHA_256)).error_code == 0
    assert connection.principal.name == "User:ann"
    assert mechanisms(connection, is_bare=False)[0] == "PLAIN"
