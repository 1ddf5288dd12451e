"""Where a convolution runs: threads, arrays of devices, bands of rows that go through a device."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product

import fakes
import numpy as np
import pytest
from convolutions import BOUNDARIES, MODES, REAL, close, images, obstacle, rng, same, scipys
from gpu_libraries import LIBRARIES, lay
from scipy import signal

import hetero.ops
from hetero import devices, registry
from hetero.arrays import describe
from hetero.moving import ranges, streaming, transfer
from hetero.ops.convolve2d import device as on_device
from hetero.ops.convolve2d.filters import Filter
from hetero.profile import inventory

pytestmark = pytest.mark.usefixtures("no_failure")


def test_threads_with_the_choice_left_open():
    pairs = [(images((n, n)), images((n // 5, 4))) for n in range(20, 60, 5)]

    def work(number):
        for turn in range(4):
            a, b = pairs[(number + turn) % len(pairs)]
            boundary = BOUNDARIES[turn % 3]
            close(hetero.convolve2d(a, b, "same", boundary), a, b, mode="same", boundary=boundary)
            with hetero.use(device="cpu", method="fft" if number % 2 else "direct"):
                close(hetero.convolve2d(a, b), a, b)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))  # the first exception is raised here


# -- Arrays of devices -----------------------------------------------------------------------------


def test_device_arrays_come_back_to_their_device(cuda):
    """What no device computes in, and what is forced onto the CPU."""
    for dtype, forced in (("int16", {}), ("complex64", {}), ("float32", {"device": "cpu"})):
        a = np.asfortranarray((9 * rng.random((6, 7))).astype(dtype))
        b = (9 * rng.random((3, 4))).astype(dtype)
        there, filter_there = fakes.Cupy.of(a, cuda), fakes.Cupy.of(b, cuda)
        for first, second in ((there, filter_there), (there, b), (a, filter_there)):
            for mode in MODES:
                result = hetero.convolve2d(first, second, mode, "symm", **forced)
                assert type(result) is fakes.Cupy
                assert result.device.id == 0
                same(result.get(), scipys(a, b, mode, "symm"), a, b, mode=mode, boundary="symm")
        np.testing.assert_array_equal(there.get(), a)


def test_the_rank_of_a_filter_on_its_device(opencl, monkeypatch):
    """Looked at where the sum takes long, for filters that are small."""
    from pyopencl import array as arrays

    queue, looks, used = devices.get(opencl)._queue(None), [], []
    fakes.noting(monkeypatch, transfer, "to_host", lambda *_: looks.append(1))
    for name in ("direct", "separable"):
        fakes.noting(monkeypatch, on_device, name, lambda *_, name=name: used.append(name))
    line = images((41, 1), "float32", 2)
    low, full, large = line[:15] * line[:15].T, images((15, 15), "float32", 3), line * line.T
    for side, filter, method, looked in (
        (600, low, "separable", 1),
        (600, full, "direct", 1),
        (600, large, "direct", 0),
        (60, low, "direct", 0),
    ):
        a = images((side, side), "float32", 1)
        image, taps = (arrays.to_device(queue, x) for x in (a, filter))
        looks.clear()
        used.clear()
        plan = hetero.plan("convolve2d", image, taps, mode="same", device=opencl)
        assert (plan.chosen.method, len(looks)) == (method, looked)
        result = hetero.convolve2d(image, taps, "same", device=opencl)
        assert used[0] == method
        assert describe(result).location == opencl
        expected = signal.fftconvolve(a.astype("f8"), filter, "same")
        np.testing.assert_allclose(result.get(), expected, rtol=0, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("method", [None, "direct", "fft", "separable"])
@pytest.mark.parametrize("library", LIBRARIES.values())
def test_gpu_arrays(library, method, dtype):
    library, done = library(), 0
    for shape, filter_shape in (((70, 83), (9, 8)), ((3, 40, 41), (4, 5)), ((300, 310), (31, 33))):
        a = images(shape, dtype, seed=1)
        b = images((filter_shape[0], 1), dtype, 2) * images((1, filter_shape[1]), dtype, 3)
        layouts = [None] if a.ndim > 2 else [None, *library.views]
        for layout, mode, boundary in product(layouts, MODES, BOUNDARIES):
            A, B = (library.put(x) if layout is None else lay(library, x, layout) for x in (a, b))
            options = {"mode": mode, "boundary": boundary, "fillvalue": 0.5}
            if method and obstacle(A, B, "cuda:0", method, **options):
                assert method != "direct"
                continue
            place = {"device": "cuda:0", "method": method} if method else {}
            for first, second in ((A, B), (A, b), (a, B)):
                result = hetero.convolve2d(first, second, **options, **place)
                assert type(result) is library.type
                assert describe(result).location == "cuda:0"
                close(np.ascontiguousarray(library.get(result)), a, b, method, **options)
                done += 1
            np.testing.assert_array_equal(library.get(A), a)
    assert done, "nothing that this method can do"


# -- Bands of rows, which move while others are computed -------------------------------------------


def in_bands(opencl, *call):
    """Bit for bit what the same sum gives of the whole."""
    result = hetero.convolve2d(*call, device=opencl, method="streamed")
    expected = hetero.convolve2d(*call, device=opencl, method="direct")
    np.testing.assert_array_equal(result, expected)


@pytest.fixture
def cut_into(monkeypatch):
    """``cut_into(images, rows)``: ranges of so many are the only choice."""

    def only(images, rows):
        monkeypatch.setattr(ranges, "_cuts", lambda cut, size: [(images, rows)])
        inventory.changed()

    return only


@pytest.mark.parametrize(("rows", "height"), [(1, 6), (5, 6), (7, 6), (59, 6), (20, 70)])
def test_heights_of_bands(opencl, rows, height, cut_into):
    """One row, one less and one more than the filter has, around the whole image; below a filter
    that is higher than the image."""
    a, b = rng.random((60, 13)), rng.random((height, 2))
    cut_into(1, rows)
    modes = ("full",) if height > len(a) else MODES
    for mode, boundary in product(modes, BOUNDARIES):
        in_bands(opencl, a, b, mode, boundary, 0.5)


@pytest.mark.parametrize(("group", "rows"), [(1, 6), (3, 20), (8, 20)])
def test_stacks_in_bands(opencl, group, rows, cut_into):
    """Groups of whole images, the last one smaller; and bands of each."""
    stack, b = rng.random((7, 20, 13)), rng.random((3, 3))
    cut_into(group, rows)
    for a in (stack, stack.reshape(7, 1, 20, 13), stack[:, ::-1, ::-2]):
        in_bands(opencl, a, b, "same", "wrap")


def test_bands_by_transforms_look_at_their_values(opencl, monkeypatch, cut_into):
    """A band whose values range widely is summed up, the others are transformed."""
    plan, used = ranges.planned, []

    def planned(cut, problem, *given):
        made = plan(cut, problem, *given)
        lose = problem.options.wide_range or not problem.options.finite
        used.append("direct" if lose else "fft")
        direct = made.chosen._replace(method=used[-1])
        return replace(made, candidates=(direct, *made.candidates[1:]))

    monkeypatch.setattr(ranges, "planned", planned)
    cut_into(1, 50)
    a, b = rng.random((150, 61)), rng.random((6, 5))
    a[75, 10] = 1e20
    out = np.empty_like(a)
    problem = registry.operation("convolve2d").problem(a, b, "same")
    problem = replace(problem, options=problem.options._replace(wide_range=False))
    given = registry.Arguments((a,), out, Filter(b))
    streaming.run((devices.get(opencl),), problem, given)
    assert sorted(used) == ["direct", *4 * ["fft"]]
    np.testing.assert_allclose(out, scipys(a, b, "same"), rtol=1e-12)
