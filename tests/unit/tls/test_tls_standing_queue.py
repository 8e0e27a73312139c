"""Calls that wait for each other: new ones are refused at once, with a code and a count, until the line is short."""

from __future__ import annotations

import asyncio
import heapq
import random
from typing import Any

import grpc
import pytest

from mesh.listening import standing_queue_core
from mesh.listening.admission_core import AdmissionCounters, AdmissionLimits, Refusal
from mesh.listening.grpc_limits import CallLimits
from mesh.listening.limited_handlers import LimitedHandlers
from mesh.listening.standing_queue_core import (
    EMPTY_WINDOWS_MAX,
    OPEN_MIN,
    TARGET_NS,
    WINDOW_NS,
    Begun,
    StandingQueue,
)

MS = 1_000_000


class Server:
    """Gets one call done every `each_ms`, each on a way of `way_ms`.

    It is offered one every `offered_ms` for so long, in the last two thirds one every `then_ms`.
    """

    def __init__(
        self,
        *,
        each_ms: float,
        offered_ms: float,
        seconds: float,
        burst: int = 0,
        way_ms: float = 0,
        then_ms: float | None = None,
    ) -> None:
        queue, now_ns, ready_ns = StandingQueue(), 0, 0.0
        self.refused, self.waits_ms = 0, []
        open_: list[tuple[Begun, int]] = []  # with when it ends
        offers, at_ms = [0] * burst, 0.0
        while at_ms < seconds * 1000:
            offers.append(int(at_ms * MS))
            at_ms += offered_ms if then_ms is None or at_ms < seconds * 1000 / 3 else then_ms
        for now_ns in offers:
            while open_ and open_[0][1] <= now_ns:
                begun, ends_ns = open_.pop(0)
                queue.end(begun, ends_ns, is_done=True)
                self.waits_ms.append((ends_ns - begun.began_ns) / MS)
            if queue.is_over(now_ns):
                self.refused += 1
                continue
            ready_ns = max(ready_ns, now_ns) + each_ms * MS
            open_.append((queue.begin(now_ns), int(ready_ns + way_ms * MS)))


def test_within_its_capacity_nothing_is_refused_whatever_bursts_there_are() -> None:
    assert Server(each_ms=1.0, offered_ms=1.25, seconds=5).refused == 0
    assert Server(each_ms=1.0, offered_ms=2.0, seconds=5, burst=450).refused == 0


