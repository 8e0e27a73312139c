"""Which batches have a row: the same ones everywhere, as many as asked, each saying what it stands for."""

from __future__ import annotations

from mesh.tracing.sampling_core import HARD_FACTOR, VALUE_BITS, Sampler, sample_value, stream_seed

SEED = stream_seed(origin=1, topic="orders", partition=3)


def keeps(sampler: Sampler, batches: int, *, first: int = 0, seed: int = SEED) -> set[int]:
    return {offset for offset in range(first, first + batches * 10, 10) if sampler.keeps(seed, 1, offset)}


def at_shift(shift: int, rows_per_s_max: int = 10**6) -> Sampler:
    sampler = Sampler(rows_per_s_max)
    sampler.shift, sampler.threshold, sampler.weight = shift, 1 << (VALUE_BITS - shift), float(1 << shift)
    return sampler


def test_the_hash_is_the_same_for_ever() -> None:
    assert SEED == 0xB696D8CEBFBF6B3D  # a change makes regions of two versions sample different batches
    assert [sample_value(SEED, 1, offset) for offset in (0, 10, 20)] == [
        34189610829817771,
        70298168173110809,
        30408763050534028,
    ]


def test_every_batch_is_kept_below_the_cap() -> None:
    assert len(keeps(Sampler(500), 500)) == 500


def test_above_the_cap_the_probability_halves_until_the_last_second_would_have_fitted() -> None:
    sampler = Sampler(500)
    keeps(sampler, 1_900)
    sampler.turn()
    assert (sampler.shift, sampler.weight) == (2, 4.0)
    assert 400 <= len(keeps(sampler, 1_900)) <= 550


def test_the_probability_comes_back_by_one_step_per_second() -> None:
    sampler = at_shift(3, 500)
    weights = []
    for _ in range(4):
        sampler.turn()
        weights.append(sampler.weight)
    assert weights == [4.0, 2.0, 1.0, 1.0]


def test_two_regions_keep_the_same_batches_and_one_that_samples_less_keeps_some_of_them() -> None:
    us, eu, ap = at_shift(3), at_shift(3), at_shift(5)
    kept = keeps(us, 10_000)
    assert keeps(eu, 10_000) == kept
    assert keeps(ap, 10_000) < kept


def test_the_share_kept_is_the_probability_and_the_weights_add_up() -> None:
    for shift in (1, 3, 6):
        kept = len(keeps(at_shift(shift), 50_000))
        assert abs(kept * (1 << shift) - 50_000) < 50_000 * 0.15


def test_streams_epochs_and_offsets_are_sampled_apart() -> None:
    other = stream_seed(origin=1, topic="orders", partition=4)
    assert other != SEED
    both = keeps(at_shift(3), 5_000) & keeps(at_shift(3), 5_000, seed=other)
    assert 30 <= len(both) <= 130  # 1/64 of them by chance
    assert sample_value(SEED, 1, 0) != sample_value(SEED, 2, 0)


def test_nothing_has_more_than_the_hard_limit_and_the_rest_is_counted() -> None:
    sampler = Sampler(10)
    assert sum(sampler.has_room() for _ in range(100)) == 10 * HARD_FACTOR
    assert (sampler.take_dropped(), sampler.take_dropped()) == (100 - 10 * HARD_FACTOR, 0)
    sampler.turn()
    assert sampler.has_room()


def test_a_cap_of_zero_is_off() -> None:
    assert not Sampler(0).is_on
