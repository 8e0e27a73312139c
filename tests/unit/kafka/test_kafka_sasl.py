"""The SASL PLAIN gate: nothing but versions and signing in is answered before it opens."""

from __future__ import annotations

from typing import Any

import pytest

from georelay.errors import Unauthenticated
from georelay.wire.api import ApiKey, ErrorCode
from georelay.wire.requests import ApiVersionsRequest, MetadataRequest, SaslAuthenticateRequest, SaslHandshakeRequest
from region.kafka.handlers import sasl
from region.kafka.handlers.sasl import parse_plain

GOOD = b"\0ann\0secret"


@pytest.fixture(autouse=True)
def users(bed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bed.credentials.users["ann"] = "secret"
    monkeypatch.setattr(sasl, "REFUSAL_DELAY_S", 0.0)


async def sign_in(client: Any, token: bytes = GOOD, version: int = 1) -> Any:
    await client.call(SaslHandshakeRequest(mechanism="PLAIN"), ApiKey.SASL_HANDSHAKE, 1)
    return await client.call(SaslAuthenticateRequest(auth_bytes=token), ApiKey.SASL_AUTHENTICATE, version)


async def test_anything_else_before_signing_in_closes_the_connection(bed: Any) -> None:
    client = await bed.client()
    await client.call(ApiVersionsRequest(), ApiKey.API_VERSIONS, 3)
    client.send(MetadataRequest(), 9)
    assert await client.is_closed()


async def test_a_request_between_handshake_and_credentials_closes_the_connection(bed: Any) -> None:
    client = await bed.client()
    await client.call(SaslHandshakeRequest(mechanism="PLAIN"), ApiKey.SASL_HANDSHAKE, 1)
    client.send(MetadataRequest(), 9)
    assert await client.is_closed()


@pytest.mark.parametrize("version", range(3))
async def test_the_right_password_opens_the_gate(bed: Any, version: int) -> None:
    client = await bed.client()
    assert (await sign_in(client, version=version)).error_code == 0
    assert (await client.call(MetadataRequest(topics=None), ApiKey.METADATA, 9)).topics == ()


@pytest.mark.parametrize(
    "token", [b"\0ann\0wrong", b"\0bob\0secret", b"", b"ann secret", b"bob\0ann\0secret", b"\0\xff\0x"]
)
async def test_wrong_credentials_are_refused_and_the_connection_closes(bed: Any, token: bytes) -> None:
    client = await bed.client()
    assert (await sign_in(client, token)).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert await client.is_closed()
    assert bed.services.counters.sign_ins_refused == 1


async def test_requests_sent_behind_wrong_credentials_are_never_answered(bed: Any) -> None:
    client = await bed.client()
    await client.call(SaslHandshakeRequest(mechanism="PLAIN"), ApiKey.SASL_HANDSHAKE, 1)
    client.send(SaslAuthenticateRequest(auth_bytes=b"\0ann\0wrong"), 1)
    client.send(MetadataRequest(topics=None), 9)
    _, response = await client.receive(ApiKey.SASL_AUTHENTICATE, 1)
    assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert await client.is_closed()


async def test_requests_sent_behind_right_credentials_are_answered_after_them(bed: Any) -> None:
    client = await bed.client()
    await client.call(SaslHandshakeRequest(mechanism="PLAIN"), ApiKey.SASL_HANDSHAKE, 1)
    client.send(SaslAuthenticateRequest(auth_bytes=GOOD), 1)
    second = client.send(MetadataRequest(topics=None), 9)
    assert (await client.receive(ApiKey.SASL_AUTHENTICATE, 1))[1].error_code == 0
    assert (await client.receive(ApiKey.METADATA, 9))[0] == second


async def test_another_mechanism_is_refused_with_the_list(bed: Any) -> None:
    client = await bed.client()
    response = await client.call(SaslHandshakeRequest(mechanism="GSSAPI"), ApiKey.SASL_HANDSHAKE, 1)
    assert (response.error_code, list(response.mechanisms)) == (
        ErrorCode.UNSUPPORTED_SASL_MECHANISM,
        ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"],
    )


async def test_credentials_without_a_handshake_are_an_illegal_state(bed: Any) -> None:
    client = await bed.client()
    response = await client.call(SaslAuthenticateRequest(auth_bytes=GOOD), ApiKey.SASL_AUTHENTICATE, 1)
    assert response.error_code == ErrorCode.ILLEGAL_SASL_STATE


async def test_the_old_handshake_is_followed_by_a_bare_token(bed: Any) -> None:
    client = await bed.client()
    await client.call(SaslHandshakeRequest(mechanism="PLAIN"), ApiKey.SASL_HANDSHAKE, 0)
    client.writer.write(len(GOOD).to_bytes(4, "big") + GOOD)
    assert await client.reader.readexactly(4) == bytes(4)
    await client.call(MetadataRequest(topics=None), ApiKey.METADATA, 9)


async def test_a_wrong_bare_token_closes_the_connection(bed: Any) -> None:
    client = await bed.client()
    await client.call(SaslHandshakeRequest(mechanism="PLAIN"), ApiKey.SASL_HANDSHAKE, 0)
    client.writer.write(b"\0\0\0\x08\0ann\0bad")
    assert await client.is_closed()


async def test_a_client_that_never_signs_in_is_closed(bed: Any) -> None:
    client = await bed.client()
    await client.call(ApiVersionsRequest(), ApiKey.API_VERSIONS, 3)
    (connection,) = bed.listener._connections
    connection.sweep(bed.services.monotonic_ns() + 31_000_000_000)
    assert await client.is_closed()


def test_over_long_credentials_are_refused_unread() -> None:
    with pytest.raises(Unauthenticated, match="1024 bytes"):
        parse_plain(b"\0ann\0" + b"x" * 2000)
