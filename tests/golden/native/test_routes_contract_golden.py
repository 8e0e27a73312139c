"""The bytes of a question for regions and of its answer, as clients in the field send and read them."""

from __future__ import annotations

from georelay._pb import routes_pb2 as pb

QUESTION = "0a0762696c6c696e67120c0a02657510b89102180320051a066f72646572732002"
QUESTION_OF_ONE_THAT_IS_SOMEWHERE = "0a0762696c6c696e672a026575"
ANSWER = (
    "0a016d110000000000003e401a026575220670696e6e65642801300138e80742410a02657511000000000000f83f18012203"
    "683a312a03683a323203683a3339000000000000004041000000000000e03f4a066b65726e656c510000000000000040"
)


def test_a_question_keeps_its_bytes() -> None:
    observed = [pb.Observed(region="eu", rtt_us=35_000, samples=3, age_s=5)]
    question = pb.RegionsRequest(client="billing", observed=observed, topic="orders", intent=pb.INTENT_PUBLISH)
    assert question.SerializeToString().hex() == QUESTION
    assert pb.RegionsRequest.FromString(bytes.fromhex(QUESTION)) == question


def test_a_question_of_a_client_that_says_where_it_is_keeps_its_bytes() -> None:
    question = pb.RegionsRequest(client="billing", region="eu")
    assert question.SerializeToString().hex() == QUESTION_OF_ONE_THAT_IS_SOMEWHERE
    assert pb.RegionsRequest.FromString(bytes.fromhex(QUESTION_OF_ONE_THAT_IS_SOMEWHERE)) == question


def test_an_answer_keeps_its_bytes() -> None:
    region = pb.RankedRegion(
        region="eu",
        rtt_ms=1.5,
        ready=True,
        kafka=["h:1"],
        grpc=["h:2"],
        http=["h:3"],
        estimate_ms=2.0,
        error_ms=0.5,
        source="kernel",
        cost_ms=2.0,
    )
    answer = pb.RegionsResponse(
        mesh="m",
        ttl_s=30.0,
        region="eu",
        reason="pinned",
        degraded=True,
        must_move=True,
        reconnect_spread_ms=1_000,
        regions=[region],
    )
    assert answer.SerializeToString().hex() == ANSWER
    assert pb.RegionsResponse.FromString(bytes.fromhex(ANSWER)) == answer
