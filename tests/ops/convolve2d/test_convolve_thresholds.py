"""convolve2d at the thresholds of its own code, with every method on every device.

Image and filter extents are drawn around the lengths at which the code takes another way: those of
transforms and of their tiles, of blocks and tiles of the direct sum, and powers of two. Values are
small whole numbers, so that the exact result is known, and a wrong one is wrong by 1 at least.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from convolutions import BOUNDARIES, MODES, as_many_tiles, each_way, scipys
from host_transforms import RealTransform
from test_convolve_exact import every_case

import hetero
from hetero import devices, registry
from hetero.devices.cuda import libraries
from hetero.errors import MethodNotAvailable
from hetero.kernels.convolution import plan as plan_convolve
from hetero.kernels.cpu import convolve as cpu_convolve
from hetero.ops.convolve2d import device, fft
from hetero.profile import inventory

PRODUCTS = 3 << 20  # of a sum that SciPy, and the direct methods, are asked for at most
LARGEST = {"cpu": 1100, "cuda": 700, "opencl": 140}


def thresholds(kind):
    """Lengths at which the code takes another way."""
    found = {1, 2, 4, 8, 16, 64, 128}
    if kind == "cpu":
        for size in (4, 8):
            width = cpu_convolve.BLOCK // size
            found |= {width // 2, width, 2 * width, cpu_convolve._TILE // size}
        return sorted(found | {cpu_convolve.ROWS, cpu_convolve._TILE_ROWS})
    found |= {*plan_convolve._LANES, *plan_convolve._ROWS, 32, 256}
    return sorted(n for n in found if n < LARGEST[kind])


def extents(values, kind, mode):
    """(image, filter) of an axis: one of several relations to a threshold."""
    mark, other = (int(n) for n in values.choice(thresholds(kind), 2))
    off, small = int(values.integers(-1, 2)), int(values.integers(1, 40))
    good_length = fft.good_length_on_cpu if kind == "cpu" else fft.good_length_on_device
    near, long = max(mark + off, 1), max(good_length(mark) + off, 1)
    beyond = {"full": small - 1, "same": small // 2, "valid": 0}[mode]
    ways = [
        (int(values.integers(1, long + 2)), long),  # a filter as long as a transform, or one off
        (max(near - beyond, 1), small),  # a transform, or a tile's step, as long as the mark
        (max(near // (small % 8 + 2), 1), near),  # an image shorter than the filter
        (near, max(mark + int(values.integers(-1, 2)), 1)),  # equal, or one off
        (near, small % 7 + 1),
        (near, max(other + int(values.integers(-1, 2)), 1)),
    ]
    return ways[values.integers(len(ways))]


def cases(kind, number, seed=0):
    """(shape, filter's shape, mode, boundary), as many as asked for."""
    values = np.random.default_rng(seed)
    found = []
    while len(found) < number:
        mode, boundary = MODES[len(found) % 3], BOUNDARIES[len(found) // 3 % 3]
        (h, fh), (w, fw) = (extents(values, kind, mode) for _ in range(2))
        products = (h + fh) * (w + fw) * min(fh * fw, h * w if mode == "valid" else fh * fw)
        fits = (h >= fh and w >= fw) or (fh >= h and fw >= w)
        if products > PRODUCTS or max(h, w, fh, fw) > LARGEST[kind] or (mode, fits) == ("valid", 0):
            continue
        front = (int(values.integers(2, 4)),) if values.random() < 0.25 else ()
        if front and mode == "valid" and (h < fh or w < fw):
            front = ()
        found.append(((*front, h, w), (fh, fw), mode, boundary))
    return found


def compare(case, number, device, method):
    """Whether the method takes a case, and then gets it right."""
    shape, filter_shape, mode, boundary = case
    dtype = ("float32", "float64")[number // 9 % 2]
    values = np.random.default_rng(number)
    image, filter = (values.integers(-3, 4, n).astype(dtype) for n in (shape, filter_shape))
    if method == "separable":
        filter = np.outer(*(abs(taps) + 1 for taps in (filter[:, 0], filter[0])))
    options = {"mode": mode, "boundary": boundary, "fillvalue": number % 2}
    try:
        result = hetero.convolve2d(image, filter, **options, device=device, method=method)
    except MethodNotAvailable:
        return False
    expected = scipys(image.astype("f8"), filter.astype("f8"), **options)
    assert (result.dtype, result.shape) == (dtype, expected.shape), (case, number)
    wrong = abs(result - expected) > 0.3
    assert not wrong.any(), (case, dtype, number, int(wrong.sum()))
    assert not devices.troubles(), "the device failed, the CPU answered"
    return True


# As many as run in a few seconds: on devices the direct sum has a kernel of its own for each shape,
# and on a GPU each length of a transform takes cuFFT a quarter of a second to plan.
NUMBER = {"cpu": 360, "cuda": 12, "opencl": 2}
TRANSFORMED = {"cpu": 360, "cuda": 72}


@each_way
def test_every_method(device, method):
    kind = device.partition(":")[0]
    number = (TRANSFORMED if method == "fft" else NUMBER)[kind]
    done = [compare(case, i, device, method) for i, case in enumerate(cases(kind, number))]
    if not any(done):
        pytest.skip("nothing that this method takes")
    if method in ("direct", "fft"):
        assert all(done)


# -- Transforms on the CPU -------------------------------------------------------------------------


@pytest.fixture(params=["one tile", "several"])
def cut(request, monkeypatch):
    """The image as one tile, or as several; three threads, for however little work."""
    fft.on_cpu.cache_clear()
    monkeypatch.setattr(fft, "threads_for", lambda points, cores=None: 3)
    if request.param == "several":
        monkeypatch.setattr(fft, "weight_on_cpu", lambda window, axes, *of: as_many_tiles(axes))
    else:
        monkeypatch.setattr(fft, "_cuts", lambda *axis: [])
    yield
    fft.on_cpu.cache_clear()


def test_transforms_on_the_cpu(cut):
    assert all(compare(case, i, "cpu", "fft") for i, case in enumerate(cases("cpu", 360, seed=2)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("at", [(0, 0), (0, 53), (11, 11), (46, 55), (20, 55), (-3, -2), (-8, 0)])
def test_the_only_window_of_zeros(cut, at, mode):
    """Zeros as large as the filter somewhere, and what is left of them at an edge."""
    rng = np.random.default_rng(3)
    image, kernel = 0.5 + rng.random((50, 62)), 0.5 + rng.random((9, 9))
    i, j = at
    image[max(i, 0) : i + 9, max(j, 0) : j + 9] = 0.0
    found = hetero.convolve2d(image, kernel, mode, device="cpu", method="fft")
    support = scipys(image != 0.0, np.ones((9, 9)), mode)
    np.testing.assert_array_equal(found == 0.0, support == 0.0)
    assert mode != "full" or (support == 0.0).any()


# -- The kernels around cuFFT ----------------------------------------------------------------------


@pytest.fixture(params=["one tile", "several"])
def by_cufft(request, monkeypatch, opencl):
    """The methods by cuFFT, on an OpenCL device."""
    known = registry.lookup("convolve2d")
    (row,) = (row for row in known if (row.kind, row.method) == ("cuda", "fft"))
    rows = [*known, replace(row, kind="opencl")]
    monkeypatch.setitem(registry._implementations, "convolve2d", rows)
    monkeypatch.setattr(libraries, "cufft_obstacle", lambda: None)
    monkeypatch.setattr(device, "_transform", RealTransform)
    monkeypatch.setattr(fft, "_POWERS", (64, 128))
    if request.param == "several":
        monkeypatch.setattr(fft, "weight_on_device", as_many_tiles)
    fft.on_device.cache_clear()
    inventory.changed()
    yield opencl, request.param
    fft.on_device.cache_clear()


def test_the_kernels_around_cufft(by_cufft):
    """What the direct sum has exactly."""
    place, cut = by_cufft
    every_case(place, "fft", "float64" if cut == "several" else "float32")


def test_lengths_of_the_transforms(by_cufft, monkeypatch):
    def repaired(where, problem, image, options, out, only_if):
        host = np.empty(1, np.int32)
        where.download(only_if, host)
        assert not host[0], "taken for not finite"

    monkeypatch.setattr(device, "direct", repaired)
    assert all(compare(case, i, by_cufft[0], "fft") for i, case in enumerate(cases("cuda", 240)))
