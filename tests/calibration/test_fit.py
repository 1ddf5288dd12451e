"""Fits find the constants that made the data, spikes or not."""

from __future__ import annotations

import random

import pytest

from hetero.calibration import fit
from hetero.registry.models import Work, bind, bind_link

SIZES = [2**i for i in range(10, 31)]


def planted(size):
    """Three ranges: 10 us + b / 4 GB/s, from 256 KB 60 us + b / 8 GB/s, from 8 MB b / 16 GB/s."""
    if size < 2**18:
        return 1e-5 + size / 4e9
    return 6e-5 + size / 8e9 if size < 2**23 else 4e-4 + size / 16e9


def noisy(seconds, share):
    draw = random.Random(0)
    return [s * (1 + share * draw.uniform(-1, 1)) for s in seconds]


@pytest.mark.parametrize("noise", [0.0, 0.005])
def test_segments_follow_what_was_measured(noise):
    model = fit.segments(SIZES, noisy([planted(s) for s in SIZES], noise))
    link = bind_link(model)
    for size in (*SIZES, 3 * 2**12, 3 * 2**20, 2**32):
        assert link(size) == pytest.approx(planted(size), rel=1e-9 if not noise else 0.02)
    assert link(1) == pytest.approx(1e-5, rel=1e-3 if not noise else 0.02)
    assert model["constants"][-1]["below"] is None
    assert model["residuals"]["worst"] <= 2.5 * noise + 1e-6


def test_a_copy_that_others_rule_out_is_shortened():
    seconds = [planted(s) for s in SIZES]
    seconds[12] *= 10
    model = fit.segments(SIZES, seconds)
    assert bind_link(model)(SIZES[12]) <= 1.25 * planted(SIZES[12])
    assert model["residuals"]["worst"] > 0.8


def test_segments_never_fall_with_size_nor_below_zero():
    falling = [1e-3 / (1 + i) for i in range(len(SIZES))]
    for seconds in (falling, noisy([1e-5] * len(SIZES), 0.3), [s / 1e9 for s in SIZES]):
        model = fit.segments(SIZES, seconds)
        link = bind_link(model)
        assert all(link(size) >= 0 for size in (0, 1, *SIZES, 2**40))
        for part in model["constants"]:
            assert 1 / part["bytes_per_second"] + part["seconds_per_byte"] >= -1e-15


AXES = [[4, 16, 64, 256], [8, 64, 512]]


def total(model, *dims):
    return sum(bind(model)(Work(dims, 0.0, 0.0)))


def test_knots_that_took_too_long_continue_at_the_same_rate():
    def law(m, k):
        return 1e-6 + 1e-9 * m * k

    whole = {dims: law(*dims) for dims in fit.grid(AXES)}
    cut = {dims: s for dims, s in whole.items() if dims[0] * dims[1] <= 64 * 64}
    model = fit.table(AXES, cut)
    for dims in (*set(whole) - set(cut), (2560, 5120)):
        assert total(model, *dims) == pytest.approx(law(*dims), rel=0.02)


def test_a_knot_that_the_others_rule_out_is_shortened():
    whole = {dims: 1e-9 * dims[0] * dims[1] for dims in fit.grid(AXES)}
    model = fit.table(AXES, {**whole, (16, 64): 1.0})
    assert total(model, 16, 64) <= 3.0 * whole[16, 64] * 1.001
    assert total(model, 64, 64) == pytest.approx(whole[64, 64])


def test_waves_follow_steps_that_no_knot_shows():
    """With an estimate that has a machine's steps, a few knots are enough between them."""

    def estimate(dims):
        return 1e-6 + 1e-5 * -(-dims[0] * dims[1] // 40_000)

    def measured(dims):
        return estimate(dims) * (dims[0] * dims[1]) ** 0.05

    axes = [[16, 256, 4096], [16, 256, 4096]]
    between = [(100, 900), (230, 180), (3000, 17), (999, 1001)]

    def worst(model, shapes):
        cost = bind(model)
        found = {dims: sum(cost(Work(dims, 0.0, 0.0, estimate=estimate(dims)))) for dims in shapes}
        return max(abs(seconds / measured(dims) - 1.0) for dims, seconds in found.items())

    ratios = {dims: measured(dims) / estimate(dims) for dims in fit.grid(axes)}
    model = fit.by_estimate(axes, ratios)
    assert worst(model, between) < 0.01
    with pytest.raises(KeyError, match="nothing is estimated"):
        total(model, 64, 64)
    seconds = {dims: measured(dims) for dims in fit.grid(axes)}
    assert worst(fit.table(axes, seconds), between) > 0.1
    del ratios[4096, 4096]  # too slow to measure
    assert worst(fit.by_estimate(axes, ratios), [(4096, 4096)]) < 0.2


@pytest.mark.parametrize("less", [0, 1])
def test_another_order_has_the_knots_of_the_first_one(less):
    """Its seconds over those of the first one are measured at fewer sizes."""

    def first(m, k):
        return 1e-6 + 1e-9 * m * k * (2.0 if m == 64 else 1.0)  # which only the first one's show

    def other(m, k):
        return first(m + less, k + less) * 1.5 * m**0.1

    axes = [[4, 16, 64, 256, 4096]] * 2
    detailed = fit.table(axes, {dims: first(*dims) for dims in fit.grid(axes)})
    few = [[16 - less, 256 - less, 4096 - less]] * 2
    seconds = {dims: other(*dims) for dims in fit.grid(few)}
    model = fit.over(detailed, few, seconds)
    assert model["constants"]["axes"] == [[size - less for size in axis] for axis in axes]
    for dims in ((64 - less, 256 - less), (256 - less, 4096 - less), (64 - less, 4096 - less)):
        assert total(model, *dims) == pytest.approx(other(*dims), rel=0.05)
    assert total(fit.table(few, seconds), *dims) < 0.8 * other(*dims)


def test_a_missing_knot_of_a_filter_is_as_the_axis_tells_that_promises_least():
    """25 taps take five times as long as one; 16 times the points 16 times as long."""
    seconds = {(2**16, 1): 1e-5, (2**16, 25): 5e-5, (2**20, 1): 1.6e-4}
    model = fit.table([[2**16, 2**20], [1, 25]], seconds, 32)
    assert model["constants"]["seconds"][-1] == pytest.approx(16 * 5e-5, rel=0.2)
