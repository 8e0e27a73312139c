"""SASL PLAIN: the gate before everything else when the mesh has users.

Rule 1: a wrong password is answered after REFUSAL_DELAY_S, then the connection closes; nothing is processed
        meanwhile, so one connection tests one password per delay at most.
Rule 2: neither users nor passwords are logged.
"""

from __future__ import annotations

import asyncio
from typing import Final

from georelay.errors import GeorelayError, Unauthenticated
from georelay.wire.api import ErrorCode
from georelay.wire.requests import SaslAuthenticateRequest, SaslHandshakeRequest
from georelay.wire.responses import Response, SaslAuthenticateResponse, SaslHandshakeResponse
from region.kafka.connection import KafkaConnection, SignIn, Slot
from region.kafka.services import KafkaServices

MECHANISM: Final = "PLAIN"
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
        self._credentials = services.credentials
        self._counters = services.counters
        self._bare_checks: set[asyncio.Task[None]] = set()

    def handshake(self, slot: Slot, request: SaslHandshakeRequest) -> None:
        """Choose the mechanism."""
        connection = slot.connection
        if connection.sign_in is not SignIn.HANDSHAKE:
            slot.answer(SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[MECHANISM]))
        elif request.mechanism != MECHANISM:
            slot.answer(SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=[MECHANISM]))
        else:
            is_bare = slot.api_version == 0
            connection.sign_in = SignIn.BARE_CREDENTIALS if is_bare else SignIn.CREDENTIALS
            slot.answer(SaslHandshakeResponse(mechanisms=[MECHANISM]))

    def authenticate(self, slot: Slot, request: SaslAuthenticateRequest) -> None:
        """Check the credentials; the gate opens before the answer is written."""
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
            await self._check(token)
        except GeorelayError as error:
            await self._refuse(connection)
            code = ErrorCode.SASL_AUTHENTICATION_FAILED
            return SaslAuthenticateResponse(error_code=code, error_message=str(error))
        asyncio.get_running_loop().call_soon(connection.signed_in)
        return SaslAuthenticateResponse()

    async def _bare(self, connection: KafkaConnection, token: bytes) -> None:
        try:
            await self._check(token)
        except GeorelayError:
            await self._refuse(connection)
            connection.close()
            return
        connection.write_bare(BARE_SUCCESS)
        connection.signed_in()

    async def _check(self, token: bytes) -> None:
        user, password = parse_plain(token)
        if not await self._credentials.authenticate(user, password):
            raise Unauthenticated("wrong user or password")

    async def _refuse(self, connection: KafkaConnection) -> None:
        connection.sign_in = SignIn.REFUSED
        self._counters.sign_ins_refused += 1
        await asyncio.sleep(REFUSAL_DELAY_S)
        asyncio.get_running_loop().call_later(REFUSAL_DELAY_S, connection.close)
