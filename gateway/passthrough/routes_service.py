"""`georelay.v1.Routes` (proto/georelay/v1/routes.proto): what POST /v1/resolve answers, over gRPC.

Rule: the names of its fields are those of the JSON. A question is judged, and an answer made, by
      gateway.routing.resolving; here is only their other spelling.
"""

from __future__ import annotations

from typing import Any, Final

from gateway.routing.resolving import QUESTION_BYTES_MAX, Asker, Resolving
from georelay._pb import routes_pb2 as pb
from georelay.errors import BadRequest
from mesh.distance.sock_diag import sample_between
from mesh.listening.bounded_messages import reader_of
from mesh.listening.grpc_limits import end_of

SERVICE: Final = "georelay.v1.Routes"
METHOD: Final = "Resolve"
_INTENTS: Final = {pb.INTENT_UNSPECIFIED: "read", pb.INTENT_READ: "read", pb.INTENT_PUBLISH: "publish"}
_read = reader_of(pb.RegionsRequest, bytes_max=QUESTION_BYTES_MAX)


async def resolve(
    resolving: Resolving, raw: bytes, *, port: int, peer: str, name: str, authorization: str | None
) -> bytes:
    """Return the bytes of a RegionsResponse to those of a RegionsRequest.

    Args:
        port: that it was asked at. peer: gRPC's name of who asks. name: what it calls itself in the metadata.

    Raises:
        BadRequest, TooLarge, and as Resolving.answer.
    """
    host, peer_port = end_of(peer)
    sample = sample_between(port, host, peer_port) if host else None
    asker = Asker(name=name, address=host, authorization=authorization, sample=sample)
    return pb.RegionsResponse(**await resolving.answer(asker, asked_of(_read(raw)))).SerializeToString()


def asked_of(request: pb.RegionsRequest) -> dict[str, Any]:
    """Return the question as POST /v1/resolve has it; what is at its default was left out."""
    if request.intent not in _INTENTS:
        raise BadRequest(f"intent: {request.intent} is not known; give INTENT_READ or INTENT_PUBLISH")
    observed = [
        {"region": row.region, "rtt_us": row.rtt_us, "samples": row.samples, "age_s": row.age_s}
        for row in request.observed
    ]
    asked = {"topic": request.topic, "intent": _INTENTS[request.intent], "observed": observed}
    given = {"client": request.client, "region": request.region}
    return asked | {name: value for name, value in given.items() if value}
