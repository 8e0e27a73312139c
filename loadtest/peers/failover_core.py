"""What a cut and the loss of the home cost, from what readers got. Times are ns of one clock."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from loadtest.bench.figures_core import Row
from loadtest.bench.schedule_core import NS_PER_S


def caught_up_s(rows: Sequence[Row], healed_ns: int) -> float:
    """Return how long after the heal the last record that was due before it came for the first time."""
    first: dict[int, int] = {}
    for number, due_ns, at_ns in rows:
        if due_ns <= healed_ns:
            first[number] = min(at_ns, first.get(number, at_ns))
    return max(0, max(first.values(), default=healed_ns) - healed_ns) / NS_PER_S


def after_loss(
    *,
    acknowledged: Collection[int],
    stayed: Sequence[Row],
    before: Sequence[Row],
    after: Sequence[Row],
    rate_per_s: int,
    lost_ns: int,
) -> dict[str, float]:
    """Return figures of the loss of a home at `lost_ns`, where a producer sent; another one follows elsewhere.

    Args:
        acknowledged: by the lost home.
        stayed: what a reader that was in the other region all the time got.
        before, after: what a consumer got in the lost home, and then in the other region.

    Returns:
        "lost": acknowledged and not in the other region. "again": read a second time after the move. "skipped": in the
        other region, and the consumer never got it. "flows_again_s": until the first record of the producer that
        follows was delivered; not there when none was.
    """

    def is_of_first(row: Row) -> bool:
        number, due_ns, _ = row
        return due_ns - number * NS_PER_S // rate_per_s < lost_ns  # when its producer began

    there = {row[0] for row in stayed if is_of_first(row)}
    read = {row[0] for row in before}
    again = 0
    for number, _, _ in filter(is_of_first, after):
        again += number in read
        read.add(number)
    figures: dict[str, float] = {
        "lost": len(set(acknowledged) - there),
        "again": again,
        "skipped": len(there - read),
    }
    followed = [at_ns for row in stayed if not is_of_first(row) for at_ns in row[2:]]
    return figures | ({"flows_again_s": (min(followed) - lost_ns) / NS_PER_S} if followed else {})
