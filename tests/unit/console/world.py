"""Answers of brokers for the console's cores: a mesh of one broker per region, as small as a test needs."""

from __future__ import annotations

from typing import Any

from gateway.console.samples import BrokerSample, MeshSamples
from gateway.routing.endpoints import BrokerEndpoints
from gateway.routing.region_view_core import RankedBroker, RankedRegion
from georelay.ids import BrokerId

NUMBERS = {"us": 1, "eu": 2, "ap": 3}
NOW_NS = 100_000_000_000
Json = dict[str, Any]


def ranked(name: str, *, ready: bool = True, brokers: int = 1) -> RankedRegion:
    number = NUMBERS[name]
    rows = tuple(
        RankedBroker(
            endpoints=BrokerEndpoints(id=BrokerId(number * 1000 + place), kafka="k:1", grpc="g:1", admin="a:1"),
            ready=ready,
            rtt_ns=2_000_000,
        )
        for place in range(1, brokers + 1)
    )
    return RankedRegion(name=name, number=number, ready=ready, rtt_ns=2_000_000, brokers=rows)


def stream(topic: str, *, home: str, at: str, end: int, partition: int = 0, heard: int = -1) -> Json:
    return {
        "topic": topic,
        "partition": partition,
        "home": home,
        "leader": NUMBERS[at] * 1000 + 1,
        "is_leader": True,
        "is_home": home == at,
        "epoch": 1,
        "log_start": 0,
        "high_watermark": end,
        "home_high_watermark": heard,
        "lag_records": max(0, heard - end),
        "lag_ms": 0.0,
    }


def session(role: str, other: str, *, state: str = "idle", cause: str = "", records: int = 0, ms: float = 0.0) -> Json:
    return {
        "role": role,
        "stream": "t/0/0",
        "region": NUMBERS[other],
        "broker": NUMBERS[other] * 1000 + 1,
        "state": state,
        "cause": cause,
        "lag_records": records,
        "lag_bytes": 0,
        "lag_ms": ms,
    }


def link(other: str, *, is_open: bool = True, why: str = "") -> Json:
    return {"broker": NUMBERS[other] * 1000 + 1, "region": NUMBERS[other], "open": is_open, "last_failure": why}


def heard(
    at: str,
    *,
    streams: list[Json] | None = None,
    links: list[Json] | None = None,
    rtts_us: dict[str, int] | None = None,
) -> BrokerSample:
    status = {"ready": True, "controller": NUMBERS[at] * 1000 + 1, "streams": streams or [], "links": links or []}
    clocks = {"clocks": [{"region": other, "rtt_us": rtt_us} for other, rtt_us in (rtts_us or {}).items()]}
    return BrokerSample(at_ns=NOW_NS, status=status, clocks=clocks, last_status=status, last_at_ns=NOW_NS)


def silent(last: BrokerSample | None = None, why: str = "connection refused") -> BrokerSample:
    return BrokerSample(
        at_ns=NOW_NS,
        status=None,
        error=why,
        last_status=None if last is None else last.status,
        last_at_ns=0 if last is None else NOW_NS - 4_000_000_000,
    )


def mesh(live: Json | None = None, homes: list[Json] | None = None, **brokers: BrokerSample) -> MeshSamples:
    """Return samples of one broker per named region."""
    return MeshSamples(
        mesh="mesh-1",
        regions=tuple(ranked(name, ready=sample.status is not None) for name, sample in brokers.items()),
        brokers={NUMBERS[name] * 1000 + 1: sample for name, sample in brokers.items()},
        homes=homes or [],
        live=live,
        now_ns=NOW_NS,
        now_s=1_000_000.0,
    )
