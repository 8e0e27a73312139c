"""Deliveries of queues in the traces: how long they took, which one it was, and nothing that looks lost or twice."""

from __future__ import annotations

from typing import Any

import pytest

from region.queues import delivery_traces


class Session:
    def __init__(self, **about: Any) -> None:
        self.about = about
        self.next_offset = about["offset"]
        self.live_since_ns: int | None = None
        self.rows: list[dict[str, Any]] = []

    def caught_up(self, now_ns: int) -> None:
        self.live_since_ns = self.live_since_ns or now_ns

    def delivered(self, **row: Any) -> None:
        assert row["base_offset"] == self.next_offset, "a session has no gap"
        self.next_offset += row["record_count"]
        self.rows.append(row)


class Recorder:
    def __init__(self) -> None:
        self.sessions: list[Session] = []

    def open_session(self, **about: Any) -> Session:
        self.sessions.append(Session(**about))
        return self.sessions[-1]

    def rows(self) -> list[tuple[int, int]]:
        return [(row["base_offset"], row["attempt"]) for session in self.sessions for row in session.rows]


@pytest.fixture
def recorder(scene: Any) -> Recorder:
    scene.traces.recorder = Recorder()
    made: Recorder = scene.traces.recorder
    return made


async def test_a_delivery_says_where_and_when_its_record_came_into_the_mesh(scene: Any, recorder: Recorder) -> None:
    await scene.make()
    await scene.publish("a")
    published_ns = scene.clock.wall_ns()
    await scene.pass_s(2)
    await scene.receive()
    (session,) = recorder.sessions
    assert session.about == {"topic": "orders", "origin": 0, "partition": 0, "offset": 0, "group": "q"}
    (row,) = session.rows
    assert (row["epoch"], row["entry_region"], row["attempt"], row["record_count"]) == (1, 3, 1, 1)
    assert row["delivered_ns"] - row["received_ns"] == pytest.approx(2_005_000_000, abs=2_000)
    assert session.live_since_ns is not None and session.live_since_ns <= published_ns
    assert row["size_bytes"] == 1


async def test_a_record_that_is_given_out_again_is_another_attempt(scene: Any, recorder: Recorder) -> None:
    await scene.make()
    await scene.publish("a", "b")
    rows = await scene.receive(count=1)
    await scene.codes("reject", rows)
    await scene.receive("c", 1)
    assert recorder.rows() == [(0, 1), (0, 2)]


async def test_consumers_that_share_a_queue_have_sessions_without_gaps(scene: Any, recorder: Recorder) -> None:
    await scene.make()
    await scene.publish("a", "b", "c", "d")
    for consumer in ("one", "two", "one", "one"):
        await scene.receive(consumer, 1)
    assert [(session.about["offset"], len(session.rows)) for session in recorder.sessions] == [(0, 1), (1, 1), (2, 2)]


async def test_a_delayed_record_is_counted_and_its_latency_is_not(scene: Any, recorder: Recorder) -> None:
    await scene.make(delay_ms=1_000)
    await scene.publish("a")
    await scene.pass_s(2)
    await scene.receive()
    (session,) = recorder.sessions
    assert (len(session.rows), session.live_since_ns) == (1, None)


async def test_what_nobody_waited_for_any_more_was_not_delivered(scene: Any, recorder: Recorder, settled: Any) -> None:
    await scene.make()
    receiving = scene.receiving(wait_ms=30_000)
    await settled()
    receiving.cancel()
    await scene.publish("a")
    await settled()
    assert recorder.rows() == []


async def test_sessions_that_are_remembered_are_bounded(
    scene: Any, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_traces, "SESSIONS_PER_QUEUE_MAX", 2)
    await scene.make()
    await scene.publish(*"abcd")
    for consumer in ("one", "two", "three"):
        await scene.receive(consumer, 1)
    live = scene.part.live("q")
    assert [key[0] for key in live.traces._sessions] == ["two", "three"]
