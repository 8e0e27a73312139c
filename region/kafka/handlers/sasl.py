"""SASL: the gate before everything else where clients have to sign in.

Rule 1: PLAIN sends the password: it is offered over TLS and on loopback only. SCRAM is offered everywhere, and with
        SaslHandshake v1 only: the first form of SASL has no frame for a second round.
Rule 2: wrong credentials are answered after REFUSAL_DELAY_S, then the connection closes; nothing is processed
        meanwhile, so one connection tests one password per delay at most.
Rule 3: an unknown user is answered like a wrong password, step by step.
        A sign-in for which there is no place (Busy) is not answered at all, and its connection closes: clients try
        again then, and after any answer that says "no" a Java client never does.
Rule 4: neither passwords nor names of nobody are logged.

    HANDSHAKE --SaslHandshake--> CREDENTIALS --SaslAuthenticate--> CHECKING --right--> DONE
                                      ^------ SCRAM, first round ------'  '---wrong--> REFUSED
"""

from __future__ import annotations

import asyncio
from typing import Final

from georelay.errors import Busy, GeorelayError, Unauthenticated
from georelay.wire.api import ErrorCode
from georelay.wire.requests import SaslAuthenticateRequest, SaslHandshakeRequest
from georelay.wire.responses import Response, SaslAuthenticateResponse, SaslHandshakeResponse
from region.kafka.connection import KafkaConnection, SignIn, Slot
from region.kafka.services import KafkaServices
from region.security.scram_core import REFUSED
from region.security.sign_in import SignInService
from region.security.user import Mechanism

PLAIN: Final = "PLAIN"
REFUSAL_DELAY_S: Final = 0.25
CREDENTIALS_BYTES_MAX: Final = 1_024
BARE_SUCCESS: Final = bytes(4)  # a frame of zero bytes


def parse_plain(token: bytes) -> tuple[str, str]:
    """Return (user, password) of RFC 4616: [authzid] NUL authcid NUL password.

    Raises:
        Unauthenticated: another form, or an authzid that is not the user.
    """
    if len(token) > CREDENTIALS_BYTES_MAX:
        raise Unauthenticated(f"SASL PLAIN credentials are over {CREDENTIALS_BYTES_MAX} bytes")
    parts = token.split(b"\0")
    if len(parts) != 3:
        raise Unauthenticated("SASL PLAIN credentials must be [authzid] NUL user NUL password")
    try:
        authzid, user, password = (part.decode() for part in parts)
    except UnicodeDecodeError as error:
        raise Unauthenticated("SASL PLAIN credentials are not UTF-8") from error
    if authzid not in ("", user):
        raise Unauthenticated("acting for another user is not served")
    return user, password


class SaslHandler:
    """Moves connections through `SignIn`."""

    def __init__(self, services: KafkaServices) -> None:
        sign_in = services.sign_in
        self._sign_in = sign_in if sign_in is not None else SignInService(services.credentials)
        self._counters = services.counters
        self._bare_checks: set[asyncio.Task[None]] = set()

    @property
    def sign_in(self) -> SignInService:
        """Return what checks credentials."""
        return self._sign_in

    def handshake(self, slot: Slot, request: SaslHandshakeRequest) -> None:
        """Choose the mechanism."""
        connection = slot.connection
        is_bare = slot.api_version == 0
        offered = mechanisms(connection, is_bare=is_bare)
        if not connection.may_sign_in:
            slot.answer(SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=offered))
        elif request.mechanism not in offered:
            slot.answer(SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=offered))
        else:
            connection.mechanism = request.mechanism
            connection.sign_in = SignIn.BARE_CREDENTIALS if is_bare else SignIn.CREDENTIALS
            slot.answer(SaslHandshakeResponse(mechanisms=offered))

    def authenticate(self, slot: Slot, request: SaslAuthenticateRequest) -> None:
        """Check the credentials, or take the next step; the gate opens before the last answer is written."""
        connection = slot.connection
        if connection.sign_in is not SignIn.CREDENTIALS:
            text = "SaslHandshake must come first, and only once"
            slot.answer(SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=text))
            return
        connection.sign_in = SignIn.CHECKING
        slot.spawn(self._checked(connection, bytes(request.auth_bytes)))

    def raw_token(self, connection: KafkaConnection, token: bytes) -> None:
        """Check bare credentials (SaslHandshake v0); success is an empty frame, refusal a closed connection."""
        connection.sign_in = SignIn.CHECKING
        task = asyncio.get_running_loop().create_task(self._bare(connection, token))
        self._bare_checks.add(task)
        task.add_done_callback(self._bare_checks.discard)

    async def close(self) -> None:
        """Cancel checks of bare credentials."""
        for task in self._bare_checks:
            task.cancel()
        await asyncio.gather(*self._bare_checks, return_exceptions=True)

    async def _checked(self, connection: KafkaConnection, token: bytes) -> Response:
        try:
            if connection.mechanism == PLAIN:
                await self._check_plain(connection, token)
                answer = b""
            elif connection.exchange is None:
                connection.exchange = self._sign_in.scram(Mechanism(connection.mechanism), token)
                asyncio.get_running_loop().call_soon(connection.await_credentials)
                return SaslAuthenticateResponse(auth_bytes=connection.exchange.server_first)
            else:
                answer = await self._check_proof(connection, token)
        except GeorelayError as error:
            await self._refuse(connection)
            if isinstance(error, Busy):
                connection.close()
            code = ErrorCode.SASL_AUTHENTICATION_FAILED
            return SaslAuthenticateResponse(error_code=code, error_message=str(error))
        asyncio.get_running_loop().call_soon(connection.signed_in)
        return SaslAuthenticateResponse(auth_bytes=answer)

    async def _bare(self, connection: KafkaConnection, token: bytes) -> None:
        try:
            await self._check_plain(connection, token)
        except GeorelayError:
            await self._refuse(connection)
            connection.close()
            return
        connection.write_bare(BARE_SUCCESS)
        connection.signed_in()

    async def _check_plain(self, connection: KafkaConnection, token: bytes) -> None:
        user, password = parse_plain(token)
        host = connection.principal.host
        connection.principal = await self._sign_in.password(user, password, host=host, how=PLAIN)

    async def _check_proof(self, connection: KafkaConnection, token: bytes) -> bytes:
        exchange, connection.exchange = connection.exchange, None
        if exchange is None:
            raise Unauthenticated(REFUSED)
        host = connection.principal.host
        async with self._sign_in.attempt(host, exchange.user, how=connection.mechanism):
            answer = exchange.finish(token)
            if not self._sign_in.is_active_user(exchange.user):  # ended since its first message
                raise Unauthenticated(REFUSED)
        connection.principal = self._sign_in.principal_of(exchange.user, host=host)
        return answer

    async def _refuse(self, connection: KafkaConnection) -> None:
        connection.sign_in = SignIn.REFUSED
        self._counters.sign_ins_refused += 1
        await asyncio.sleep(REFUSAL_DELAY_S)
        asyncio.get_running_loop().call_later(REFUSAL_DELAY_S, connection.close)


def mechanisms(connection: KafkaConnection, *, is_bare: bool) -> list[str]:
    """Return what a connection may sign in by."""
    scram = [] if is_bare else [mechanism.value for mechanism in Mechanism]
    return [PLAIN, *scram] if connection.is_private else scram
