"""What every gRPC method of a broker does around its work: sign the caller in, refuse with a status, count.

Rule 1: an error of georelay.errors leaves as the status of its row; code and outcome stand in the trailing metadata.
Rule 2: anything else is a defect: it leaves as INTERNAL, and only the log has its text.
"""

from __future__ import annotations

import asyncio
import re
from contextvars import ContextVar
from typing import Any, Final, NoReturn

import grpc
import structlog
from prometheus_client import Counter

from georelay.credentials import CLIENT_HEADER
from georelay.errors import GeorelayError, Unauthenticated
from georelay.tls import PrincipalFrom, principal_of_call
from mesh.listening import grpc_health
from mesh.listening.grpc_limits import host_of, trailers_of
from mesh.listening.grpc_status import grpc_status
from region.api import grpc_reflection
from region.api.metrics import BrokerMetrics
from region.kafka.ports import CredentialCheck
from region.security.access import Access, Principal
from region.security.quotas import Quotas
from region.security.sign_in import SignInService

log = structlog.get_logger()

OPEN_SERVICES: Final = frozenset({grpc_health.SERVICE, grpc_reflection.SERVICE})  # nobody has to sign in
_SIGNED_IN: ContextVar[Principal | None] = ContextVar("signed_in", default=None)  # of the call that this task answers
_WORD: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")


class GrpcCalls:
    """Shared by the services of one listener; `method` is the label of georelay_edge_requests."""

    def __init__(
        self,
        credentials: CredentialCheck,
        metrics: BrokerMetrics,
        access: Access | None = None,
        *,
        sign_in: SignInService | None = None,
        principal_from: PrincipalFrom = PrincipalFrom.CN,
        quotas: Quotas | None = None,
    ) -> None:
        self.quotas = quotas if quotas is not None else Quotas()
        self.access = access or Access.open()
        self._sign_in = sign_in if sign_in is not None else SignInService(credentials)
        self._principal_from = principal_from
        self._requests = metrics.edge_requests
        self._served: dict[str, Counter] = {}  # by method: looking one up costs more than counting

    async def admit(self, method: str, context: Any) -> None:
        """End the call unless its caller is signed in, or does not have to be; nothing of its request was read yet.

        Args:
            method: "/georelay.v1.Admin/CreateTopic".
        """
        service, _, name = method.removeprefix("/").rpartition("/")
        if service in OPEN_SERVICES:
            return
        try:
            _SIGNED_IN.set(await self.sign_in(context))
        except GeorelayError as error:
            await self.refuse(context, _WORD.sub("_", name).lower(), error)

    async def sign_in(self, context: Any) -> Principal:
        """Return who calls (Unauthenticated: missing or wrong credentials, though users are set)."""
        admitted = _SIGNED_IN.get()
        if admitted is not None:
            return admitted
        metadata = {key.lower(): value for key, value in context.invocation_metadata() or ()}
        certificate = principal_of_call(context.auth_context(), self._principal_from)
        return await self._sign_in.caller(
            metadata.get("authorization"),
            certificate=certificate,
            host=host_of(context.peer()),
            reported=metadata.get(CLIENT_HEADER.lower()),
        )

    def check_still_valid(self, principal: Principal) -> None:
        """Pass while what the caller of an open call signed in by still stands (Unauthenticated: it does not)."""
        if not self._sign_in.is_still_valid(principal):
            raise Unauthenticated("the sign-in of this call has ended: sign in again")

    @staticmethod
    async def pause(pause_ms: int) -> None:
        """Let a call wait until its caller's quota is kept."""
        if pause_ms:
            await asyncio.sleep(pause_ms / 1_000)

    def served(self, method: str) -> None:
        """Count a call that went well."""
        counter = self._served.get(method)
        if counter is None:
            counter = self._served[method] = self._requests.labels("grpc", method, "OK")
        counter.inc()

    async def refuse(
        self, context: Any, method: str, error: GeorelayError, more: tuple[tuple[str, str], ...] = ()
    ) -> NoReturn:
        """End a call with the status of `error`; `more` goes with it in the trailing metadata."""
        self._requests.labels("grpc", method, error.code).inc()
        trailers = (*trailers_of(error), *more)
        await context.abort(getattr(grpc.StatusCode, grpc_status(error)), str(error), trailers)
        raise error  # abort has raised already; this says so to the type checker

    async def refuse_defect(self, context: Any, method: str) -> NoReturn:
        """End a call that met a defect of ours; called while the exception is handled."""
        log.exception("grpc_call.broke", method=method)
        await self.refuse(context, method, GeorelayError("internal error; the broker's log has the cause"))
