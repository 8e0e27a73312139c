"""How busy a broker takes itself for, on clocks that tests move."""

from __future__ import annotations

from mesh.distance.shed_core import PERIOD_S
from region.broker.shed_watch import LOOKS, OVERLOADED, ShedWatch

SECOND_NS = 1_000_000_000


class Thread:
    """A thread that computes for a share of the time."""

    def __init__(self) -> None:
        self.now_ns = self.cpu_ns = self.refused = 0
        self.is_behind = False
        self.watch = ShedWatch(
            clock=self, cpu_ns=lambda: self.cpu_ns, refused=lambda: self.refused, is_behind=lambda: self.is_behind
        )

    def wall_ns(self) -> int:
        return self.now_ns

    def monotonic_ns(self) -> int:
        return self.now_ns

    def compute(self, share: float, *, periods: int = 1) -> None:
        for _ in range(periods * LOOKS):
            self.now_ns += int(PERIOD_S * SECOND_NS) // LOOKS
            self.cpu_ns += int(share * PERIOD_S * SECOND_NS) // LOOKS
            self.watch.look()


def test_a_broker_sheds_when_its_loop_computes_for_long_and_takes_everybody_back_when_it_does_not() -> None:
    thread = Thread()
    thread.compute(0.5, periods=6)
    assert (thread.watch.busy, thread.watch.share) == (0.5, 0.0)
    thread.compute(0.99, periods=6)
    shed = thread.watch.share
    assert 0.05 < shed < 0.1
    thread.compute(0.3, periods=6)
    assert thread.watch.share == 0.0


def test_refused_calls_and_writes_that_are_behind_are_overload_at_any_load() -> None:
    thread = Thread()
    thread.refused += 1
    thread.compute(0.4)
    assert thread.watch.busy == OVERLOADED
    thread.compute(0.4)
    assert thread.watch.busy == 0.4
    thread.is_behind = True
    thread.watch.look()
    thread.is_behind = False  # seen at one look of the period
    thread.compute(0.4)
    assert thread.watch.busy == OVERLOADED


def test_both_numbers_are_metrics() -> None:
    thread = Thread()
    thread.compute(2.0)
    values = {sample.name: sample.value for family in thread.watch.collect() for sample in family.samples}
    assert values == {"georelay_busy_share": 2.0, "georelay_shed_share": thread.watch.share}
    assert thread.watch.share > 0.2
