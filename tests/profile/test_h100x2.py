"""The profile of two H100: what it predicts for calls that were timed on that host.

From NumPy to NumPy, by `solve_poisson(method="cg")` in float64 with 300 iterations, which the
profile's model of `solve_cg` prices, too: milliseconds on one GPU and on both.
"""

from __future__ import annotations

import pytest

TIMED = {512: (2.46, 3.56), 1024: (9.16, 6.6), 2048: (32.95, 23.3), 4096: (108.8, 63.0),
         8192: (396.8, 205.2)}  # fmt: skip


@pytest.mark.parametrize("n", TIMED)
@pytest.mark.parametrize("device", ["cuda:0", "cuda:*"])
def test_what_was_timed(data, n, device):
    """Within 20 %, medians of three calls in another process than the calibration's. 8192^2 is
    beyond the largest grid of the profile; on both it was faster than predicted."""
    words = ("solve_cg", n, n, "--iterations", 300, "--device", device, "--profile", "h100x2")
    (chosen,) = [data("explain", *words)["chosen"]]
    assert chosen["device"] == device
    assert chosen["seconds"] == pytest.approx(
        1e-3 * TIMED[n][device == "cuda:*"], rel=0.2 if n < 8192 else 0.3
    )


@pytest.mark.parametrize("n", TIMED)
def test_the_faster_number_is_chosen(data, n):
    words = ("solve_cg", n, n, "--iterations", 300, "--profile", "h100x2")
    one, both = TIMED[n]
    expected = "cuda:0" if one < both else "cuda:*"
    assert data("explain", *words)["chosen"]["device"] == expected


def test_all_gpus_by_name_do_no_worse_than_one(data):
    """Multigrid, of which the profile knows no constants on both, is one GPU's there."""
    words = ("solve_poisson", 8192, 8192, "--profile", "h100x2")
    one, named = (data("explain", *words, *more) for more in ((), ("--device", "cuda:*")))
    assert (named["chosen"]["device"], named["chosen"]["method"]) == ("cuda:0", "multigrid")
    assert named["chosen"]["seconds"] == one["chosen"]["seconds"]
