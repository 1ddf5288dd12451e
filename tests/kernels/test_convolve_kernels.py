"""The kernels of 2-D correlation and their plans, against sums by NumPy.

They run on an OpenCL device, also those that plans give to CUDA alone. As a script this file is
what Oclgrind simulates.
"""

from __future__ import annotations

import itertools

import kernel_runs
import numpy as np
import pytest
import runtimes
from convolutions import PAD
from kernel_runs import LAYOUTS, WRITABLE, elements, operand

from hetero.kernels.common.launch import BOUNDARIES
from hetero.kernels.convolution import plan as plan_convolve
from hetero.ops.convolve2d.problem import window_of

DTYPES = ("float32", "float64")
MODES = ("full", "same", "valid")
PLAN = {"multiprocessors": 4, "alignment": 16, "warps": False}
FILL = np.float64(-1.25)


@pytest.fixture(scope="module")
def runner():
    """An OpenCL device."""
    return kernel_runs.Runner(runtimes.opencl_device()._device)


@pytest.fixture
def small(monkeypatch):
    """Let small images have the kernel for few taps."""
    monkeypatch.setattr(plan_convolve, "_LEAST_OUTPUTS", 1)


# -- What they should make -----------------------------------------------------------------------


def correlated(image, taps, outs, before, boundary, fillvalue=FILL):
    """The correlation, in float64."""
    read = [n + m - 1 for n, m in zip(outs, taps.shape, strict=True)]
    widths = [(b, max(r - b - n, 0)) for r, b, n in zip(read, before, image.shape, strict=True)]
    more = {"constant_values": fillvalue} if boundary == "fill" else {}
    image = np.pad(image, widths, PAD[boundary], **more)[: read[0], : read[1]]
    windows = np.lib.stride_tricks.sliding_window_view(image, taps.shape)
    return np.einsum("ijuv,uv->ij", windows, taps)


def planned(extent, taps_shape, outs, before, rank, **options):
    """A plan, of the direct sum without a rank."""
    names = ("height", "width", "filter_height", "filter_width", "out_height", "out_width")
    sizes = dict(zip((*names, "top", "left"), (*extent, *taps_shape, *outs, *before), strict=True))
    sizes["tap_strides"] = taps_shape[1], 1
    if rank is None:
        return kernel_runs.planned(plan_convolve.direct, **sizes, **options)
    return kernel_runs.planned(plan_convolve.separable, rank=rank, **sizes, **options)


