"""Any schedule of packets and any request: order is kept, a path is never faster than its delay, nobody crashes."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from mesh.testbed.control_core import BedControl
from mesh.testbed.path_core import Path, PathSettings
from mesh.testbed.plan_core import BedPlan, parse_wan
from mesh.testbed.router import paths_of

SETTINGS = st.builds(
    PathSettings,
    delay_us=st.integers(0, 200_000),
    jitter_us=st.integers(0, 20_000),
    loss_ppm=st.integers(0, 500_000),
    rate_bits_s=st.sampled_from((0, 10_000, 50_000_000)),
    queue_us=st.integers(0, 500_000),
)


@given(
    SETTINGS, st.lists(st.tuples(st.integers(0, 50_000_000), st.integers(20, 65_535)), max_size=200), st.integers(0, 9)
)
def test_what_arrives_is_in_order_and_never_early(
    settings: PathSettings, steps: list[tuple[int, int]], seed: int
) -> None:
    path = Path(settings, random.Random(seed))
    now_ns, last_ns, dropped = 0, 0, 0
    for gap_ns, size in steps:
        now_ns += gap_ns
        due_ns = path.admit(now_ns, size)
        if due_ns < 0:
            dropped += 1
            continue
        assert due_ns >= last_ns
        assert due_ns >= now_ns + (0 if settings.jitter_us else settings.delay_us * 1_000)
        last_ns = due_ns
    counters = path.counters
    assert counters.packets == len(steps)
    assert counters.lost + counters.queue_full + counters.cut == dropped


@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
def test_any_datagram_is_answered(raw: bytes) -> None:
    plan = BedPlan(name="dev", slot=0, spec=parse_wan("us-eu=70ms"), token="t")
    assert BedControl(plan, paths_of(plan, random.Random(1))).answer(raw)
