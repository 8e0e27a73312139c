"""Whatever a path and two clocks do, the true offset is within the bound, and no verdict is wrong.

A world has one true time. Each clock is wrong by a constant and drifts; each way of each exchange takes its own time.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from hypothesis import example, given
from hypothesis import strategies as st

from georelay.ids import BrokerId, RegionNumber
from georelay.trace.histogram import GOOD_US_MAX
from georelay.trace.kinds import TraceKind
from georelay.trace.schema import RECORDED_COLUMNS
from mesh.clock.book_core import ClockBook
from mesh.clock.clock_core import PeerClock
from mesh.clock.estimate import Exchange
from mesh.tracing.latency_cells_core import UNKNOWN_CLOCK, Correction
from mesh.tracing.recorder_core import RecorderCore

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
EPOCH_NS = 1_700_000_000 * NS_PER_S


@dataclass(frozen=True, slots=True)
class Wrong:
    """A wall clock that was off by `by_ns` at true time 0 and gains `ppm`."""

    by_ns: int
    ppm: int

    def at(self, true_ns: int) -> int:
        return EPOCH_NS + true_ns + self.by_ns + true_ns * self.ppm // 1_000_000


wrong_clocks = st.builds(Wrong, by_ns=st.integers(-80, 80).map(lambda ms: ms * NS_PER_MS), ppm=st.integers(-400, 400))
paths = st.fixed_dictionaries(
    {
        "floor_ms": st.integers(0, 150),
        "asymmetry_ms": st.integers(-20, 20),
        "jitter_ms": st.sampled_from([0, 1, 5, 40]),
        "loss": st.sampled_from([0.0, 0.2, 0.9]),
        "seed": st.integers(0, 2**32 - 1),
    }
)


def way_ns(rng: random.Random, path: dict[str, int], sign: int) -> int:
    """Return how long one way takes; the queue in front of it has no upper end."""
    floor_ms = max(0.0, path["floor_ms"] / 2 + sign * path["asymmetry_ms"] / 2)
    queue_ms = rng.expovariate(1 / path["jitter_ms"]) if path["jitter_ms"] else 0.0
    return int((floor_ms + queue_ms) * NS_PER_MS)


def ask(peer: PeerClock, true_ns: int, ours: Wrong, theirs: Wrong, out_ns: int, back_ns: int) -> int:
    """One exchange that begins at `true_ns`; returns when it is over."""
    arrived, over = true_ns + out_ns, true_ns + out_ns + back_ns
    peer.exchanged(
        Exchange(
            t1_ns=ours.at(true_ns), t2_ns=theirs.at(arrived), t3_ns=theirs.at(arrived), t4_ns=ours.at(over),
            # A broker's monotonic clock ticks like its wall clock: the same crystal.
            monotonic1_ns=ours.at(true_ns) - EPOCH_NS + 10**15, monotonic4_ns=ours.at(over) - EPOCH_NS + 10**15,
            spread_us=0,
        )
    )  # fmt: skip
    return over


@given(ours=wrong_clocks, theirs=wrong_clocks, path=paths, seconds=st.integers(1, 90))
@example(  # all of the way is one way, and the clocks run apart during it
    ours=Wrong(0, -177),
    theirs=Wrong(0, 395),
    path={"floor_ms": 0, "asymmetry_ms": -14, "jitter_ms": 0, "loss": 0.0, "seed": 0},
    seconds=1,
)
def test_the_true_offset_is_always_within_the_bound(
    ours: Wrong, theirs: Wrong, path: dict[str, int], seconds: int
) -> None:
    rng = random.Random(path["seed"])
    peer = PeerClock()
    for second in range(seconds):
        if rng.random() < path["loss"]:
            continue
        over = ask(peer, second * NS_PER_S, ours, theirs, way_ns(rng, path, 1), way_ns(rng, path, -1))
        for later_ns in (over, over + NS_PER_S, over + 30 * NS_PER_S):
            wall_ns = ours.at(later_ns)
            found = peer.estimate(wall_ns=wall_ns, monotonic_ns=wall_ns - EPOCH_NS + 10**15)
            true_us = (theirs.at(later_ns) - wall_ns) / 1_000
            if found is not None:
                assert abs(found.offset_us - true_us) <= found.error_us, (second, later_ns - over)
    assert peer.steps == 0


@given(
    ours=wrong_clocks,
    theirs=wrong_clocks,
    path=paths,
    latencies_us=st.lists(st.integers(0, 200_000), min_size=1, max_size=50),
)
def test_clocks_that_are_wrong_by_80_ms_give_no_wrong_verdict(
    ours: Wrong, theirs: Wrong, path: dict[str, int], latencies_us: list[int]
) -> None:
    """`n_good_lo` counts no record that was slow, and `n_good_hi` misses none that was in time.

    So a share of at least the target in `n_good_lo` is one in truth (meets), one below it in `n_good_hi` is none
    (violates), and everything between is undecidable: no verdict is wrong.
    """
    rng = random.Random(path["seed"])
    book = ClockBook(region=RegionNumber(2), broker=BrokerId(2001))
    peer = PeerClock()
    book._clocks[BrokerId(1001)] = peer
    peer.spread_us = 0
    now_ns = 0
    for second in range(20):
        now_ns = ask(peer, second * NS_PER_S, ours, theirs, way_ns(rng, path, 1), way_ns(rng, path, -1))

    def correction(region: int) -> Correction:
        wall_ns = ours.at(now_ns)
        book.move_to(wall_ns=wall_ns, monotonic_ns=wall_ns - EPOCH_NS + 10**15)
        found = book.offset_to(region, for_ns=2 * NS_PER_S)
        return UNKNOWN_CLOCK if found is None else Correction(found.offset_us, found.error_us)

    core = RecorderCore(region="eu", broker=2001, first_session=0, region_name=str, correction=correction)
    session = core.open_session(topic="orders", origin=0, partition=0, offset=0)
    session.caught_up(0)
    for offset, latency_us in enumerate(latencies_us):
        published_ns = now_ns + offset * 10_000_000  # the estimate is used for as long as a histogram is open
        session.delivered(
            epoch=1, base_offset=offset, record_count=1, entry_region=1, received_ns=theirs.at(published_ns),
            delivered_ns=ours.at(published_ns + latency_us * 1_000),
        )  # fmt: skip
    rows = core.drain(0, final=True).finished()[TraceKind.LATENCY_HIST]
    low, good, high = (
        sum(row[RECORDED_COLUMNS[TraceKind.LATENCY_HIST].index(name)] for row in rows)
        for name in ("n_good_lo", "n_good", "n_good_hi")
    )
    truly_good = sum(latency_us <= GOOD_US_MAX for latency_us in latencies_us)
    assert low <= truly_good <= high
    assert low <= good <= high
    assert core.cells.impossible_latencies == 0


@given(ours=wrong_clocks, theirs=wrong_clocks, path=paths, step_ms=st.integers(-500, 500), at=st.integers(1, 30))
def test_a_clock_that_is_set_is_within_the_bound_again_once_it_is_noticed(
    ours: Wrong, theirs: Wrong, path: dict[str, int], step_ms: int, at: int
) -> None:
    """Unnoticed steps are those that the round trip cannot show; then the bound may be wrong until it has grown."""
    rng = random.Random(path["seed"])
    peer = PeerClock()
    for second in range(at):
        ask(peer, second * NS_PER_S, ours, theirs, way_ns(rng, path, 1), way_ns(rng, path, -1))
    stepped = Wrong(by_ns=theirs.by_ns + step_ms * NS_PER_MS, ppm=theirs.ppm)
    over = ask(peer, at * NS_PER_S, ours, stepped, way_ns(rng, path, 1), way_ns(rng, path, -1))
    if peer.steps == 0:
        return
    wall_ns = ours.at(over)
    found = peer.estimate(wall_ns=wall_ns, monotonic_ns=wall_ns - EPOCH_NS + 10**15)
    if found is not None:
        assert abs(found.offset_us - (stepped.at(over) - wall_ns) / 1_000) <= found.error_us
