"""Fourier methods on the CPU: what lies beyond an image, tiles, threads."""

from __future__ import annotations

import time

import numpy as np
import pytest
from convolutions import as_many_tiles, scipys
from scipy.signal import convolve2d

import hetero
from hetero.ops.convolve2d import fft
from hetero.ops.convolve2d.problem import window_of


@pytest.fixture
def many_threads(monkeypatch):
    """Three threads, for however little work."""
    monkeypatch.setattr(fft, "threads_for", lambda points, cores=None: 3)
    fft.on_cpu.cache_clear()
    yield
    fft.on_cpu.cache_clear()


@pytest.fixture(params=["one tile", "several"])
def cut(request, monkeypatch):
    """The image as one tile, or as several."""
    fft.on_cpu.cache_clear()
    if request.param == "several":
        monkeypatch.setattr(fft, "weight_on_cpu", lambda window, axes, *of: as_many_tiles(axes))
    else:
        monkeypatch.setattr(fft, "_cuts", lambda *axis: [])
    yield
    fft.on_cpu.cache_clear()


@pytest.mark.parametrize("boundary", ["fill", "wrap", "symm"])
@pytest.mark.parametrize("mode", ["full", "same", "valid"])
def test_threads_compute_what_scipy_does(many_threads, cut, boundary, mode):
    rng = np.random.default_rng(1)
    stack, kernel = rng.random((2, 90, 150)) - 0.5, rng.random((7, 4)) - 0.5
    found = hetero.convolve2d(stack, kernel, mode, boundary, 1.5, device="cpu", method="fft")
    expected = scipys(stack, kernel, mode, boundary, 1.5)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_a_long_line_is_planned_at_once():
    start = time.perf_counter()
    assert fft.on_cpu(window_of((1, 10**8), (1, 9), "same")) is not None
    assert time.perf_counter() - start < 1.0


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize("at", [(0, 0), (0, 53), (11, 11), (46, 55), (20, 55), (-3, -2), (-8, 0)])
def test_the_only_window_of_zeros(cut, at, mode):
    """Zeros as large as the filter somewhere, and what is left of them at an edge."""
    rng = np.random.default_rng(3)
    image, kernel = 0.5 + rng.random((50, 62)), 0.5 + rng.random((9, 9))
    i, j = at
    image[max(i, 0) : i + 9, max(j, 0) : j + 9] = 0.0
    found = hetero.convolve2d(image, kernel, mode, device="cpu", method="fft")
    support = convolve2d(image != 0.0, np.ones((9, 9)), mode)
    np.testing.assert_array_equal(found == 0.0, support == 0.0)
    assert mode != "full" or (support == 0.0).any()
