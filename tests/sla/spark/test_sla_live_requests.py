"""Requests in the live view: as brokers saw them and, apart, as gateways did, refused ones among them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadMaxRows

from georelay.trace.files import GATEWAY_WRITER_FIRST
from georelay.trace.kinds import TraceKind
from mesh.tracing.pages_http import TracePages
from mesh.tracing.recorder_core import Drained
from mesh.tracing.shelf import TraceShelf
from mesh.tracing.writer import TraceWriter
from mesh.tracing.written import Identity
from sla.live import requests_core
from sla.live.reaching import Credentials, find_brokers
from sla.live.requests_core import MINUTE_S, WINDOW_S, RequestCounts, RequestState
from sla.live.state_core import BatchCounts, LiveState, advance
from sla.live.status_core import live_document
from sla.sources.broker import LiveReader, StreamOptions
from tests.sla.live_brokers import START_S, TracedBroker, serving

NUMBER = GATEWAY_WRITER_FIRST + 7
GATEWAY = f"us/{NUMBER}"
NOW = START_S + 600
EMPTY: dict[str, Any] = {"rows": {}, "newest_s": {}, "minutes": {}, "late": {}}


class TracedGateway:
    """A gateway that names brokers and serves rows of outcomes."""

    def __init__(self, directory: Path) -> None:
        self.brokers: list[str] = []
        self.is_older = False
        self._writer = TraceWriter(
            directory=directory,
            identity=Identity(region="us", broker=NUMBER, boot_id="g1"),
            clock_ns=lambda: START_S * 10**9,
            roll_period_s=1e9,
            slow_roll_period_s=1e9,
        )
        self._pages = TracePages(
            TraceShelf(directory, region="us", broker=NUMBER),
            writer={"region": "us", "broker": NUMBER, "gateway": "edge-1"},
            kinds=(TraceKind.OUTCOME,),
        )

    def outcome(self, second: int, *, ok: int, client_error: int = 0, server_error: int = 0) -> None:
        attempts = ok + client_error + server_error
        row = (second, "us", "edge-1", "publish", attempts, ok, client_error, server_error, 0, attempts)
        self._writer.take(Drained(rows={TraceKind.OUTCOME: [row]}))

    def app(self) -> web.Application:
        async def resolve(_: web.Request) -> web.Response:
            return web.json_response({"mesh": "m", "regions": [{"region": "us", "http": self.brokers}]})

        app = web.Application()
        app.router.add_get("/v1/resolve", resolve)
        if not self.is_older:
            app.router.add_get("/v1/traces", self._pages.positions)
            app.router.add_get("/v1/traces/{kind}/end", self._pages.end)
            app.router.add_get("/v1/traces/{kind}", self._pages.page)
        return app


def outcomes_of_broker(broker: TracedBroker, second: int, ok: int) -> None:
    broker.write(TraceKind.OUTCOME, [(second, broker.region, "", "publish", ok, ok, 0, 0, 0, ok)])


@pytest.fixture
def eu(tmp_path: Path) -> Iterator[tuple[TracedBroker, str]]:
    broker = TracedBroker(tmp_path / "eu", "eu/2001")
    with serving(broker.app()) as (address,):
        yield broker, address


def test_a_gateway_that_writes_traces_is_read_beside_the_brokers_that_it_names(
    eu: tuple[TracedBroker, str], tmp_path: Path
) -> None:
    broker, address = eu
    gateway = TracedGateway(tmp_path / "gateway")
    gateway.brokers = [address]
    outcomes_of_broker(broker, START_S, 4)
    broker.probe(START_S, "us")
    gateway.outcome(START_S, ok=4, client_error=3)
    with serving(gateway.app()) as (edge,):
        found, silent = find_brokers([f"http://{edge}"], Credentials())
        assert {name: each.gateway for name, each in found.items()} == {"eu/2001": "", GATEWAY: "edge-1"}
        assert silent == []
        options = {"urls": f"http://{edge}", "kinds": "probe,outcome", "begin": "oldest"}
        reader = LiveReader(StreamOptions.of(options))
        end = reader.latestOffset({}, ReadMaxRows(100))
        assert end[GATEWAY] == {"outcome": "g1/1", "outcome.since": "g1/0"}
        pieces = [(piece.broker.name, piece.kind.value) for piece in reader.partitions({}, end)]
        assert pieces == [("eu/2001", "probe"), ("eu/2001", "outcome"), (GATEWAY, "outcome")]
        assert GATEWAY not in LiveReader(StreamOptions.of(options | {"kinds": "probe"})).latestOffset(
            {}, ReadMaxRows(9)
        )


def test_a_gateway_that_serves_no_traces_is_no_reason_for_anything(
    eu: tuple[TracedBroker, str], tmp_path: Path
) -> None:
    gateway = TracedGateway(tmp_path / "gateway")
    gateway.brokers, gateway.is_older = [eu[1]], True
    with serving(gateway.app()) as (edge,):
        found, silent = find_brokers([f"http://{edge}"], Credentials())
    assert (sorted(found), silent) == (["eu/2001"], [])


@pytest.mark.slow
def test_what_a_gateway_refused_is_in_the_live_view(spark: Any, eu: tuple[TracedBroker, str], tmp_path: Path) -> None:
    from sla.jobs.live import LiveRequest, run_live

    assert spark is not None
    broker, address = eu
    gateway = TracedGateway(tmp_path / "gateway")
    gateway.brokers = [address]
    for second in range(START_S, START_S + 90):
        outcomes_of_broker(broker, second, 10)
        gateway.outcome(second, ok=8, client_error=2, server_error=1)
    broker.latencies(START_S, "us", [5_000, 60_000])
    broker.latencies(START_S, "us", [5_000], stage="deliver")
    broker.probe(START_S, "us", "lost")
    with serving(gateway.app()) as (edge,):
        request = LiveRequest(
            sources=(f"http://{edge}",), checkpoint=tmp_path / "live", is_once=True, is_from_oldest=True,
            rows_per_batch=480,
        )  # fmt: skip
        state = run_live(request)
    assert state.rows == {"latency_hist": 2, "outcome": 180, "probe": 1}
    assert state.batch == 1, "two batches: the second one begins with what the first one counted"
    pair = state.totals["us", "eu"]
    assert (pair.n, pair.n_good, pair.probes_bad, state.late_rows) == (2, 1, 1, 0)
    document = json.loads((tmp_path / "live/live.json").read_text())
    seen = {(row["region"], row["gateway"], row["op"]): row["since_start"] for row in document["requests"]}
    nothing = {"client_error": 0, "server_error": 0, "timeout": 0}
    assert seen == {
        ("eu", "", "publish"): {"attempts": 900, "ok": 900, **nothing},
        ("us", "edge-1", "publish"): {
            "attempts": 990, "ok": 720, "client_error": 180, "server_error": 90, "timeout": 0,
        },
    }  # fmt: skip
    assert [row["region"] for row in document["regions"]] == ["eu"]
    assert [(row["gateway"], row["newest_s"]) for row in document["gateways"]] == [("edge-1", START_S + 89)]


def minute(key: tuple[str, str, str], minute_s: int, count: int) -> dict[Any, RequestCounts]:
    return {(minute_s, *key): RequestCounts(attempts=count, ok=count)}


KEYS = st.tuples(
    st.sampled_from(["us", "eu"]), st.sampled_from(["", "edge-1"]), st.sampled_from(["publish", "connect"])
)
MINUTES = st.integers(-40, 40).map(lambda number: START_S + number * MINUTE_S)


@given(st.lists(st.tuples(KEYS, MINUTES, st.integers(0, 9)), max_size=30))
def test_totals_are_exact_and_minutes_are_those_near_the_clock(batches: list[Any]) -> None:
    state = RequestState()
    for key, minute_s, count in batches:
        state = state.after(minute(key, minute_s, count), now_s=START_S)
    for key in {key for key, _, _ in batches}:
        assert state.totals[key].attempts == sum(count for each, _, count in batches if each == key)
        near = [c for each, at, c in batches if each == key and abs(at - START_S) <= WINDOW_S + MINUTE_S]
        assert sum(c.attempts for (_, *of), c in state.minutes.items() if tuple(of) == key) == sum(near)
    assert RequestState.from_json(json.loads(json.dumps(state.to_json()))) == state


def test_minutes_are_bounded_by_forgetting_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests_core, "MINUTE_ROWS_MAX", 2)
    state = RequestState()
    for number in range(4):
        state = state.after(minute(("us", "", "publish"), START_S + number * MINUTE_S, 1), now_s=START_S)
    assert [key[0] - START_S for key in state.minutes] == [2 * MINUTE_S, 3 * MINUTE_S]
    assert state.totals["us", "", "publish"].attempts == 4


def test_a_state_from_before_requests_were_counted_is_read() -> None:
    document = json.loads(LiveState(batch=3).encode())
    del document["requests"]
    assert LiveState.decode(json.dumps(document).encode()) == LiveState(batch=3)


def test_an_old_gateway_degrades_the_view_and_no_region() -> None:
    requests = minute(("us", "edge-1", "publish"), NOW - 120, 5)
    batch = BatchCounts(
        **EMPTY | {"newest_s": {(GATEWAY, "outcome"): NOW - 100, ("us/1001", "clock"): NOW - 1}}, requests=requests
    )
    state, _ = advance(LiveState(), batch, number=0, now_s=NOW, delay_s=60)
    document = live_document(
        LiveState.decode(state.encode()),
        known=[GATEWAY, "us/1001"],
        gateways={GATEWAY: "edge-1"},
        now_s=NOW,
        stale_s=30,
    )
    assert (document["state"], document["reasons"]) == (
        "degraded",
        ["gateway edge-1 of region us: newest traces are 100 s old"],
    )
    assert [(row["region"], row["state"]) for row in document["regions"]] == [("us", "live")]
    (row,) = document["requests"]
    assert (row["gateway"], row["last_5m"]["attempts"], row["since_start"]["attempts"]) == ("edge-1", 5, 5)
    forgotten = live_document(state, known=["us/1001"], now_s=NOW + 3_600, stale_s=30)
    assert forgotten["gateways"] == []
    assert forgotten["requests"][0]["last_5m"]["attempts"] == 0
