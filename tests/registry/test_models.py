"""Cost forms give the numbers that can be worked out by hand."""

from __future__ import annotations

import itertools
import math

import pytest

from hetero.registry.models import Work, bind


def cost(form, constants):
    return bind({"form": form, "constants": constants})


# -- Surface -------------------------------------------------------------------------------------

AXES = [[4, 16, 64], [2, 32]]


def surface(law, overhead=0.0, axes=AXES):
    seconds = [law(*dims) for dims in itertools.product(*axes)]
    return cost("table", {"overhead": overhead, "axes": axes, "seconds": seconds})


def total(function, *dims, **more):
    return sum(function(Work(dims, 0.0, 0.0, **more)))


def test_surface_meets_its_knots_and_halves_between_them():
    function = surface(lambda m, k: 1e-6 * (1 + m * k))
    for m, k in itertools.product(*AXES):
        assert total(function, m, k) == pytest.approx(1e-6 * (1 + m * k), rel=1e-12)
    # Half way between two knots in the logarithm: the geometric mean of both.
    assert total(function, 8, 2) == pytest.approx(1e-6 * math.sqrt(9 * 33), rel=1e-12)


def test_parts_of_a_solve_grow_by_the_terms_that_its_work_names():
    axes = [[10, 100], [4, 8]]
    step = {"axes": axes, "seconds": [1e-3 + 1e-6 * n * d for n in axes[0] for d in axes[1]]}
    setup = {"axes": axes, "seconds": [5e-3] * 4}
    price = cost("solve", {"setup": setup, "step": step})
    work = Work((10_000, 64), 0.0, 0.0, repeat=3, terms=((), (0, 1)))
    assert price(work) == pytest.approx((5e-3, 3 * (1e-3 + 1e-6 * 640_000)))
    by_rate = 5e-3 * 800, 3 * (1e-3 + 1e-6 * 800) * 800
    assert price(work._replace(terms=())) == pytest.approx(by_rate)
    inside = work._replace(dims=(100, 8))
    assert price(inside) == price(inside._replace(terms=()))


def test_filter_is_a_surface_over_the_points_of_image_and_filter():
    constants = {
        "overhead": 1e-6,
        "axes": [[16, 4096], [1, 81]],
        "seconds": [2e-6, 5e-6, 1e-4, 9e-4],
    }
    flat = bind({"form": "table", "constants": constants})
    paired = bind({"form": "table", "constants": {**constants, "block": 1}})
    for h, w, fh, fw in ((4, 4, 1, 1), (64, 64, 9, 9), (30, 40, 2, 7), (500, 700, 3, 3)):
        expected = flat(Work((h * w, fh * fw), 0.0, 0.0))
        assert paired(Work((h, w, fh, fw), 0.0, 0.0)) == expected
    blocks = bind({"form": "table", "constants": {**constants, "block": 32}})
    assert blocks(Work((30, 40, 2, 7), 0.0, 0.0)) == paired(Work((30, 64, 2, 7), 0.0, 0.0))
    assert blocks(Work((32, 64, 2, 7), 0.0, 0.0)) == paired(Work((32, 64, 2, 7), 0.0, 0.0))


def test_waves_scale_an_estimate_by_what_was_measured():
    constants = {"overhead": 1e-6, "axes": [[16, 256], [16, 256]], "ratios": [1.0, 2.0, 1.0, 2.0]}
    price = cost("table", constants)
    for n, factor in ((8, 1.0), (16, 1.0), (64, 2.0**0.5), (256, 2.0), (4096, 2.0)):
        overhead, compute = price(Work((64, n), 0.0, 0.0, estimate=3e-5))
        assert overhead == 1e-6
        assert compute == pytest.approx(factor * 3e-5)
    with pytest.raises(KeyError, match="nothing is estimated"):
        price(Work((64, 64), 0.0, 0.0))