@pytest.mark.parametrize("load", [1.2, 2, 4])
def test_beyond_its_capacity_what_is_let_in_waits_little_and_the_server_is_never_idle(load: float) -> None:
    server = Server(each_ms=2.0, offered_ms=2.0 / load, seconds=20)
    waits_ms = sorted(server.waits_ms)
    assert waits_ms[len(waits_ms) // 2] < 1.5 * TARGET_NS / MS
    assert waits_ms[len(waits_ms) * 9 // 10] < 2 * TARGET_NS / MS
    assert len(server.waits_ms) > 0.9 * 20_000 / 2.0  # done: nearly all that it can do


def test_a_load_beyond_capacity_that_comes_all_at_once_makes_nobody_wait_much_longer() -> None:
    """1,000 calls a second where 400 are done, after a quiet time."""
    server = Server(each_ms=2.5, offered_ms=10, then_ms=1, seconds=6)
    assert max(server.waits_ms) < 1.6 * TARGET_NS / MS


@pytest.mark.parametrize("quiet_ms", [2.0, 10.0, 100.0])
def test_many_calls_to_a_far_home_that_come_all_at_once_are_no_line(quiet_ms: float) -> None:
    assert Server(each_ms=0, way_ms=350, offered_ms=quiet_ms, then_ms=0.5, seconds=6).refused == 0


def test_when_less_is_offered_again_nothing_is_refused_any_more() -> None:
    queue, at_ns = StandingQueue(), 0
    open_ = [queue.begin(0) for _ in range(2 * OPEN_MIN)]
    for at_ns in range(WINDOW_NS, 2 * TARGET_NS, WINDOW_NS):
        queue.end(open_.pop(0), at_ns, is_done=True)
    at_ns += WINDOW_NS
    assert queue.is_over(at_ns)
    for begun in open_:
        queue.end(begun, at_ns, is_done=True)
    for _ in range(3):  # windows
        at_ns += WINDOW_NS
        queue.end(queue.begin(at_ns), at_ns + 1, is_done=True)
    for _ in range(2 * OPEN_MIN):
        assert not queue.is_over(at_ns + WINDOW_NS)
        queue.begin(at_ns + WINDOW_NS)


def test_calls_that_hang_begin_no_limit_also_when_they_end_at_last_and_end_one() -> None:
    queue = StandingQueue()
    hung = [queue.begin(0) for _ in range(10 * OPEN_MIN)]
    assert not queue.is_over(10 * WINDOW_NS)  # they hang, and nothing is known of others
    queue.end(hung[0], 10 * WINDOW_NS, is_done=True)
    assert not queue.is_over(11 * WINDOW_NS)  # a leader is there again: the oldest came first
    queue.end(hung[1], 11 * WINDOW_NS, is_done=True)
    assert queue.is_over(12 * WINDOW_NS)  # they go on like that
    queue.end(queue.begin(12 * WINDOW_NS), 12 * WINDOW_NS, is_done=False)  # what fails at once says nothing
    assert queue.is_over(13 * WINDOW_NS)
    assert not queue.is_over((13 + EMPTY_WINDOWS_MAX) * WINDOW_NS)


def refused_beside_hung(*, hung_per_s: int, healthy_per_s: int, seconds: int = 20) -> int:
    """Return how many healthy calls of some 5 ms are refused while others come that fail after 10 s."""
    chance, queue, refused = random.Random(0), StandingQueue(), 0
    todo: list[tuple[float, int, bool, Begun | None]] = []  # when, what number, whether it hangs, once it was let in
    for number in range(hung_per_s * (seconds - 3)):
        todo.append((chance.uniform(3, seconds), number, True, None))
    for number in range(healthy_per_s * seconds):
        todo.append((chance.uniform(0, seconds), -1 - number, False, None))
    heapq.heapify(todo)
    while todo:
        at_s, number, is_hung, begun = heapq.heappop(todo)
        at_ns = int(at_s * 1000 * MS)
        if begun is not None:
            queue.end(begun, at_ns, is_done=not is_hung)
        elif queue.is_over(at_ns):
            refused += not is_hung
        else:
            takes_s = 10 if is_hung else 0.0025 + chance.expovariate(1 / 0.005)
            heapq.heappush(todo, (at_s + takes_s, number, is_hung, queue.begin(at_ns)))
    return refused


@pytest.mark.parametrize(
    ("hung_per_s", "healthy_per_s"), [(20, 10), (50, 10), (100, 10), (200, 20), (500, 10), (300, 40)]
)
def test_calls_that_hang_get_none_of_the_few_beside_them_refused(hung_per_s: int, healthy_per_s: int) -> None:
    assert refused_beside_hung(hung_per_s=hung_per_s, healthy_per_s=healthy_per_s) == 0


def test_a_few_calls_that_take_long_by_themselves_are_no_line() -> None:
    queue = StandingQueue()
    open_ = [queue.begin(0) for _ in range(OPEN_MIN - 1)]
    for at_ns in range(WINDOW_NS, 2 * TARGET_NS, WINDOW_NS):
        queue.end(open_.pop(0), at_ns, is_done=True)
        queue.begin(at_ns)
    assert not queue.is_over(2 * TARGET_NS)


def test_calls_that_nobody_has_seen_yet_are_in_the_line_too() -> None:
    queue = StandingQueue()
    open_ = [queue.begin(0) for _ in range(OPEN_MIN)]
    queue.end(open_[0], MS, is_done=True)  # quick, once it was seen
    queue.begin(MS)
    for at_ns in (0, WINDOW_NS):
        is_over = queue.is_over(at_ns, waiting=OPEN_MIN)
    assert is_over  # a window sees one call, and so many wait
    assert not queue.is_over(WINDOW_NS, waiting=-OPEN_MIN)


class Caller:
    """The context of a call."""

    def __init__(self, **metadata: str) -> None:
        self._metadata = tuple((name.replace("_", "-"), value) for name, value in metadata.items())
        self.trailers: dict[str, str] = {}

    def peer(self) -> str:
        return "ipv4:10.0.0.1:1"

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._metadata

    async def abort(self, code: grpc.StatusCode, text: str, trailers: tuple[tuple[str, str], ...]) -> None:
        self.trailers = dict(trailers)
        raise ConnectionAbortedError(code.name)


async def test_a_publish_beyond_capacity_is_refused_with_a_code_and_counted_and_one_for_many_regions_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("TARGET_NS", "OPEN_MIN"):
        monkeypatch.setattr(standing_queue_core, name, 0)
    monkeypatch.setattr(standing_queue_core, "WINDOW_NS", 1)
    monkeypatch.setattr(standing_queue_core, "EMPTY_WINDOWS_MAX", 1 << 62)
    counters = AdmissionCounters()
    limits = CallLimits(AdmissionLimits(), counters, quick_methods={"/b.B/Publish"})

    async def publish(_: bytes, __: Any) -> bytes:
        await asyncio.sleep(0)
        return b"id"

    table = grpc.method_handlers_generic_handler("b.B", {"Publish": grpc.unary_unary_rpc_method_handler(publish)})
    handlers = LimitedHandlers([table], limits)

    class Details:
        method = "/b.B/Publish"

    wrapped = handlers.service(Details)
    assert await wrapped.unary_unary(b"", Caller()) == b"id"
    late = Caller()
    with pytest.raises(ConnectionAbortedError, match="RESOURCE_EXHAUSTED"):
        await wrapped.unary_unary(b"", late)
    assert late.trailers == {"georelay-code": "BUSY", "georelay-outcome": "not_stored"}
    assert counters.refused == {Refusal.OVERLOADED: 1}
    assert await wrapped.unary_unary(b"", Caller(georelay_durability="geo:2")) == b"id"
    assert handlers.service(Details) is wrapped  # nothing is made per call