def plan_for(shape, taps_shape, rank=None, **options):
    """A plan for mode "same", by default of contiguous images on a large GPU."""
    strides = (shape[0] * shape[1], shape[1], 1)
    large = {"batch": 1, "boundary": "fill", "dtype": "float32", "alignment": 16, "warps": True}
    large |= {"image_strides": strides, "out_strides": strides, "multiprocessors": 132}
    before = [n // 2 for n in taps_shape]
    return planned(shape, taps_shape, shape, before, rank, **large | options)


def check(
    runner,
    extent,
    taps_shape,
    *,
    mode="same",
    boundary="fill",
    dtype="float32",
    layouts=("row", "row"),
    batch=1,
    rank=None,
    offset=0,
    shared=False,
    axes=None,
    only_if=None,
    **plan,
):
    """Run a plan, compare with the sum, see that nothing else was written; return the plan.

    ``axes``, in place of a mode: (outputs, elements before the first) of each axis.
    """
    window = window_of(extent, taps_shape, mode)
    arranged = axes or zip(window[4:6], window[6:8], strict=True)
    outs, before = zip(*arranged, strict=True)
    generator = np.random.default_rng(7)
    taps = magnitudes = generator.uniform(-1, 1, taps_shape).astype(dtype)
    filters = {"taps": taps}
    if rank is not None:
        columns, rows = (generator.uniform(-1, 1, (rank, n)).astype(dtype) for n in taps_shape)
        filters = {"columns": columns, "rows": rows}
        taps, magnitudes = (f(columns.astype(float)).T @ f(rows) for f in (np.asarray, abs))
    views = {}
    for name, values in filters.items():
        _, views[name] = operand(runner, 1, *values.shape, dtype)
        views[name][0] = values
    _, image = operand(runner, batch, *extent, dtype, layouts[0], offset, shared)
    kept, out = operand(runner, batch, *outs, dtype, layouts[1], offset)
    kernel_runs.fill(image, 3)
    kept.fill(-7)
    options = dict(PLAN)
    options["alignment"] = kernel_runs.alignment(image, out, *views.values())
    strides = {"image_strides": elements(image), "out_strides": elements(out)}
    options |= {"batch": batch, "boundary": boundary, "dtype": dtype, **strides}
    launch_plan = planned(extent, taps_shape, outs, before, rank, **options | plan)
    runner.run(launch_plan, image=image, out=out, **views, fillvalue=FILL, only_if=only_if)
    for each, result in zip(image.astype(float), out, strict=True):
        if only_if is not None and not only_if[0]:
            break  # nothing was to be written
        expected = correlated(each, taps.astype(float), outs, before, boundary)
        size = correlated(abs(each), abs(magnitudes), outs, before, boundary, abs(FILL))
        terms = taps.size if rank is None else sum(taps_shape) + rank
        wrong = ~(abs(result - expected) <= (terms + 4) * np.finfo(dtype).eps * size)
        assert not wrong.any(), (launch_plan, np.argwhere(wrong)[:5])
        result[...] = -7
    assert np.all(kept == -7), "wrote outside of the output"
    return launch_plan


# Of each axis, far from the edge, many periods out: (outputs, elements before the first).
FAR = [((30, 40), (27, 3)), ((70, 61), (9, 0), (1, 300))]


# -- convolve.cu ---------------------------------------------------------------------------------


def test_tiles_of_every_shape(runner, monkeypatch):
    """Large and small tiles; stages of a filter that does not fit at once; all rows of a thread."""
    with monkeypatch.context() as patch:
        patch.setattr(plan_convolve, "_ROWS", (8,))
        launch_plan = check(runner, (33, 140), (11, 37), boundary="symm")
    defines = dict(launch_plan.launches[0].defines)
    assert defines["ROWS"] == 8
    assert defines["STAGE_COLUMNS"] < 37
    extents = (1, 700), (5, 30), (40, 12), (64, 64)
    seen = {check(runner, extent, (3, 4), mode="full").variant for extent in extents}
    assert len(seen) >= 3
    limits = {"block_limit": 32, "shared_limit": 16384}
    launch_plan = check(runner, (40, 130), (5, 37), boundary="wrap", **limits)
    assert launch_plan.launches[0].block == 32


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_any_outputs(runner, boundary):
    for axes in itertools.product(FAR[0], FAR[1]):
        check(runner, (7, 5), (4, 3), axes=axes, boundary=boundary)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(runner, layout):
    check(runner, (21, 34), (3, 5), layouts=(layout, "row"), batch=2, offset=1, shared=True)
    if layout in WRITABLE:
        check(runner, (21, 34), (3, 5), layouts=("row", layout), batch=2)
        check(runner, (21, 34), (3, 5), layouts=("column", layout), batch=2, boundary="symm")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("warps", [False, True])  # tiles, taps in registers
@pytest.mark.parametrize("asked", [0, 1, -1])
def test_a_flag_of_0_leaves_the_output_alone(runner, small, asked, warps, dtype):
    """Behind a transform: only where that gave something that is not finite."""
    only_if = runner.empty(4, "int32")
    only_if[:] = asked, 7, 7, 7
    launch_plan = check(runner, (40, 152), (5, 5), dtype=dtype, warps=warps, only_if=only_if)
    assert launch_plan.launches[0].kernel == ("convolve_small" if warps else "convolve")


# -- convolve_small.cu ---------------------------------------------------------------------------


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("extent", "taps", "dtype"),
    [
        ((140, 400), (3, 3), "float32"),
        ((140, 400), (3, 3), "float64"),
        ((9, 2), (1, 4), "float32"),
        ((45, 403), (2, 3), "float64"),
        ((66, 516), (9, 7), "float32"),
        ((4, 3), (5, 6), "float64"),
    ],
)
def test_small_filters(runner, extent, taps, dtype):
    """In every mode and boundary."""
    modes = MODES if np.greater_equal(extent, taps).all() else MODES[:2]
    for boundary, mode in itertools.product(BOUNDARIES, modes):
        options = {"mode": mode, "boundary": boundary, "dtype": dtype}
        launch_plan = check(runner, extent, taps, warps=True, batch=2, **options)
        fits = dtype == "float32" or max(taps) <= 5
        assert launch_plan.launches[0].kernel == ("convolve_small" if fits else "convolve")


