"""The live view's state: every record in the totals once, late ones apart, and what is shown says how old it is."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import PySparkRuntimeError, StreamingQueryException

from sla.errors import JobFailed, UsageError
from sla.jobs import live as live_job
from sla.jobs.live import LiveRequest, LiveView, run_live
from sla.live import state_core
from sla.live.reaching import Broker
from sla.live.state_core import MINUTE_S, WINDOW_S, BatchCounts, Counts, LiveState, MinuteKey, advance
from sla.live.status_core import live_document
from sla.live.store import KEPT_S, LiveStore

M = 1_700_000_040  # the start of a minute
NOW = M + 10 * MINUTE_S
PAIR = ("us", "eu")


def counts(n: int, *, good: int | None = None, bucket: int = 400) -> Counts:
    in_time = n if good is None else good
    return Counts(
        n=n, n_good=in_time, n_good_lo=in_time, n_good_hi=n, lat_sum_us=n * 5_000, lat_max_us=6_000, hist={bucket: n}
    )


def batch(
    minutes: Mapping[int, int] | None = None,
    *,
    newest: Mapping[str, int] | None = None,
    late: int = 0,
    kind: str = "latency_hist",
) -> BatchCounts:
    """Return a batch with records per minute (counted from M); `newest`: broker -> seconds after M."""
    return BatchCounts(
        rows={kind: len(minutes or {})},
        newest_s={(name, kind): M + second for name, second in (newest or {}).items()},
        minutes={(M + MINUTE_S * minute, *PAIR): counts(n) for minute, n in (minutes or {}).items()},
        late={PAIR: counts(late)} if late else {},
        late_rows=late,
    )


def run(*batches: BatchCounts, delay_s: int = 60, now_s: int = NOW) -> tuple[LiveState, dict[MinuteKey, Counts]]:
    state = LiveState()
    closed: dict[MinuteKey, Counts] = {}
    for number, each in enumerate(batches):
        state, now_closed = advance(state, each, number=number, now_s=now_s, delay_s=delay_s)
        assert not closed.keys() & now_closed.keys(), "a minute is closed once"
        closed |= now_closed
    return state, closed


def test_rows_of_a_minute_add_up_over_batches_and_close_when_the_watermark_passed() -> None:
    state, closed = run(
        batch({0: 3}, newest={"eu/1": 50}),
        batch({0: 2, 1: 4}, newest={"eu/1": 100}),
        batch({2: 1}, newest={"eu/1": 130}),
    )
    assert state.watermark_s == M + 70
    assert {key[0] - M: c.n for key, c in closed.items()} == {0: 5}
    assert state.totals[PAIR].n == 10
    assert state.totals[PAIR].hist == {}
    assert state.minutes[M, *PAIR].hist == {400: 5}


def test_late_records_are_in_the_totals_and_in_no_minute() -> None:
    state, closed = run(batch({0: 3}, newest={"eu/1": 200}), batch({3: 1}, newest={"eu/1": 201}, late=4))
    assert (state.totals[PAIR].n, state.late[PAIR].n, state.late_rows) == (8, 4, 4)
    assert sum(c.n for c in closed.values()) + sum(c.n for k, c in state.minutes.items() if k not in closed) == 4


def test_a_silent_broker_holds_nothing_back_and_one_that_catches_up_does() -> None:
    _, closed = run(batch({0: 1}, newest={"eu/1": 10, "us/1": 10}), batch({3: 1}, newest={"eu/1": 200}))
    assert [key[0] - M for key in closed] == [0]
    state, closed = run(batch({0: 1, 3: 1}, newest={"eu/1": 200, "us/1": 20}))
    assert (closed, state.watermark_s) == ({}, M - 40)


def test_clock_rows_move_no_watermark() -> None:
    state, _ = run(batch(newest={"eu/1": 500}, kind="clock"))
    assert state.watermark_s == 0
    assert state.newest_s == {"eu/1": {"clock": M + 500}}


def test_a_clock_that_is_ahead_closes_nothing_of_the_future() -> None:
    state, _ = run(batch({0: 1}, newest={"eu/1": 10**9}))
    assert state.watermark_s == NOW - 60


def test_the_watermark_never_goes_back() -> None:
    state, _ = run(batch({2: 1}, newest={"eu/1": 300}), batch({5: 1}, newest={"us/1": 10}))
    assert state.watermark_s == M + 240


def test_open_minutes_are_bounded_by_closing_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_core, "OPEN_ROWS_MAX", 3)
    state, closed = run(batch(dict.fromkeys(range(5), 1), newest={"eu/1": 0}))
    assert sorted(key[0] - M for key in closed) == [0, MINUTE_S]
    assert state.watermark_s == M + 2 * MINUTE_S


def test_closed_minutes_are_shown_for_a_while_and_then_forgotten() -> None:
    last = WINDOW_S // MINUTE_S + 5
    state, _ = run(
        batch({0: 1}, newest={"eu/1": 30}),
        batch({last: 1}, newest={"eu/1": last * MINUTE_S + 59}),
        now_s=M + last * MINUTE_S + 60,
    )
    assert [key[0] for key in state.minutes] == [M + last * MINUTE_S]


@given(st.lists(st.dictionaries(st.integers(0, 8), st.integers(1, 50), max_size=3), max_size=8), st.integers(0, 300))
def test_however_rows_are_batched_every_record_is_counted_once(made: list[dict[int, int]], delay_s: int) -> None:
    state, sent = LiveState(), 0
    closed: dict[MinuteKey, Counts] = {}
    for number, minutes in enumerate(made):
        late = sum(n for minute, n in minutes.items() if state.is_closed(M + minute * MINUTE_S))
        on_time = {minute: n for minute, n in minutes.items() if not state.is_closed(M + minute * MINUTE_S)}
        each = batch(on_time, newest={"eu/1": max(minutes, default=0) * MINUTE_S + 30}, late=late)
        state, now_closed = advance(state, each, number=number, now_s=NOW, delay_s=delay_s)
        closed |= now_closed
        sent += sum(minutes.values())
    still_open = sum(c.n for key, c in state.minutes.items() if not state.is_closed(key[0]))
    late_n = state.late[PAIR].n if PAIR in state.late else 0
    assert sum(c.n for c in closed.values()) + still_open + late_n == sent
    assert (state.totals[PAIR].n if sent else 0) == sent
    assert LiveState.decode(state.encode()) == state


def test_a_batch_that_is_done_again_makes_the_same_state() -> None:
    before, _ = run(batch({0: 3}, newest={"eu/1": 50}))
    kept = before.encode()
    again = [
        advance(before, batch({0: 2, 1: 1}, newest={"eu/1": 70}), number=1, now_s=NOW, delay_s=9) for _ in range(2)
    ]
    assert again[0] == again[1]
    assert before.encode() == kept


@pytest.mark.parametrize("raw", [b"", b"{}", b"[]", b'{"state_version": 2}', b'{"state_version": 1, "minutes": 3}'])
def test_bytes_that_are_no_state_are_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"Error|version|Expecting"):
        LiveState.decode(raw)


def show(state: LiveState, **changes: Any) -> dict[str, Any]:
    defaults: dict[str, Any] = {"known": ["eu/1"], "now_s": NOW, "stale_s": 30}
    return live_document(state, **(defaults | changes))


def test_a_fresh_mesh_is_live_and_its_pairs_have_counts_and_quantiles() -> None:
    state, _ = run(batch({7: 30_000, 9: 10_000}, newest={"eu/1": 595}))
    document = show(state)
    assert (document["state"], document["reasons"], document["schema_version"]) == ("live", [], 1)
    (region,) = document["regions"]
    assert (region["region"], region["state"], region["age_s"]) == ("eu", "live", 5)
    (pair,) = document["pairs"]
    assert (pair["origin"], pair["dest"], pair["state"]) == ("us", "eu", "live")
    assert (pair["last_5m"]["n"], pair["last_15m"]["n"], pair["since_start"]["n"]) == (40_000, 40_000, 40_000)
    assert pair["last_5m"]["p50_us"] == pair["last_5m"]["p99_9_us"] == 5_856
    assert show(state, now_s=NOW + 180)["pairs"][0]["last_5m"]["n"] == 10_000
    assert json.loads(json.dumps(document)) == document


def test_a_quantile_of_too_few_records_is_not_shown() -> None:
    state, _ = run(batch({9: 300}, newest={"eu/1": 595}))
    assert {name: state for name, state in show(state)["pairs"][0]["last_5m"].items() if name.startswith("p")} == {
        "probes_ok": 0, "probes_bad": 0, "p50_us": 5_856, "p99_us": None, "p99_9_us": None,
    }  # fmt: skip


def test_a_region_whose_traces_are_old_is_degraded_and_so_are_the_pairs_to_it() -> None:
    state, _ = run(batch({9: 1}, newest={"eu/1": 560, "us/1": 599}))
    document = show(state)
    assert {row["region"]: row["state"] for row in document["regions"]} == {"eu": "degraded", "us": "live"}
    assert document["reasons"] == ["region eu: newest traces are 40 s old"]
    assert (document["state"], document["pairs"][0]["state"]) == ("degraded", "degraded")


def test_a_known_broker_without_traces_and_an_address_without_answer_are_told() -> None:
    state, _ = run(batch({9: 1}, newest={"eu/1": 599}))
    document = show(state, known=["eu/1", "ap/3"], silent=["http://x:1: refused"], error="broker eu/1 does not answer")
    assert document["reasons"] == [
        "region ap: no traces yet",
        "http://x:1: refused",
        "broker eu/1 does not answer",
    ]
    assert show(LiveState(), known=[])["reasons"] == ["no broker was found"]


def test_a_broker_that_left_is_forgotten_after_an_hour() -> None:
    state, _ = run(batch({9: 1}, newest={"eu/1": 599, "eu/2": 500}), now_s=NOW)
    assert len(show(state)["regions"][0]["brokers"]) == 2
    document = show(state, now_s=M + 500 + 3_601, stale_s=10**6)
    assert [broker["broker"] for broker in document["regions"][0]["brokers"]] == ["1"]


def test_the_store_keeps_the_last_states_and_the_minutes_of_every_batch(tmp_path: Path) -> None:
    store = LiveStore(tmp_path)
    state = LiveState()
    with store.alone():
        assert store.newest() is None
        for number in range(6):
            store.commit(
                advance(state, batch({number: 1}, newest={"eu/1": 0}), number=number, now_s=NOW, delay_s=0)[0],
                {(M, *PAIR): counts(7)} if number == 2 else {},
            )
        assert store.newest() == 5
        assert store.state(4).batch == 4
        with pytest.raises(JobFailed, match="begin anew"):
            store.state(2)
    table = pq.read_table(tmp_path / "minutes").to_pylist()
    assert [(row["ts_s"], row["n"], row["hist"]) for row in table] == [(M, 7, [{"b": 400, "n": 7}])]


def test_a_batch_that_is_done_again_replaces_what_it_made(tmp_path: Path) -> None:
    store = LiveStore(tmp_path)
    state, _ = run(batch({0: 1}, newest={"eu/1": 0}))
    for n in (7, 9):
        store.commit(state, {(M, *PAIR): counts(n)})
    assert [row["n"] for row in pq.read_table(tmp_path / "minutes").to_pylist()] == [9]
    store.commit(state, {})
    assert list((tmp_path / "minutes").iterdir()) == []
    (tmp_path / "late" / "batch=00000000").mkdir(parents=True)
    assert not store.replace_late(0).exists()


def test_minutes_and_late_rows_are_deleted_after_a_day(tmp_path: Path) -> None:
    now_s = 10**9
    store = LiveStore(tmp_path, now_s=lambda: now_s)
    for number in (1, 2):
        store.commit(LiveState(batch=number), {(M, *PAIR): counts(1)})
    os.utime(tmp_path / "minutes" / "batch=00000001", (now_s - KEPT_S - 1,) * 2)
    os.utime(tmp_path / "minutes" / "batch=00000002", (now_s - KEPT_S + 1,) * 2)
    store.commit(LiveState(batch=100), {})
    assert [path.name for path in (tmp_path / "minutes").iterdir()] == ["batch=00000002"]


def test_a_directory_is_held_by_one_view_and_is_whole_or_refused(tmp_path: Path) -> None:
    store = LiveStore(tmp_path)
    with store.alone(), pytest.raises(UsageError, match="another live view"), LiveStore(tmp_path).alone():
        pass
    store.commit(LiveState(batch=0), {})
    with pytest.raises(UsageError, match="delete the whole directory"), store.alone():
        pass


class Query:
    """A query that ends as it is told: with an error, or by itself."""

    isActive = False  # noqa: N815

    def __init__(self, text: str) -> None:
        self._text = text

    def awaitTermination(self, _: float) -> bool:
        if self._text:
            raise StreamingQueryException(self._text)
        return True

    def stop(self) -> None:
        return None


def follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, endings: list[str], *, is_once: bool
) -> tuple[list[str], list[str]]:
    """Run a view whose queries end so, one after the other; return the endings left and what was said."""
    monkeypatch.setattr(live_job, "RESTART_S_MIN", 0.0)
    monkeypatch.setattr(live_job, "RESTART_S_MAX", 0.0)
    left, said = list(endings), list[str]()

    class Following(LiveView):
        def _begin(self) -> Any:
            ending = left.pop(0)
            if ending.startswith(NOT_BEGUN):
                raise PySparkRuntimeError(ending)
            return Query(ending)

    request = LiveRequest(sources=("http://x:1",), checkpoint=tmp_path, is_once=is_once)
    view = Following(request, LiveStore(tmp_path), spark=Any, brokers={}, silent=[])
    monkeypatch.setattr(LiveStore, "newest", lambda _: None)
    try:
        view.follow(said.append, lambda: not left)
    finally:
        view.show()
    return left, said


NOT_BEGUN = "[PYTHON_DATA_SOURCE_ERROR]"
BUSY = "[STREAM_FAILED] ... Python worker failed to connect back. SQLSTATE: XXKST"
AWAY = "sla.errors.JobFailed: broker eu/2001 does not answer: refused"
GONE = "georelay.errors.TracesExpired: http://x:1: position a/1 is gone"


def test_a_query_that_fails_is_begun_again_and_its_reason_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, said = follow(tmp_path, monkeypatch, [AWAY, BUSY, "", "unread"], is_once=False)
    assert left == []
    assert "waiting: broker eu/2001 does not answer: refused" in said


def test_before_the_first_rows_nothing_is_called_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = iter([False, True])
    monkeypatch.setattr(Query, "awaitTermination", lambda *_: next(turns))
    _, said = follow(tmp_path, monkeypatch, ["", "unread"], is_once=True)
    assert said == ["degraded: no traces yet"]


def test_rows_that_are_gone_end_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(JobFailed, match=r"^http://x:1: position a/1 is gone; delete .* to begin anew"):
        follow(tmp_path, monkeypatch, [GONE, "unread"], is_once=False)
    assert json.loads((tmp_path / "live.json").read_text())["reasons"][-1] == "http://x:1: position a/1 is gone"


def test_once_is_tried_again_only_when_the_machine_was_too_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert follow(tmp_path, monkeypatch, [BUSY, BUSY, "", "unread"], is_once=True)[0] == ["unread"]
    with pytest.raises(JobFailed, match="does not answer"):
        follow(tmp_path, monkeypatch, [AWAY, "unread"], is_once=True)
    with pytest.raises(JobFailed, match="connect back"):
        follow(tmp_path, monkeypatch, [BUSY] * 9, is_once=True)


@pytest.mark.parametrize("is_once", [True, False])
def test_a_query_that_cannot_be_begun_on_a_busy_machine_is_begun_again_and_any_other_ends_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_once: bool
) -> None:
    busy = f"{NOT_BEGUN} Python worker failed to connect back."
    assert follow(tmp_path, monkeypatch, [busy, "", "unread"], is_once=is_once)[0] == (["unread"] if is_once else [])
    with pytest.raises(JobFailed, match="the checkpoint is of another version"):
        follow(tmp_path, monkeypatch, [f"{NOT_BEGUN} the checkpoint is of another version", "unread"], is_once=is_once)
    assert "another version" in json.loads((tmp_path / "live.json").read_text())["reasons"][-1]


def test_a_jvm_that_dies_is_one_line_and_the_view_is_shown_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dead(Query):
        @property
        def isActive(self) -> bool:  # type: ignore[override]
            raise Py4JNetworkError("Answer from Java side is empty")

        def awaitTermination(self, _: float) -> bool:
            raise Py4JNetworkError("Answer from Java side is empty")

    class Sources:
        def register(self, _: Any) -> None:
            return None

    class Spark:
        dataSource = Sources()  # noqa: N815

    monkeypatch.setattr(live_job, "find_brokers", lambda *_: ({"eu/1": Broker(name="eu/1", url="http://x:1")}, []))
    monkeypatch.setattr(live_job, "build_session", lambda **_: Spark)
    monkeypatch.setattr(LiveView, "_begin", lambda _: Dead(""))
    with pytest.raises(JobFailed, match=r"Spark failed: .*Java side is empty.*spark\.log"):
        run_live(LiveRequest(sources=("http://x:1",), checkpoint=tmp_path, is_once=True))
    assert json.loads((tmp_path / "live.json").read_text())["state"] == "degraded"
