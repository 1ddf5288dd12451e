"""What the direct sum has exactly, by several tiles and by the kernels around cuFFT."""

from __future__ import annotations

import numpy as np
import pytest
from convolutions import as_many_tiles
from host_transforms import RealTransform
from test_convolve_exact import every_case
from test_convolve_shapes import cases, compare

from hetero import registry
from hetero.devices.cuda import libraries
from hetero.ops.convolve2d import device, fft
from hetero.profile import inventory
from hetero.registry import Implementation


@pytest.fixture
def by_cufft(monkeypatch, opencl):
    """The methods by cuFFT, on an OpenCL device."""
    known = registry.problem._implementations["convolve2d"]
    rows = [
        Implementation(**{f: getattr(row, f) for f in row.__slots__} | {"kind": "opencl"})
        for row in known
        if row.kind == "cuda" and row.method == "fft"
    ]
    monkeypatch.setitem(registry.problem._implementations, "convolve2d", [*known, *rows])
    monkeypatch.setattr(libraries, "cufft_obstacle", lambda: None)
    monkeypatch.setattr(device, "_transform", RealTransform)
    monkeypatch.setattr(fft, "_POWERS", (64, 128))
    fft.on_device.cache_clear()
    inventory.changed()
    yield opencl
    fft.on_device.cache_clear()
    inventory.changed()


@pytest.mark.parametrize(("several", "dtype"), [(False, "float32"), (True, "float64")])
def test_the_kernels_around_cufft(by_cufft, several, dtype, monkeypatch):
    if several:
        monkeypatch.setattr(fft, "weight_on_device", as_many_tiles)
    every_case(by_cufft, "fft", dtype)


@pytest.mark.parametrize("several", [False, True])
def test_lengths_of_the_transforms(by_cufft, several, monkeypatch):
    def repaired(where, problem, image, options, out, only_if):
        host = np.empty(1, np.int32)
        where.download(only_if, host)
        assert not host[0], "taken for not finite"

    monkeypatch.setattr(device, "direct", repaired)
    if several:
        monkeypatch.setattr(fft, "weight_on_device", as_many_tiles)
    assert all(compare(case, i, by_cufft, "fft") for i, case in enumerate(cases("cuda", 240)))
