"""Which regions a client shall use, however it asks: HTTP and gRPC hand their question here.

Rule 1: one reader and one answer for every protocol: the same fields, bounds and words.
Rule 2: who is asked for decides only for itself: a client is its name at the address that it asks from.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.routing.client_book_core import NAME_CHARS_MAX, OBSERVED_REGIONS_MAX, ClientKey, Observation
from gateway.routing.client_routes import ClientRoutes, Question, answer_json
from gateway.routing.region_view_core import RankedRegion
from gateway.routing.router import Router
from georelay.errors import BadRequest
from georelay.fields import FieldError, Fields, JsonObject
from mesh.distance.kernel_sample import KernelSample

QUESTION_BYTES_MAX: Final = 16 * 1024
OBSERVED_MAX: Final = 64
TOPIC_CHARS_MAX: Final = 249
REGION_CHARS_MAX: Final = 40
INTENTS: Final = ("read", "publish")

HomeOf = Callable[[str, str | None], Awaitable[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """Who asks.

    Args:
        name: what it calls itself in a header, cut to NAME_CHARS_MAX; a name in the question counts first.
        address: its IP address. authorization: its credentials, None without any.
        sample: of the connection that it asks over; None where it is not known.
    """

    name: str
    address: str
    authorization: str | None
    sample: KernelSample | None


class Resolving:
    """Reads questions and answers them.

    Args:
        home_of: returns the home of a topic as a broker says to whom asks, "" where every region is home.
    """

    def __init__(self, mesh_id: str, router: Router, routes: ClientRoutes, *, home_of: HomeOf) -> None:
        self._mesh_id = mesh_id
        self._router = router
        self._routes = routes
        self._home_of = home_of
        self._shown_for: tuple[RankedRegion, ...] = ()
        self._shown: dict[str, dict[str, Any]] = {}

    async def answer(self, asker: Asker, asked: JsonObject) -> dict[str, Any]:
        """Return the answer to {client, region, observed, topic, intent}, all of which may be left out.

        Raises:
            BadRequest: it is no such question. Unauthenticated, AccessDenied: brokers do not tell this caller where the
            topic is at home.
        """
        try:
            fields = Fields(asked, "the question")
            name = fields.text("client", chars_max=NAME_CHARS_MAX) if fields.has("client") else asker.name
            region = fields.text("region", chars_max=REGION_CHARS_MAX) if fields.has("region") else ""
            topic = fields.text("topic", chars_max=TOPIC_CHARS_MAX) if fields.has("topic") else ""
            intent = fields.text("intent", chars_max=10) if fields.has("intent") else "read"
            rows = fields.items("observed", count_max=OBSERVED_MAX) if fields.has("observed") else []
            observed = tuple(_observation(row) for row in rows)[:OBSERVED_REGIONS_MAX]
            fields.done()
        except FieldError as error:
            raise BadRequest(str(error)) from error
        if intent not in INTENTS:
            raise BadRequest(f"intent: give {' or '.join(INTENTS)}")
        home = await self._home_of(topic, asker.authorization) if topic and intent == "publish" else ""
        key = ClientKey(name, asker.address)
        question = Question(client=key, sample=asker.sample, observed=observed, home=home, region=region)
        choice, ttl_s = self._routes.resolve(question)
        return answer_json(self._mesh_id, choice, ttl_s, self._addresses())

    def _addresses(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the regions with their addresses by name, made once for what is seen now: many ask in a moment."""
        seen = self._router.seen()
        if self._shown_for is not seen:
            self._shown_for, self._shown = seen, {region.name: region_json(region) for region in seen}
        return self._shown


def region_json(region: RankedRegion) -> dict[str, Any]:
    """Return a region with the addresses of its brokers; `rtt_ms` is from this gateway."""
    return {
        "region": region.name,
        "rtt_ms": milliseconds(region.rtt_ns),
        "ready": region.ready,
        "kafka": [broker.endpoints.kafka for broker in region.brokers],
        "grpc": [broker.endpoints.grpc for broker in region.brokers],
        "http": [broker.endpoints.admin for broker in region.brokers],
    }


def milliseconds(rtt_ns: int | None) -> float | None:
    """Return a round trip as answers show it, None while it was not measured."""
    return None if rtt_ns is None else round(rtt_ns / 1e6, 3)


def _observation(row: object) -> Observation:
    fields = Fields(row, "an observation")
    found = Observation(
        region=fields.text("region", chars_max=REGION_CHARS_MAX),
        rtt_ms=fields.integer("rtt_us", low=1, high=10_000_000) / 1000,
        samples=fields.integer("samples", low=1, high=1000),
        age_s=fields.integer("age_s", low=0, high=86_400) if fields.has("age_s") else 0.0,
    )
    fields.done()
    return found
