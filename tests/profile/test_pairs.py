"""The profiles of two GPUs: what they predict for calls that were timed on such hosts.

From NumPy to NumPy in float64: `solve_cg` with 300 iterations, and `solve_poisson` by
"multigrid"; milliseconds on one GPU and on both.
"""

from __future__ import annotations

import pytest

# Medians of three calls, or five, in another process than the calibration's.
TIMED = {
    "h100x2": {512: (2.46, 3.56), 1024: (9.16, 6.6), 2048: (32.95, 23.3), 4096: (108.8, 63.0),
               8192: (396.8, 205.2)},
    "h200x2": {512: (2.17, 3.4), 1024: (8.85, 7.66), 2048: (27.64, 20.57), 4096: (84.08, 51.57),
               8192: (302.2, 162.3)},
}  # fmt: skip
MULTIGRID = {2048: (5.25, 5.99), 4096: (13.75, 10.54), 8192: (47.27, 28.27)}  # of h200x2
CALLS = [(name, n) for name, times in TIMED.items() for n in times]


@pytest.mark.parametrize(("name", "n"), CALLS)
@pytest.mark.parametrize("device", ["cuda:0", "cuda:*"])
def test_what_was_timed(data, name, n, device):
    """Within 25 %. 8192^2 is beyond the largest grid of the profiles; there both were faster than
    predicted."""
    words = ("solve_cg", n, n, "--iterations", 300, "--device", device, "--profile", name)
    (chosen,) = [data("explain", *words)["chosen"]]
    assert chosen["device"] == device
    assert chosen["seconds"] == pytest.approx(
        1e-3 * TIMED[name][n][device == "cuda:*"], rel=0.25 if n < 8192 else 0.3
    )


@pytest.mark.parametrize("n", MULTIGRID)
def test_multigrid_takes_the_faster_number(data, n):
    """Within 25 %, but for both beyond the largest grid of the profile: 42 % too long."""
    plan = data("explain", "solve_poisson", n, n, "--profile", "h200x2")
    one, both = MULTIGRID[n]
    chosen = plan["chosen"]
    assert (chosen["method"], chosen["device"]) == ("multigrid", ("cuda:0", "cuda:*")[both < one])
    assert chosen["seconds"] == pytest.approx(1e-3 * min(one, both), rel=0.25 if n < 8192 else 0.5)


def test_all_gpus_by_name_do_no_worse_than_one(data):
    """Multigrid, of which h100x2 knows no constants on both, is one GPU's there."""
    words = ("solve_poisson", 8192, 8192, "--profile", "h100x2")
    one, named = (data("explain", *words, *more) for more in ((), ("--device", "cuda:*")))
    assert (named["chosen"]["device"], named["chosen"]["method"]) == ("cuda:0", "multigrid")
    assert named["chosen"]["seconds"] == one["chosen"]["seconds"]
