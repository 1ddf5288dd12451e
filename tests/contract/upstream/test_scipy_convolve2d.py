"""SciPy's own tests of convolve2d, over hetero.convolve2d."""

from __future__ import annotations

import installed
import numpy as np

import hetero

suite = installed.load(
    "scipy.signal.tests.test_signaltools", {"scipy.signal.convolve2d": hetero.convolve2d}
)
TestConvolve2d = suite.TestConvolve2d

EXCLUDED = {"*::test_large_array": "2 GB of whole numbers, for which hetero calls SciPy"}


def test_that_heteros_function_is_called():
    for test in (TestConvolve2d().test_2d_arrays, TestConvolve2d().test_consistency_convolve_funcs):
        before = suite.calls["scipy.signal.convolve2d"]
        test(np)
        assert suite.calls["scipy.signal.convolve2d"] > before
