"""Metrics of links: what is wrong is always shown, and the number of samples is bounded."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from georelay.ids import Offset, RegionNumber, StreamKey
from mesh.replication.link_counters import LinkCounters
from mesh.replication.link_state import Cause, LinkState
from mesh.replication.snapshot import SessionSnapshot
from region.broker.link_metrics import STREAMS_MAX, LinkCollector


def session(partition: int, **changes: Any) -> SessionSnapshot:
    row: dict[str, Any] = {
        "role": "home",
        "key": StreamKey(bytes(16), RegionNumber(0), partition),
        "region": RegionNumber(2),
        "broker": 2001,
        "state": LinkState.IDLE,
        "cause": Cause.NONE,
        "lag_records": 0,
        "lag_bytes": 0,
        "lag_ms": 0.0,
        "hwm": Offset(5),
        "acked": Offset(5),
    }
    return SessionSnapshot(**(row | changes))


def text_of(rows: list[SessionSnapshot], counters: LinkCounters | None = None) -> str:
    registry = CollectorRegistry()
    registry.register(LinkCollector(sessions=lambda: rows, region_name=lambda n: f"r{n}", counters=counters))
    return generate_latest(registry).decode()


def test_a_stream_shows_its_state_with_the_cause_its_lag_and_its_resumes() -> None:
    text = text_of(
        [
            session(
                7, state=LinkState.LAGGING, cause=Cause.APPLY, lag_records=12, lag_bytes=900, lag_ms=1500.0, resumes=3
            )
        ]
    )
    labels = 'region="r2",role="home",stream="00000000/0/7"'
    assert f"georelay_link_lag_records{{{labels}}} 12.0" in text
    assert f"georelay_link_lag_bytes{{{labels}}} 900.0" in text
    assert f"georelay_link_lag_seconds{{{labels}}} 1.5" in text
    assert f"georelay_link_stream_resumes_total{{{labels}}} 3.0" in text
    assert (
        'georelay_link_state{cause="apply",region="r2",role="home",state="lagging",stream="00000000/0/7"} 1.0' in text
    )
    assert 'georelay_link_streams{cause="apply",region="r2",role="home",state="lagging"} 1.0' in text


def test_of_many_streams_those_in_trouble_are_listed_and_all_are_counted() -> None:
    rows = [session(row) for row in range(2000)]
    rows[1234] = session(1234, state=LinkState.STALLED, lag_records=1, lag_ms=9000.0)
    text = text_of(rows)
    assert text.count("georelay_link_lag_records{") == STREAMS_MAX
    assert 'stream="00000000/0/1234"' in text
    assert f"georelay_link_streams_unlisted {2000 - STREAMS_MAX}.0" in text
    assert 'georelay_link_streams{cause="",region="r2",role="home",state="idle"} 1999.0' in text
    assert 'georelay_link_lag_seconds_max{region="r2",role="home"} 9.0' in text


def test_what_was_counted_is_shown_by_region() -> None:
    counters = LinkCounters()
    counters.session_welcomed("mirror", 3, is_resume=True)
    counters.session_refused("mirror", 3, "NO_POSITION")
    counters.peer_refused("MESH_ID")
    counters.frame_sent(3, 10, plain_bytes=40)
    text = text_of([], counters)
    assert 'georelay_link_resumes_total{region="r3",role="mirror"} 1.0' in text
    assert 'georelay_link_refusals_total{code="NO_POSITION",region="r3",role="mirror"} 1.0' in text
    assert 'georelay_link_peers_refused_total{code="MESH_ID"} 1.0' in text
    assert 'georelay_link_sent_bytes_total{region="r3"} 10.0' in text
    assert 'georelay_link_sent_plain_bytes_total{region="r3"} 40.0' in text
