"""Who may use the gateway: brokers are asked in the caller's name; SCRAM's two rounds pass the bootstrap gate."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gateway.authentication import BrokerSignIn
from gateway.kafka.bootstrap_core import BootstrapSession, FrameRefused
from georelay.credentials import Credentials, basic, write_users_file
from georelay.errors import AccessDenied, Unauthenticated, Unavailable
from georelay.wire.api import encode_request, encode_response
from georelay.wire.requests import MetadataRequest, SaslAuthenticateRequest, SaslHandshakeRequest
from georelay.wire.responses import SaslAuthenticateResponse, SaslHandshakeResponse

ANN = basic("ann", "right")
CHALLENGE = b"r=" + b"n" * 44 + b",s=" + base64.b64encode(bytes(16)) + b",i=8192"
LONG_CHALLENGE = b"r=" + b"n" * 300 + b",s=AAAA,i=8192"


class FakeBroker:
    """Answers /v1/whoami as a broker does."""

    def __init__(self) -> None:
        self.required = True
        self.status = 200
        self.asked: list[str | None] = []

    async def whoami(self, request: web.Request) -> web.Response:
        authorization = request.headers.get("Authorization")
        self.asked.append(authorization)
        if self.required and authorization != ANN:
            return web.json_response({"code": "UNAUTHENTICATED", "detail": "wrong user or password"}, status=401)
        name = "User:ann" if self.required else "User:ANONYMOUS"
        return web.json_response({"principal": name, "sign_in_required": self.required})

    async def show_status(self, request: web.Request) -> web.Response:
        self.asked.append(request.method)
        return web.Response(status=self.status)


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    broker: Any = FakeBroker()
    app = web.Application()
    app.router.add_get("/v1/whoami", broker.whoami)
    app.router.add_get("/v1/status", broker.show_status)
    async with TestServer(app) as server:
        broker.admin = f"127.0.0.1:{server.port}"
        yield broker


@pytest.fixture
async def make(broker: Any) -> AsyncIterator[Any]:
    clock = [0.0]
    async with aiohttp.ClientSession() as session:

        def make(users: Credentials | None = None, *, brokers: Any = None, always: bool = False) -> BrokerSignIn:
            router: Any = SimpleNamespace(candidates=lambda: [broker] if brokers is None else brokers)
            sign_in = BrokerSignIn(
                users or Credentials.load(None),
                router=router,
                session=session,
                always=always,
                monotonic_s=lambda: clock[0],
            )
            sign_in.clock = clock  # type: ignore[attr-defined]
            return sign_in

        yield make


async def test_a_broker_judges_and_a_good_answer_is_remembered_for_a_while(make: Any, broker: Any) -> None:
    sign_in = make()
    for _ in range(3):
        assert await sign_in.authenticate_header(ANN) == "User:ann"
    assert len(broker.asked) == 1
    sign_in.clock[0] += 10
    await sign_in.authenticate_header(ANN)
    assert len(broker.asked) == 2


async def test_a_refusal_is_the_brokers_and_never_remembered(make: Any, broker: Any) -> None:
    sign_in = make()
    for _ in range(2):
        with pytest.raises(Unauthenticated, match="wrong user or password"):
            await sign_in.authenticate_header(basic("ann", "wrong"))
    assert len(broker.asked) == 2
    assert sign_in.required


async def test_who_may_see_the_mesh_is_judged_by_a_broker_and_only_a_yes_is_remembered(make: Any, broker: Any) -> None:
    sign_in = make()
    for broker.status, refused in ((403, AccessDenied), (401, Unauthenticated), (500, Unavailable)):
        with pytest.raises(refused):
            await sign_in.check_describes_cluster(ANN)
    broker.status = 200
    for _ in range(2):
        await sign_in.check_describes_cluster(ANN)
    assert broker.asked == [ANN, "HEAD", "HEAD", "HEAD", "HEAD"]
    with pytest.raises(Unauthenticated):
        await sign_in.check_describes_cluster(None)


async def test_where_brokers_let_everybody_in_so_does_the_gateway(make: Any, broker: Any) -> None:
    broker.required = False
    sign_in = make()
    assert await sign_in.authenticate_header(None) == ""
    assert not sign_in.required and not sign_in.checks_forwarded


async def test_a_gateway_that_requires_a_sign_in_trusts_no_broker_that_does_not(make: Any, broker: Any) -> None:
    broker.required = False
    sign_in = make(always=True)
    assert sign_in.required and sign_in.checks_forwarded
    for header in (None, ANN):
        with pytest.raises(Unauthenticated):
            await sign_in.authenticate_header(header)
    assert broker.asked == [ANN]


async def test_users_of_the_file_need_no_broker_and_others_are_asked_for(
    make: Any, broker: Any, tmp_path: Path
) -> None:
    write_users_file(tmp_path / "users.json", {"root": "root's own"})
    sign_in = make(Credentials.load(tmp_path / "users.json"))
    assert await sign_in.authenticate_header(basic("root", "root's own")) == "root"
    assert broker.asked == []
    assert await sign_in.authenticate_header(ANN) == "User:ann"
    with pytest.raises(Unauthenticated):
        await sign_in.authenticate_header(basic("root", "wrong"))


async def test_without_any_broker_nobody_is_judged(make: Any) -> None:
    with pytest.raises(Unavailable):
        await make(brokers=[]).authenticate_header(ANN)
    dead: Any = SimpleNamespace(admin="127.0.0.1:1")
    with pytest.raises(Unavailable):
        await make(brokers=[dead]).authenticate_header(ANN)


def request(message: Any, version: int) -> bytes:
    return b"".join(encode_request(message, api_version=version, correlation_id=1, client_id="c"))


def response(message: Any, version: int) -> bytes:
    return b"".join(encode_response(message, api_version=version, correlation_id=1))


@pytest.fixture
def shaken() -> BootstrapSession:
    session = BootstrapSession(sign_in_required=True)
    session.on_client_bytes(request(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 1))
    session.on_broker_bytes(response(SaslHandshakeResponse(mechanisms=["SCRAM-SHA-256"]), 1))
    return session


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("challenge", [CHALLENGE, LONG_CHALLENGE])
@pytest.mark.parametrize("step", [1, 5, 1_000])
def test_the_gate_opens_after_the_second_round_of_scram_only(
    shaken: BootstrapSession, version: int, challenge: bytes, step: int
) -> None:
    for token, answer, is_open in ((b"n,,n=ann,r=abc", challenge, False), (b"c=biws,r=abc,p=AA==", b"v=AAAA", True)):
        shaken.on_client_bytes(request(SaslAuthenticateRequest(auth_bytes=token), version))
        raw = response(SaslAuthenticateResponse(auth_bytes=answer), version)
        for start in range(0, len(raw), step):
            shaken.on_broker_bytes(raw[start : start + step])
        assert shaken.signed_in is is_open


@pytest.mark.parametrize("version", [0, 1, 2])
def test_between_the_rounds_nothing_else_passes(shaken: BootstrapSession, version: int) -> None:
    shaken.on_client_bytes(request(SaslAuthenticateRequest(auth_bytes=b"n,,n=ann,r=abc"), version))
    shaken.on_broker_bytes(response(SaslAuthenticateResponse(auth_bytes=CHALLENGE), version))
    with pytest.raises(FrameRefused):
        shaken.on_client_bytes(request(MetadataRequest(), 9))


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_refusal_leaves_the_gate_shut_and_plain_opens_it_at_once(shaken: BootstrapSession, version: int) -> None:
    shaken.on_client_bytes(request(SaslAuthenticateRequest(auth_bytes=b"x"), version))
    shaken.on_broker_bytes(response(SaslAuthenticateResponse(error_code=58, error_message="wrong"), version))
    assert not shaken.signed_in
    shaken.on_client_bytes(request(SaslAuthenticateRequest(auth_bytes=b"\0ann\0right"), version))
    shaken.on_broker_bytes(response(SaslAuthenticateResponse(), version))
    assert shaken.signed_in
