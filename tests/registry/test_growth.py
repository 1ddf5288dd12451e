"""Seconds beyond the measured sizes, where they are a sum of products of the sizes."""

from __future__ import annotations

from itertools import pairwise, product

import pytest

import hetero
from hetero import profile
from hetero.ops import cg
from hetero.pricing import pricing
from hetero.registry import growth

AXES = [[10, 100, 1000], [2, 20], [4, 40, 400]]
TERMS = ((), (0,), (0, 1), (0, 1, 2))


def seconds_of(n, d, k):
    return 2e-5 + 3e-9 * n * d + 1e-11 * n * d * k


def test_a_sum_is_found_and_goes_on():
    found = growth.fitted(AXES, [seconds_of(*dims) for dims in product(*AXES)], TERMS)
    for dims in ((10, 2, 4), (50, 7, 40), (10**7, 2, 4), (10**7, 300, 2000)):
        assert found(dims) == pytest.approx(seconds_of(*dims), rel=1e-6)


@pytest.mark.parametrize("card", ["h100", "h200"])
@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_a_solve_with_a_dense_matrix_twice_as_long_takes_four_times_as_long(card, device):
    """Beyond the measured sizes, as between the largest two of them."""
    constants = profile.named(card)
    seconds = []
    for n in (16384, 32768, 65536, 131072):  # 32768 is measured, 131072 float32 are 64 GiB
        on = "host" if device == "cpu" else device
        A, b = (hetero.spec(shape, "float32", on=on) for shape in ((n, n), (n,)))
        plan = pricing.price(cg.problem(A, b), constants, constants.machine(), device)
        seconds.append(plan.chosen.seconds)
    ratios = [b / a for a, b in pairwise(seconds)]
    assert all(3.6 < ratio < 4.2 for ratio in ratios), ratios