@pytest.mark.usefixtures("small")
def test_small_filters_of_any_alignment(runner):
    """Every shift of the image against the outputs, and rows that are not aligned."""
    widths = set()
    for left, width in itertools.product((0, 1, 2, 3, 7), (300, 302)):
        axes = ((20, 1), (width - 2, left)) if width == 302 else ((20, 1), (width, left))
        launch_plan = check(runner, (20, width), (3, 3), axes=axes, warps=True, boundary="wrap")
        widths.add(dict(launch_plan.launches[0].defines)["WIDTH"])
    for layout in LAYOUTS:
        check(runner, (40, 140), (3, 2), layouts=(layout, "row"), warps=True, batch=2)
        check(runner, (140, 40), (2, 3), layouts=(layout, "column"), warps=True, batch=2)
    launch_plan = check(runner, (20, 300), (3, 3), offset=1, warps=True)
    widths.add(dict(launch_plan.launches[0].defines)["WIDTH"])
    assert widths == {1, 2, 4}


# -- convolve_lines.cu ---------------------------------------------------------------------------


def test_separable_of_every_shape(runner):
    most, given = plan_convolve.SEPARABLE_TAPS, {"dtype": "float64", "multiprocessors": 1}
    launch_plan = check(runner, (70, 90), (most, most), rank=2, **given)
    assert launch_plan.launches[0].block == 64
    launch_plan = check(runner, (140, 75), (5, 4), rank=1, **given)
    assert launch_plan.launches[0].block == 128
    for layouts in (("column", "row"), ("row, reversed", "column, strided"), ("column", "column")):
        check(runner, (30, 41), (5, 4), layouts=layouts, rank=2, batch=2, boundary="symm")
    check(runner, (7, 6), (5, 4), rank=1, axes=(FAR[0][0], FAR[1][1]), boundary="wrap")


# -- Plans alone ---------------------------------------------------------------------------------


def test_large_offsets():
    """More than 2^31 elements, and outputs far beyond the image."""
    launch_plan = plan_for((70_000, 70_000), (3, 3))
    assert 70_000 in launch_plan.launches[0].arguments
    launch_plan = plan_for((1, 1 << 33), (1, 9))
    assert launch_plan.launches[0].kernel == "convolve"
    with pytest.raises(ValueError, match="a launch must have at most 2147483647 blocks"):
        plan_for((1, 1 << 50), (1, 9))


# -- Oclgrind ------------------------------------------------------------------------------------


def simulate():
    """Run the smallest problems that reach every kernel."""
    plan_convolve._LEAST_OUTPUTS = 1
    simulator = kernel_runs.BufferRunner(runtimes.simulator())
    for boundary in BOUNDARIES:
        check(simulator, (4, 9), (2, 3), boundary=boundary, mode="full")
        check(simulator, (10, 36), (3, 3), boundary=boundary, warps=True, dtype="float64")
        check(simulator, (4, 9), (2, 3), boundary=boundary, rank=1)
    check(simulator, (9, 130), (3, 3), mode="full", warps=True, batch=2)
    check(simulator, (3, 3), (9, 34), block_limit=32, mode="full", shared_limit=16384)
    check(simulator, (2, 5), (9, 10), rank=2, dtype="float64")


def test_no_races_nor_bounds():
    assert runtimes.simulated(__file__) == ""


if __name__ == "__main__":
    simulate()
