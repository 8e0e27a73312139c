"""What the gateway asks brokers for a client of its own answers: a right that is written down, the home of a topic."""

from __future__ import annotations

import json
from typing import Any, Final
from urllib.parse import quote

import aiohttp

from gateway.routing.router import Router
from georelay.credentials import CLIENT_HEADER
from georelay.errors import AccessDenied, BadRequest, OutcomeUnknown, Unauthenticated, Unavailable

TIMEOUT_S: Final = 5.0
ANSWER_BYTES_MAX: Final = 64 * 1024
HOME_KEPT_S: Final = 30.0
HOMES_MAX: Final = 1024
_UNAUTHENTICATED, _DENIED, _UNKNOWN = 401, 403, 404


class AskedBrokers:
    """Asks in the name of the client, whose credentials go with the question."""

    def __init__(self, router: Router, session: aiohttp.ClientSession, *, scheme: str) -> None:
        self._router = router
        self._session = session
        self._scheme = scheme
        self._homes: dict[tuple[str, str | None], tuple[float, str]] = {}  # (topic, authorization) -> (until, home)

    async def permit(self, authorization: str | None, client: str, detail: dict[str, str]) -> str:
        """Let a broker judge a decision about clients and write it down; returns who decided.

        Raises:
            Unauthenticated, AccessDenied: not this caller. BadRequest: brokers of an older version. Unavailable: no
            broker answered. OutcomeUnknown: one may have written it down.
        """
        path = f"/v1/routes/{detail['kind']}"
        for broker in self._router.candidates():
            try:
                status, document = await self._ask("POST", broker.admin + path, authorization, client, detail)
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
                continue
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                raise OutcomeUnknown("the broker that judges did not answer: nothing was changed here") from error
            _refuse(status, document)
            if status == _UNKNOWN:
                raise BadRequest("the brokers are of an older version, which cannot judge this: upgrade them first")
            if status == 200:
                return str(document.get("by", ""))
        raise Unavailable("no broker could judge it; try again")

    async def home_of(self, topic: str, authorization: str | None) -> str:
        """Return the home of a topic, "" where every region is home or nobody knows (errors as above)."""
        known = self._homes.get((topic, authorization))
        if known is not None and self._router.now_s < known[0]:
            return known[1]
        for broker in self._router.candidates():
            try:
                url = f"{broker.admin}/v1/topics/{quote(topic, safe='')}"
                status, document = await self._ask("GET", url, authorization, "", None)
            except (aiohttp.ClientError, TimeoutError, ValueError):
                continue
            _refuse(status, document)
            home = document.get("home") if document.get("homes") != "every" else ""
            self._homes.pop((topic, authorization), None)
            self._homes[topic, authorization] = (self._router.now_s + HOME_KEPT_S, str(home or ""))
            if len(self._homes) > HOMES_MAX:
                del self._homes[next(iter(self._homes))]
            return str(home or "")
        return ""

    async def _ask(
        self, method: str, url: str, authorization: str | None, client: str, body: dict[str, str] | None
    ) -> tuple[int, dict[str, Any]]:
        headers = {} if authorization is None else {"Authorization": authorization, CLIENT_HEADER: client}
        async with self._session.request(
            method,
            f"{self._scheme}://{url}",
            json=body,
            headers=headers,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
        ) as answer:
            document = json.loads(await answer.content.read(ANSWER_BYTES_MAX) or b"{}")
            return answer.status, document if isinstance(document, dict) else {}


def _refuse(status: int, document: dict[str, Any]) -> None:
    detail = str(document.get("detail", ""))[:200]
    if status == _UNAUTHENTICATED:
        raise Unauthenticated(detail or "wrong or missing credentials")
    if status == _DENIED:
        raise AccessDenied.to("cluster")
