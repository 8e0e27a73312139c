"""`georelay status` says first what is out of order."""

from __future__ import annotations

from typing import Any

from georelay.cli.mesh_status_core import stream_lines, totals, troubles


def broker(number: int, *streams: dict[str, Any], error: str = "", ready: bool | None = None) -> dict[str, Any]:
    status = None if error else {"controller": number, "streams": list(streams)}
    return {"id": number, "ready": not error if ready is None else ready, "status": status, "error": error}


def stream(topic: str = "orders", *, home: str, here: str, led: bool = True, lag_ms: float | None = 1.0) -> Any:
    return {
        "topic": topic,
        "partition": 0,
        "home": home,
        "is_leader": led,
        "is_home": home == here,
        "epoch": 1,
        "high_watermark": 5,
        "home_high_watermark": -1 if lag_ms is None else 9,
        "lag_ms": lag_ms or 0.0,
    }


def mesh(**regions: list[dict[str, Any]]) -> dict[str, Any]:
    return {"mesh": "m", "regions": [{"region": name, "brokers": brokers} for name, brokers in regions.items()]}


WELL = mesh(us=[broker(1001, stream(home="us", here="us"))], eu=[broker(2001, stream(home="us", here="eu"))])
DEAD_HOME = mesh(
    us=[broker(number, error="connection refused") for number in range(1001, 1006)],
    eu=[
        broker(
            2001,
            stream(home="us", here="eu", lag_ms=60_000),
            stream("bills", home="us", here="eu", lag_ms=None),
            stream("__georelay_probes", home="us", here="eu", lag_ms=None),
        )
    ],
)


def test_a_mesh_in_order_has_no_troubles() -> None:
    assert troubles(WELL) == []
    assert totals(WELL, stream_lines(WELL)) == ("2 regions, 2 of 2 brokers ready, 1 topic with 1 stream, 0 internal")


def test_a_dead_region_is_one_trouble_with_all_that_it_is_home_of_and_the_next_command() -> None:
    assert troubles(DEAD_HOME) == [
        "region us does not answer (1001: connection refused, 1002: connection refused, 1003: connection refused and 2 "
        "more); its homes take no records (2 streams, 1 internal); if it is lost: georelay home failover --region us"
    ]


def test_the_rows_of_a_dead_home_do_not_vanish() -> None:
    rows = [(line.topic, line.region, line.role, line.leader, line.trouble) for line in stream_lines(DEAD_HOME)]
    assert rows[:3] == [
        ("__georelay_probes", "us", "home", "-", "does not answer"),
        ("bills", "us", "home", "-", "does not answer"),
        ("orders", "us", "home", "-", "does not answer"),
    ]
    assert {row[1:] for row in rows[3:]} == {("eu", "mirror", "2001", "")}


def test_brokers_of_a_region_that_answers_are_troubles_of_their_own() -> None:
    found = troubles(
        mesh(
            us=[
                broker(1001, stream(home="us", here="us")),
                broker(1002, error="no answer within 3 s"),
                broker(1003, error="HTTP 403", ready=True),
                broker(1004, ready=False),
                broker(1005, ready=False) | {"status": {"ready": True}},
            ]
        )
    )
    assert found == [
        "broker 1002 of region us does not answer (no answer within 3 s)",
        "broker 1003 of region us does not tell its state (HTTP 403)",
        "broker 1004 of region us is not ready: it hears no leader of its region",
        "broker 1005 of region us is ready, and not used by the gateway yet",
    ]


def test_what_has_no_leader_and_what_is_far_behind_is_counted_per_region_and_shown_first() -> None:
    document = mesh(
        us=[broker(1001, stream("a", home="us", here="us"), stream("b", home="us", here="us", led=False))],
        eu=[broker(2001, stream("a", home="us", here="eu", lag_ms=7_000), stream("b", home="us", here="eu"))],
    )
    assert troubles(document) == [
        "region eu: behind the home by up to 7,000 ms with 1 stream: a/0",
        "region us: no leader that answers for 1 stream: b/0",
    ]
    assert [(line.topic, line.region) for line in stream_lines(document)][:2] == [("a", "eu"), ("b", "us")]
    assert len(troubles(document, lag_ms_max=8_000)) == 1


def test_the_silence_of_a_home_that_has_left_the_mesh_is_no_trouble() -> None:
    silent = stream("__georelay_probes", home="ap", here="us", lag_ms=None)
    assert troubles(mesh(us=[broker(1001, silent)])) == [
        "region us: behind the home with 0 streams, 1 internal: __georelay_probes/0"
    ]
    assert troubles(mesh(us=[broker(1001, silent | {"home_left": True})])) == []


def test_the_command_prints_the_verdict_first_and_internal_topics_on_request_only(georelay: Any, gateway: Any) -> None:
    gateway.answers["GET /v1/status"] = (200, DEAD_HOME)
    out = georelay("status", "--gateway", gateway.url).out
    first, second, third = out.splitlines()[:3]
    assert first == "mesh m: 1 trouble"
    assert second.startswith("- region us does not answer")
    assert third == "2 regions, 1 of 6 brokers ready, 2 topics with 2 streams, 1 internal"
    assert "__georelay" not in out
    assert "__georelay_probes" in georelay("status", "--internal", "--gateway", gateway.url).out
