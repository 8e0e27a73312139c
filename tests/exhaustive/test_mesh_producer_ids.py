"""Producer ids of two regions, every interleaving: the region number in the high bits keeps them apart."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from georelay.ids import NO_PRODUCER, PRODUCER_COUNTER_BITS, RegionNumber, brokers_own, is_brokers_own
from region.controller.state_core import PRODUCERS_MAX

PRODUCERS_PER_REGION = 3


def with_region(region: RegionNumber, counter: int) -> int:
    return (region << PRODUCER_COUNTER_BITS) | counter


def counter_only(_region: RegionNumber, counter: int) -> int:
    return counter


def collisions(make: Callable[[RegionNumber, int], int]) -> int:
    """Return in how many interleavings the home takes one producer's first batch for another's.

    Each region counts from 1 on its own; a producer's first batch has (epoch 0, sequence 0) and reaches one home.
    """
    colliding = 0
    for order in set(itertools.permutations([1] * PRODUCERS_PER_REGION + [2] * PRODUCERS_PER_REGION)):
        counters = {1: 0, 2: 0}
        stored: set[tuple[int, int, int]] = set()  # the home's deduplication: (id, epoch, sequence)
        for region in order:
            counters[region] += 1
            first_batch = (make(RegionNumber(region), counters[region]), 0, 0)
            if first_batch in stored:
                colliding += 1
                break
            stored.add(first_batch)
    return colliding


def test_ids_with_the_region_number_never_collide() -> None:
    assert collisions(with_region) == 0


def test_ids_from_a_bare_counter_lose_a_batch_in_every_interleaving() -> None:
    assert collisions(counter_only) == 20  # 6! / (3! 3!) interleavings


def test_the_largest_region_and_counter_stay_a_positive_64_bit_number() -> None:
    assert 0 < with_region(RegionNumber(32_767), (1 << PRODUCER_COUNTER_BITS) - 1) < 1 << 63


def test_no_id_of_a_broker_is_ever_given_to_a_client() -> None:
    for region in (RegionNumber(1), RegionNumber(32_767)):
        for counter in (0, 1, PRODUCERS_MAX - 1):
            given = with_region(region, counter)
            assert not is_brokers_own(given)
            assert is_brokers_own(brokers_own(given))
            assert brokers_own(given) >> PRODUCER_COUNTER_BITS == region and brokers_own(given) < 1 << 63
    assert not is_brokers_own(NO_PRODUCER)
