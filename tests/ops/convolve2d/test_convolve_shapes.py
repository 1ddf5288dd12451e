"""convolve2d at the thresholds of its own code, with every method on every device.

Image and filter extents are drawn around the lengths at which the code takes another way: those of
transforms and of their tiles, of blocks and tiles of the direct sum, and powers of two. Values are
small whole numbers, so that the exact result is known, and a wrong one is wrong by 1 at least.
"""

from __future__ import annotations

import numpy as np
import pytest
from convolutions import BOUNDARIES, MODES, as_many_tiles, each_way, scipys

import hetero
from hetero import devices
from hetero.errors import MethodNotAvailable
from hetero.kernels.convolution import plan as plan_convolve
from hetero.kernels.cpu import convolve as cpu_convolve
from hetero.ops.convolve2d import fft

PRODUCTS = 3 << 20  # of a sum that SciPy, and the direct methods, are asked for at most
LARGEST = {"cpu": 1100, "cuda": 700, "opencl": 140}


def thresholds(kind):
    """Lengths at which the code takes another way, for the two axes."""
    rows = {1, 2, 4, 8, 16, 64, 128}
    columns = set(rows)
    if kind == "cpu":
        for dtype in ("f4", "f8"):
            width = cpu_convolve.block_width(np.dtype(dtype))
            columns |= {width, 2 * width, cpu_convolve._TILE // np.dtype(dtype).itemsize}
        rows |= {cpu_convolve.ROWS, cpu_convolve._TILE_ROWS}
    else:
        columns |= {
            *plan_convolve._LANES,
            plan_convolve._STAGE_COLUMNS,
            plan_convolve._CHUNK,
        }
        rows |= {*plan_convolve._ROWS}
        if kind == "cuda":
            columns |= {256}
            rows |= {256}
    return sorted(rows), sorted(columns)


def good_length(kind):
    return fft.good_length_on_cpu if kind == "cpu" else fft.good_length_on_device


def extents(values, kind, marks, mode):
    """(image, filter) of an axis: one of several relations to a threshold."""
    mark = int(values.choice(marks))
    near = max(mark + int(values.integers(-1, 2)), 1)
    way = int(values.integers(0, 6))
    if way == 0:  # a filter that is as long as a transform, or one off, and an image that is not
        filter = max(good_length(kind)(mark) + int(values.integers(-1, 2)), 1)
        return int(values.integers(1, filter + 2)), filter
    if way == 1:  # a transform, or a tile's step, that is as long as the mark
        filter = int(values.integers(1, min(mark, 40) + 1))
        beyond = {"full": filter - 1, "same": filter // 2, "valid": 0}[mode]
        return max(near - beyond, 1), filter
    if way == 2:  # an image shorter than the filter
        return max(near // int(values.integers(2, 9)), 1), near
    if way == 3:  # equal, or one off
        return near, max(near + int(values.integers(-1, 2)), 1)
    if way == 4:
        return near, int(values.integers(1, 8))
    return near, max(int(values.choice(marks)) + int(values.integers(-1, 2)), 1)


def cases(kind, number, seed=0):
    """(shape, filter's shape, mode, boundary), as many as asked for."""
    values = np.random.default_rng(seed)
    rows, columns = thresholds(kind)
    found = []
    while len(found) < number:
        mode, boundary = MODES[len(found) % 3], BOUNDARIES[len(found) // 3 % 3]
        (h, fh), (w, fw) = extents(values, kind, rows, mode), extents(values, kind, columns, mode)
        products = (h + fh) * (w + fw) * min(fh * fw, h * w if mode == "valid" else fh * fw)
        fits = (h >= fh and w >= fw) or (fh >= h and fw >= w)
        if products > PRODUCTS or max(h, w, fh, fw) > LARGEST[kind] or (mode, fits) == ("valid", 0):
            continue
        front = (int(values.integers(2, 4)),) if values.random() < 0.25 else ()
        if front and mode == "valid" and (h < fh or w < fw):
            front = ()
        found.append(((*front, h, w), (fh, fw), mode, boundary))
    return found


def operands(shape, filter_shape, dtype, rank_one, seed):
    """Whole numbers; a filter that is a product of a column and a row, or not."""
    values = np.random.default_rng(seed)
    image = values.integers(-3, 4, shape).astype(dtype)
    if rank_one:
        column, row = (values.integers(1, 4, n).astype(dtype) for n in filter_shape)
        return image, np.outer(column, row)
    return image, values.integers(-3, 4, filter_shape).astype(dtype)


def compare(case, number, device, method):
    """Whether the method takes a case, and then gets it right."""
    shape, filter_shape, mode, boundary = case
    dtype = ("float32", "float64")[number // 9 % 2]
    fillvalue = number % 2
    image, filter = operands(shape, filter_shape, dtype, method == "separable", number)
    options = {"mode": mode, "boundary": boundary, "fillvalue": fillvalue}
    try:
        result = hetero.convolve2d(image, filter, **options, device=device, method=method)
    except MethodNotAvailable:
        return False
    expected = scipys(image.astype("f8"), filter.astype("f8"), **options)
    assert result.dtype == dtype
    assert result.shape == expected.shape, (case, dtype, fillvalue)
    wrong = abs(result - expected) > 0.3
    assert not wrong.any(), (case, dtype, fillvalue, int(wrong.sum()))
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


def test_what_is_chosen():
    """By default, and by default on the CPU."""
    for i, case in enumerate(cases("cpu", 360, seed=1)):
        compare(case, i, None if i % 2 else "cpu", None)


def test_several_tiles_on_the_cpu(monkeypatch):
    monkeypatch.setattr(fft, "weight_on_cpu", lambda window, axes, *of: as_many_tiles(axes))
    fft.on_cpu.cache_clear()
    assert all(compare(case, i, "cpu", "fft") for i, case in enumerate(cases("cpu", 360)))
    fft.on_cpu.cache_clear()
