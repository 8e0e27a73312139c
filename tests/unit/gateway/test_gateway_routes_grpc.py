"""`georelay.v1.Routes` at a gateway: the answers, bounds and rights of POST /v1/resolve, over gRPC."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf import json_format

from gateway.passthrough.routes_service import asked_of
from gateway.routing.resolving import OBSERVED_MAX, QUESTION_BYTES_MAX
from georelay._pb import routes_pb2 as pb
from georelay.errors import BadRequest
from tests.unit.gateway.conftest import ANN, BOB
from tests.unit.gateway.test_gateway_routes import ask, judging, two_regions

SECONDS = 10
CHANGING = ("ttl_s", "rtt_ms", "estimate_ms", "error_ms", "cost_ms", "source")  # from one answer to the next
OF_LATER = pb.RegionsRequest.FromString(b"\x20\x07")  # an intent of a later version
EU = pb.Observed(region="eu", rtt_us=35_000, samples=3)


async def resolve(mesh: Any, request: pb.RegionsRequest | bytes, metadata: Any = ()) -> pb.RegionsResponse:
    raw = request if isinstance(request, bytes) else request.SerializeToString()
    options = [("grpc.enable_http_proxy", 0)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{mesh.ports.grpc}", options=options) as channel:
        answer = await channel.unary_unary("/georelay.v1.Routes/Resolve")(raw, metadata=metadata, timeout=SECONDS)
    return pb.RegionsResponse.FromString(answer)


def lasting(value: Any) -> Any:
    """Leave out what differs between two answers to one question."""
    if isinstance(value, dict):
        return {name: lasting(inner) for name, inner in value.items() if name not in CHANGING}
    return [lasting(inner) for inner in value] if isinstance(value, list) else value


async def test_grpc_and_http_give_one_client_one_answer(start_mesh: Any, start_broker: Any) -> None:
    mesh = await two_regions(start_mesh, start_broker)
    pin = {"subject": "ann", "value": "eu"}
    assert (await ask(mesh, "POST", "/v1/routes/pin", pin))[0] == 200
    _, over_http = await ask(mesh, "POST", "/v1/resolve", {"client": "ann", "topic": "orders", "intent": "publish"})
    answer = await resolve(mesh, pb.RegionsRequest(client="ann", topic="orders", intent=pb.INTENT_PUBLISH))
    as_json = json_format.MessageToDict(
        answer, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    assert lasting(as_json) == lasting(over_http)
    assert (answer.region, 24 <= answer.ttl_s <= 36, answer.regions[0].HasField("cost_ms")) == ("eu", True, True)


async def test_a_client_that_names_itself_in_the_metadata_is_that_client(start_mesh: Any, start_broker: Any) -> None:
    mesh = await two_regions(start_mesh, start_broker)
    await ask(mesh, "POST", "/v1/routes/pin", {"subject": "ann", "value": "eu"})
    for metadata, reason in (((("georelay-client-name", "ann"),), "pinned to eu"), ((), "")):
        answer = await resolve(mesh, pb.RegionsRequest(), metadata)
        assert ("pinned" in answer.reason) == bool(reason)
    status, over_http = await ask(mesh, "POST", "/v1/resolve", {}, **{"Georelay-Client-Name": "ann"})
    assert (status, over_http["region"]) == (200, "eu")


@pytest.mark.parametrize(
    "request_",
    [
        pb.RegionsRequest(client="x" * 129),
        pb.RegionsRequest(topic="x" * 250),
        pb.RegionsRequest(region="x" * 41),
        OF_LATER,
        pb.RegionsRequest(observed=[pb.Observed(region="eu")]),
        pb.RegionsRequest(observed=[pb.Observed(region="eu", rtt_us=-1, samples=3)]),
        pb.RegionsRequest(observed=[EU] * (OBSERVED_MAX + 1)),
        bytes(QUESTION_BYTES_MAX + 1),
        b"\xff no message",
    ],
)
async def test_a_question_that_is_none_is_refused(start_mesh: Any, start_broker: Any, request_: Any) -> None:
    mesh = await start_mesh(us=[await start_broker(judging)])
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await resolve(mesh, request_)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert dict(refused.value.trailing_metadata())["georelay-outcome"] == "not_stored"


async def test_who_must_sign_in_must_do_so_here_and_needs_no_other_right(start_mesh: Any, start_broker: Any) -> None:
    mesh = await start_mesh(us=[await start_broker(judging)], users=True)
    for wrong in ((), (("authorization", "basic eDp5"),)):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await resolve(mesh, pb.RegionsRequest(), wrong)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert dict(refused.value.trailing_metadata())["georelay-code"] == "UNAUTHENTICATED"
    for known in (ANN, BOB):
        assert (await resolve(mesh, pb.RegionsRequest(), (("authorization", known),))).region == "us"


def test_a_question_is_that_of_the_json() -> None:
    request = pb.RegionsRequest(client="ann", observed=[EU], topic="orders", intent=pb.INTENT_PUBLISH, region="us")
    row = {"region": "eu", "rtt_us": 35_000, "samples": 3, "age_s": 0}
    asked = {"client": "ann", "observed": [row], "topic": "orders", "intent": "publish", "region": "us"}
    assert asked_of(request) == asked
    assert asked_of(pb.RegionsRequest()) == {"observed": [], "topic": "", "intent": "read"}
    with pytest.raises(BadRequest, match="intent: 7"):
        asked_of(OF_LATER)


async def test_who_asks_over_grpc_alone_is_as_far_as_the_kernel_measured(start_mesh: Any, start_broker: Any) -> None:
    mesh = await two_regions(start_mesh, start_broker)
    answer = await resolve(mesh, pb.RegionsRequest(client="ann"))
    assert {row.source for row in answer.regions} <= {"kernel", "links"}  # a busy machine is 2 ms from itself
